"""Measured stages become a placement in steps and bytes, and a plan that compares and loads."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessel.errors import DocumentError, InfeasibleError
from tessel.loading import load_plan
from tessel.pipeline import blocks_of_function, build_plan, choose_step_us, place_stages
from tessel.placement import Edge
from tessel.profiles.figures import MAX_HALVES_RATIO
from tessel.search.budget import SearchBudget
from tessel.tuned_model.model_figures import devices_of_stages
from tessel.tuned_plan import save_plan
from tessel.validation import check_schedule
from tests.samples.tuned_model import tuned_model
from tuner.plan import ModelPlan, ShardsPlan, TiedParameter

LATENCIES = st.floats(10.0, 1e6)


@settings(max_examples=40, deadline=None)
@given(latencies=st.lists(st.tuples(LATENCIES, LATENCIES, LATENCIES, LATENCIES), min_size=1, max_size=5))
@example(latencies=[(10.0, 10.0, 10.0, 10.0), (10.0, 10.0, 10.0, 10.0), (10.0, 400.0, 10.0, 10.0)])
@example(latencies=[(10.0, 10.0, 10.0, 10.0), (10.0, 10.0, 10.0, 10.0), (10.0, 401.0, 10.0, 10.0)])
def test_blocks_are_never_shorter_than_what_was_measured(
    latencies: list[tuple[float, float, float, float]],
) -> None:
    tuned = tuned_model(latencies)
    step_us = choose_step_us(tuned.stages)
    placement = place_stages(tuned, step_us=step_us)
    for stage_number, (forward, joint, *halves) in enumerate(latencies):
        blocks = [(f"f{stage_number}", forward)]
        if placement.choices:
            is_outlier = stage_number > 0 and joint > MAX_HALVES_RATIO * sum(halves)
            blocks.append((f"b{stage_number}", sum(halves) if is_outlier else joint))
        for name, latency_us in blocks:
            span = placement.block(name).span
            assert latency_us <= span * step_us * (1 + 1e-9)
            assert span * step_us < latency_us * 1.006 + step_us


def test_the_first_stage_does_all_of_a_split_backward_in_its_weight_half() -> None:
    placement = place_stages(tuned_model([(10.0, 20.0, 12.0, 11.0)] * 3), step_us=1.0)
    assert [choice.options for choice in placement.choices] == [
        ((f"b{stage}",), (f"b{stage}_input", f"b{stage}_weight")) for stage in range(3)
    ]
    spans = [placement.block(f"b0{form}").span for form in ("", "_input", "_weight")]
    assert spans == [20, 0, 20]


def test_halves_that_take_no_longer_replace_the_joint_backwards() -> None:
    placement = place_stages(tuned_model([(10.0, 20.0, 9.0, 11.0)] * 2), step_us=1.0)
    assert [block.name for block in placement.blocks] == [
        "f0",
        "f1",
        "b0_input",
        "b1_input",
        "b0_weight",
        "b1_weight",
    ]


def test_every_block_of_a_placement_runs_a_function_of_its_stage() -> None:
    placement = place_stages(tuned_model([(10.0, 20.0, 12.0, 11.0)] * 2), step_us=1.0)
    kinds = ("forward", "backward", "backward_input", "backward_weight")
    named = [
        block
        for stage in range(2)
        for kind in kinds
        for block in blocks_of_function(f"stage{stage}.{kind}", placement)
    ]
    assert {block.name for block in placement.blocks} == set(named)
    assert blocks_of_function("stage1.backward_input", placement) == ("b1_input",)
    # The first stage has no halves: its whole backward runs as its weight half, if it is not run at once.
    assert blocks_of_function("stage0.backward", placement) == ("b0", "b0_input", "b0_weight")


def test_a_plan_is_valid_never_slower_than_1f1b_and_loads_as_it_was(tmp_path: Path) -> None:
    tuned = tuned_model(
        [(100.0, 210.0, 120.0, 110.0), (90.0, 200.0, 120.0, 90.0), (140.0, 250.0, 130.0, 150.0)]
    )
    plan = build_plan(tuned, micro_batches=6, memory_limit_bytes=None, budget=SearchBudget(0.5))
    check_schedule(plan.schedule)
    rows = {row.schedule: row for row in plan.comparison}
    assert rows["searched"].makespan <= rows["1f1b"].makespan
    assert rows["1f1b"].ratio_to_1f1b == 1.0
    assert rows["searched"].peak_memory_bytes is not None
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


def test_a_stage_that_cannot_fit_is_named_with_what_it_needs() -> None:
    tuned = tuned_model([(10.0, 20.0, 12.0, 11.0)] * 2)
    with pytest.raises(InfeasibleError, match=r"stage0|device 0"):
        build_plan(tuned, micro_batches=2, memory_limit_bytes=1000, budget=SearchBudget(0.2))


def test_inference_has_forwards_alone() -> None:
    stages = tuple(
        msgspec.structs.replace(stage, backward=None, backward_input=None, backward_weight=None)
        for stage in tuned_model([(10.0, 20.0, 12.0, 11.0)] * 2).stages
    )
    tuned = msgspec.structs.replace(tuned_model([(10.0, 1.0, 1.0, 1.0)] * 2), stages=stages, training=False)
    plan = build_plan(tuned, micro_batches=4, memory_limit_bytes=None, budget=SearchBudget(0.2))
    assert plan.schedule.makespan * plan.step_us == pytest.approx(5 * 10.0 + plan.hop_latency_us[0], rel=0.02)
    assert plan.static_bytes == (4000,) * 2
    # What is packed of weights that stay as they are is held beside them.
    packed = [msgspec.structs.replace(stage, bound_bytes=number * 700) for number, stage in enumerate(stages)]
    tuned = msgspec.structs.replace(tuned, stages=tuple(packed))
    plan = build_plan(tuned, micro_batches=4, memory_limit_bytes=None, budget=SearchBudget(0.2))
    assert plan.static_bytes == (4000, 4700)
    with pytest.raises(InfeasibleError, match="device 1 needs"):
        build_plan(tuned, micro_batches=4, memory_limit_bytes=4650, budget=SearchBudget(0.2))


def m_shape(num_devices: int) -> ModelPlan:
    """Return a chain between two stages that are divided over all its devices."""
    tuned = tuned_model([(10.0, 20.0, 12.0, 11.0)] * (num_devices + 2))
    shards = ShardsPlan(num_shards=num_devices, axes={}, collective_us={})
    first, *chain, last = tuned.stages
    ends = [msgspec.structs.replace(stage, shards=shards) for stage in (first, last)]
    return msgspec.structs.replace(tuned, stages=(ends[0], *chain, ends[1]))


def test_stages_run_on_the_devices_that_they_were_cut_for(tmp_path: Path) -> None:
    tuned = msgspec.structs.replace(
        tuned_model([(10.0, 20.0, 12.0, 11.0)] * 4),
        stage_devices=((0,), (1,), (1,), (0,)),
        hop_latency_us=(5.0, 0.0, 5.0),
    )
    plan = build_plan(tuned, micro_batches=4, memory_limit_bytes=None, time_limit_s=0.5)
    assert [plan.placement.block(f"f{stage}").devices for stage in range(4)] == [(0,), (1,), (1,), (0,)]
    check_schedule(plan.schedule)
    assert plan.static_bytes == (2 * 2 * 4000,) * 2
    names = {row.schedule for row in plan.comparison}
    assert "zb-v" in names
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    save_plan(msgspec.structs.replace(plan, stage_devices=((0,),)), tmp_path / "plan.json")
    with pytest.raises(DocumentError, match='"stage_devices" has 1 entries, and there are 4 stages'):
        load_plan(tmp_path / "plan.json")
    wrong = {((),): "has 1 entries, and there are 4", ((), (1,), (1,), (2,)): "has stage 1 receive from"}
    for before, message in wrong.items():
        save_plan(msgspec.structs.replace(plan, stages_before=before), tmp_path / "plan.json")
        with pytest.raises(DocumentError, match=f'"stages_before" {message}'):
            load_plan(tmp_path / "plan.json")


def test_stages_that_branch_have_the_edges_of_their_branches() -> None:
    tuned = msgspec.structs.replace(
        tuned_model([(10.0, 20.0, 12.0, 11.0)] * 3), stages_before=((), (), (0, 1)), hop_latency_us=(2.0, 3.0)
    )
    placement = place_stages(tuned, step_us=1.0)
    between = {edge for edge in placement.edges if edge.source[1] != edge.target[1]}
    forward = {Edge("f0", "f2", 2), Edge("f1", "f2", 3)}
    assert forward <= between
    assert {(edge.source[1], edge.target[1], edge.lag) for edge in between - forward} == {
        ("2", "0", 2),
        ("2", "1", 3),
    }


@pytest.mark.parametrize("devices", [((0,), (1,)), ((0,), (2,), (2,), (0,)), ((0,), (1,), (0, 1), (0,))])
def test_devices_that_fit_no_stages_are_refused(devices: tuple[tuple[int, ...], ...]) -> None:
    tuned = msgspec.structs.replace(tuned_model([(10.0, 20.0, 12.0, 11.0)] * 4), stage_devices=devices)
    with pytest.raises(ValueError, match="are not one for each shard or leave a device out"):
        place_stages(tuned, step_us=1.0)


def test_a_tied_tensor_counts_once_on_each_device() -> None:
    tied = ((TiedParameter("table", 0), TiedParameter("table", 3)),)
    tuned = msgspec.structs.replace(m_shape(2), tied=tied, tied_bytes=(1500,))
    plan = build_plan(tuned, micro_batches=2, memory_limit_bytes=None, time_limit_s=0.5)
    assert plan.static_bytes == (2 * (3 * 4000 - 1500),) * 2
    # On the plain chain its two copies lie on two devices.
    chain = msgspec.structs.replace(
        tuned_model([(10.0, 20.0, 12.0, 11.0)] * 4), tied=tied, tied_bytes=(1500,)
    )
    plan = build_plan(chain, micro_batches=2, memory_limit_bytes=None, time_limit_s=0.5)
    assert plan.static_bytes == (2 * 4000,) * 4


def test_stages_with_shards_hold_every_device() -> None:
    tuned = m_shape(2)
    assert devices_of_stages(tuned.stages) == ((0, 1), (0,), (1,), (0, 1))
    placement = place_stages(tuned, step_us=1.0)
    assert placement.devices == 2
    assert {block.devices for block in placement.blocks if block.name.startswith(("f3", "b3"))} == {(0, 1)}
    assert placement.block("b1_weight").devices == (0,)


def test_a_device_holds_its_own_stage_and_its_shards() -> None:
    plan = build_plan(m_shape(2), micro_batches=2, memory_limit_bytes=None, time_limit_s=0.5)
    assert plan.static_bytes == (3 * 2 * 4000,) * 2
    check_schedule(plan.schedule)
    # Two micro-batches: each device works on its own stage and both ends, and nothing is faster than that.
    assert plan.schedule.makespan * plan.step_us >= 2 * 3 * 30.0
    with pytest.raises(InfeasibleError, match=r"device 0 needs .* for stages 0, 1 and 3 and one"):
        build_plan(m_shape(2), micro_batches=2, memory_limit_bytes=24_500)


def test_shards_that_fill_other_devices_are_refused() -> None:
    tuned = m_shape(3)
    with pytest.raises(ValueError, match="stage0 has 3 shards, and the stages without fill 2 devices"):
        devices_of_stages((*tuned.stages[:2], *tuned.stages[3:]))
