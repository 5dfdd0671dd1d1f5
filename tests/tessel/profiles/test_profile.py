"""A profile that exists is a valid one, and answers for what was measured alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessel.errors import ScheduleError
from tessel.profiles.load import load_profile
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts


def profile_of(forwards: list[float], *, micro_batch: int = 1, **more: float) -> Profile:
    """Return a profile of one table, its layers with these forwards and twice as long backwards."""
    costs = tuple(StageCosts(forward_us=each, backward_us=2 * each, **more) for each in forwards)
    return Profile(
        name="model",
        layers=tuple(Layer(f"layer{index}") for index in range(len(forwards))),
        tables=(CostTable(micro_batch=micro_batch, tensor_parallel=1, costs=costs),),
    )


@pytest.mark.parametrize(
    "name", ["forward_us", "backward_us", "weight_bytes", "saved_bytes", "boundary_bytes"]
)
@pytest.mark.parametrize("value", [-1, float("nan"), 1e30])
def test_impossible_figures_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ScheduleError, match=f"{name} is"):
        StageCosts(**{"forward_us": 1.0, name: value})


def test_backward_is_as_measured_or_the_sum_of_its_halves() -> None:
    assert StageCosts(forward_us=1.0, backward_us=5.0, backward_input_us=2.0).joint_backward_us == 5.0
    assert StageCosts(forward_us=1.0, backward_weight_us=2.0, backward_input_us=2.5).joint_backward_us == 4.5
    assert StageCosts(forward_us=1.0).joint_backward_us is None
    assert not StageCosts(forward_us=1.0, backward_input_us=2.0).is_splittable


def test_tables_fit_the_layers() -> None:
    good = profile_of([1.0, 2.0])
    (table,) = good.tables
    inference = (StageCosts(forward_us=1.0), table.costs[1])
    for layers, tables, problem in (
        (good.layers[:1], good.tables, "has 2 layers, and the profile 1"),
        ((good.layers[0],) * 2, good.tables, "two layers are named 'layer0'"),
        (good.layers, good.tables * 2, "is given twice"),
        (good.layers, (CostTable(micro_batch=1, tensor_parallel=1, costs=inference),), "has no backward"),
        (good.layers, (CostTable(micro_batch=0, tensor_parallel=1, costs=table.costs),), "at least 1"),
        ((), good.tables, "has no layers"),
    ):
        with pytest.raises(ScheduleError, match=problem):
            Profile(name="model", layers=layers, tables=tables)


def test_costs_are_those_measured_alone() -> None:
    profile = profile_of([1.0, 2.0], micro_batch=4)
    assert [cost.forward_us for cost in profile.costs(micro_batch=4)] == [1.0, 2.0]
    assert profile.micro_batches == (4,)
    with pytest.raises(ScheduleError, match="no micro-batch size 2"):
        profile.costs(micro_batch=2)


def test_a_repeated_block_stands_for_more_or_fewer() -> None:
    profile = profile_of([1.0, 3.0, 3.1, 5.0])
    for num_layers in (3, 4, 9):
        more = profile.with_num_layers(num_layers)
        forwards = [cost.forward_us for cost in more.costs(micro_batch=1)]
        assert len(more.layers) == len({layer.name for layer in more.layers}) == num_layers
        assert (forwards[0], forwards[-1]) == (1.0, 5.0)
        assert all(abs(each - 3.0) <= 0.11 for each in forwards[1:-1])
    with pytest.raises(ScheduleError, match="not one repeated block"):
        profile_of([1.0, 3.0, 4.0, 5.0]).with_num_layers(6)


def test_a_joint_backward_that_a_busy_machine_measured_is_taken_as_its_halves(tmp_path: Path) -> None:
    stage = {
        "name": "stage0",
        "forward_us": 400.0,
        "backward_us": 80_000.0,
        "backward_input_us": 450.0,
        "backward_weight_us": 400.0,
        "weight_bytes": 1,
        "saved_bytes": 1,
        "saved_for_weight_bytes": 1,
        "boundary_bytes": 1,
    }
    calm = {**stage, "name": "stage1", "backward_us": 900.0}
    path = tmp_path / "stages.json"
    path.write_text(json.dumps({"stages": [stage, calm], "tied": []}))
    profile = load_profile(path, micro_batch=1)
    assert [cost.backward_us for cost in profile.tables[0].costs] == [850.0, 900.0]
    (note,) = profile.notes
    assert note.startswith("stage0: its joint backward was measured as 80000 us")
