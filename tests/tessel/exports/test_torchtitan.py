"""torchtitan builds the plan's stages from what is written, and torch loads the CSV into them."""

from __future__ import annotations

import json
import sys
import tomllib
import types
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from layer_plans import profile, saved_plan

from tessel.engine.actions import cells_from_csv, cells_to_csv
from tessel.errors import ScheduleError
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.torchtitan import modules_of_stages, orders_csv, titan_options, titan_python, titan_toml
from tessel.planning.layout import Layout
from tessel.profiles.profile import Layer

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

from torch_schedule_stages import stages_of_torch  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch


def layout(placement: str, chunks: int = 1, *, pipeline: int = 2, micro_batches: int = 4) -> Layout:
    stages = pipeline * chunks
    ends = [8 * (stage + 1) // stages for stage in range(stages)]
    return Layout(
        data_parallel=1,
        pipeline=pipeline,
        micro_batch=3,
        micro_batches=micro_batches,
        placement=placement,  # type: ignore[arg-type]  # one of the names
        cuts=tuple((end - 8 // stages, end - 1) for end in ends),
        split_backward=placement == "zbv",
    )


CASES = {
    "one stage a rank": (layout("vshape"), "1f1b"),
    "two chunks": (layout("interleaved", 2), "interleaved"),
    "four chunks": (layout("interleaved", 4), "interleaved"),
    "a V": (layout("zbv", 2), "zb-v"),
}


def recipe(name: str) -> Recipe:
    found, order = CASES[name]
    return recipe_of_saved_plan(saved_plan(layout=found, order=order, model=profile(sizes=(3,))))


def stages_of_rank(options: Any, rank: int) -> list[int]:
    """The stages that torchtitan builds on a rank, by the module lists and the schedule's name."""
    kind = schedules.get_schedule_class(options["pipeline_parallel_schedule"])
    degree, count = options["pipeline_parallel_degree"], len(options["module_fqns_per_model_part"])
    assert count % degree == 0
    if kind in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV):
        assert count == 2 * degree
        return [rank, count - 1 - rank]
    return [rank + degree * chunk for chunk in range(count // degree)]


def runtime(stages: list[int], num_stages: int, ranks: int, micro_batches: int) -> Any:
    made = stages_of_torch(stages, num_stages=num_stages, num_ranks=ranks)
    return schedules._PipelineScheduleRuntime(made, micro_batches)


@pytest.mark.parametrize("name", CASES)
def test_torchtitan_builds_the_stages_of_the_plan_and_loads_its_orders(name: str, tmp_path: Path) -> None:
    plan = recipe(name)
    options = titan_options(plan, csv="orders.csv")
    built = [stages_of_rank(options, rank) for rank in range(plan.devices)]
    assert [
        [stage for stage, own in enumerate(plan.device_of_stage) if own == rank] for rank in range(2)
    ] == built
    path = tmp_path / "orders.csv"
    path.write_text(orders_csv(plan))
    loaded = runtime(built[0], plan.num_stages, plan.devices, plan.micro_batches)
    loaded._load_csv(str(path))
    assert loaded.stage_index_to_group_rank == dict(enumerate(plan.device_of_stage))
    found = [[str(action) for action in loaded.pipeline_order[rank]] for rank in range(plan.devices)]
    assert found == [line.split(",") for line in path.read_text().splitlines()]


def test_every_layer_is_in_one_stage_in_order() -> None:
    for name in CASES:
        modules = [module for stage in modules_of_stages(recipe(name)) for module in stage]
        assert modules == [
            "tok_embeddings",
            *(f"layers.{index}" for index in range(6)),
            "norm",
            "output",
            "lm_head",
        ]


def imported(text: str, monkeypatch: pytest.MonkeyPatch, option: str) -> dict[str, Any]:
    """The names of a file as a job of the release imports it whose configuration has the option."""
    config = types.ModuleType("torchtitan.config")
    config.ParallelismConfig = make_dataclass("ParallelismConfig", [(option, int, 0)])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchtitan", types.ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.config", config)
    values: dict[str, Any] = {}
    exec(text, values)  # noqa: S102 (as a job imports it)
    return values


def test_both_ways_to_configure_it_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe("two chunks")
    options = dict(titan_options(plan, csv="o.csv"))
    values = imported(titan_python(plan, csv="o.csv"), monkeypatch, "num_pp_microbatches")
    assert values["PARALLELISM"] == options | {"num_pp_microbatches": 4}
    values = imported(titan_python(plan, csv="o.csv"), monkeypatch, "pipeline_parallel_microbatch_size")
    assert values["PARALLELISM"] == options | {"pipeline_parallel_microbatch_size": 3}
    assert values["LOCAL_BATCH_SIZE"] == 12
    parsed = tomllib.loads(titan_toml(plan, csv="o.csv"))
    assert parsed["parallelism"] == options | {"pipeline_parallel_microbatch_size": 3}
    assert parsed["training"]["local_batch_size"] == 12


def test_the_name_of_the_runtime_is_none_that_torch_knows() -> None:
    """What an earlier recipe named: torchtitan asks torch for the class before it looks at the CSV."""
    with pytest.raises(ValueError, match="Unknown schedule name"):
        schedules.get_schedule_class("_PipelineScheduleRuntime")


def test_names_of_modules_are_kept_and_nothing_ends_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe("one stage a rank")
    names = ("tok_embeddings", *(f"layers.{index}" for index in range(6)), 'out"put\n')
    named = Recipe(
        **{**{each: getattr(plan, each) for each in Recipe.__slots__}, "layers": names, "model": '"""\n#'}
    )
    kept = modules_of_stages(named, keep_names=True)
    assert kept[1][-1] == 'out"put\n'
    text = titan_python(named, csv="o.csv", keep_names=True)
    values = imported(text, monkeypatch, "num_pp_microbatches")
    assert values["PARALLELISM"]["module_fqns_per_model_part"] == kept
    assert (
        tomllib.loads(titan_toml(named, csv="o.csv", keep_names=True))["parallelism"][
            "pipeline_parallel_degree"
        ]
        == 2
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [("block1", "row 'block1' stands twice among the rows"), ("a.b.c", "row 'a.b.c' is nested deeper than")],
)
def test_rows_that_name_no_one_module_cannot_be_kept(row: str, message: str) -> None:
    plan = recipe("one stage a rank")
    layers = (*plan.layers[:4], row, *plan.layers[5:])
    assert "block1" in plan.layers[:4]
    with pytest.raises(ScheduleError, match=message):
        modules_of_stages(replace(plan, layers=layers), keep_names=True)


def test_a_plan_without_a_micro_batch_has_one_of_one_sample() -> None:
    text = titan_toml(replace(recipe("one stage a rank"), micro_batch=None), csv="o.csv")
    assert tomllib.loads(text)["parallelism"]["pipeline_parallel_microbatch_size"] == 1


def test_other_placements_are_refused() -> None:
    found = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=3,
        micro_batches=4,
        placement="custom",
        stage_devices=(1, 0),
        cuts=((0, 3), (4, 7)),
    )
    plan = recipe_of_saved_plan(saved_plan(layout=found, order="gpipe", model=profile(sizes=(3,))))
    with pytest.raises(ScheduleError, match="a loop over the ranks and a V"):
        titan_options(plan, csv="o.csv")


def test_dualpipe_v_of_torch_is_read_and_written_back() -> None:
    made = stages_of_torch((0, 3), num_stages=4, num_ranks=2)
    order = schedules.ScheduleDualPipeV(made, 6).pipeline_order
    text = "".join(
        ",".join("" if each is None else str(each) for each in order[rank]) + "\n" for rank in range(2)
    )
    assert "OVERLAP_F_B" in text
    cells = cells_from_csv(text)
    kept = [[str(each) for each in order[rank] if each is not None] for rank in range(2)]
    assert [line.split(",") for line in cells_to_csv(cells).splitlines()] == kept
    parsed = [[str(schedules._Action.from_str(cell)) for cell in row] for row in kept]
    assert parsed == kept


def test_options_are_json_too() -> None:
    json.dumps(dict(titan_options(recipe("a V"), csv="o.csv")))


def test_rows_of_one_stage_may_be_one_module_but_for_norms() -> None:
    """Tables of words and positions are one embedding; of two norms torchtitan has one."""

    def modules(*names: str) -> list[list[str]]:
        plain = profile(blocks=len(names) - 2)
        model = msgspec.structs.replace(plain, layers=tuple(map(Layer, names)))
        recipe = recipe_of_saved_plan(saved_plan(model=model))
        return tomllib.loads(titan_toml(recipe, csv="o.csv"))["parallelism"]["module_fqns_per_model_part"]

    first, last = modules("wte", "wpe", "h.0", "h.1", "h.2", "h.3", "norm", "head")
    assert first == ["tok_embeddings", "layers.0", "layers.1"]
    assert last == ["layers.2", "layers.3", "norm", "output", "lm_head"]
    with pytest.raises(ScheduleError, match="rows 'norm' in stage 1 and 'final_norm' in stage 1"):
        modules("wte", "h.0", "h.1", "h.2", "h.3", "norm", "final_norm", "head")
