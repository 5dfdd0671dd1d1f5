"""Copies of a pipeline: their placement, their weights, and their run on real ranks against plain torch."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("torch")

from planned_models import LANGUAGE_MODEL, m_shape_on_tvm, plan_on_tvm
from shared_modules import PYTHONPATH

from tessel.engine.actions import check_chain
from tessel.engine.errors import EngineError
from tessel.engine.job import RankSum
from tessel.engine.results_check import ExpectedResults
from tessel.engine.run import RunReport, RunSettings, StagePrograms, run_schedule
from tessel.errors import ScheduleError
from tessel.pipeline import place_stages
from tessel.search import find_schedule
from tessel.tuned_model.model_figures import devices_of, gradient_sums
from tessel.tuned_model.replicas import replicated
from tuner.plan import ModelPlan, ShardsPlan
from tuner.programs.compiled_stages import ProgramSpec, reference_step
from tuner.programs.step_results import PipelineCopy
from tuner.programs.torch_programs import TorchProgramSpec
from tuner.programs.torch_programs import reference_step as reference_step_of_torch

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

MICRO_BATCHES = 2
"""Of each copy."""


@pytest.fixture(autouse=True)
def ranks_find_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.fixture(scope="module")
def whole() -> ModelPlan:
    return plan_on_tvm(LANGUAGE_MODEL, [])


@pytest.fixture(scope="module")
def halves() -> ModelPlan:
    return plan_on_tvm(LANGUAGE_MODEL, ["layers.1"])


def run(plan: ModelPlan, *, is_torch: bool = False, provider: str = "") -> RunReport:
    schedule = find_schedule(
        place_stages(plan, step_us=1.0), micro_batches=MICRO_BATCHES, memory=None, time_limit_s=0.5
    )
    spec = (TorchProgramSpec if is_torch else ProgramSpec)(plan=plan, trust_model=True)
    module = "torch_programs" if is_torch else "compiled_stages"
    step = (
        (lambda count: reference_step_of_torch(spec, count))
        if is_torch
        else (lambda count: reference_step(spec, count))
    )
    return run_schedule(
        schedule,
        StagePrograms(
            provider or f"tuner.programs.{module}:provide_programs",
            msgspec.json.encode(spec).decode(),
            plan.replicas,
            sums=tuple(RankSum(ranks=each.devices, num_bytes=each.num_bytes) for each in gradient_sums(plan)),
        ),
        expected=ExpectedResults(
            reference=step, tied=plan.tied, parameters=[stage.parameters for stage in plan.stages]
        ),
        settings=RunSettings(repeats=1),
    )


def check(report: RunReport) -> None:
    assert not report.check.failures, report.check.describe_failures()
    # Of the searched order and of 1F1B: every weight, the tied table once, and each copy's losses.
    assert report.check.num_gradients == 2 * 9
    assert report.check.num_losses == 2 * 2 * MICRO_BATCHES


def test_copies_have_devices_of_their_own_and_share_all_weights(halves: ModelPlan) -> None:
    plan = replicated(halves, 2)
    assert devices_of(plan) == ((0,), (1,), (2,), (3,))
    assert [stage.name for stage in plan.stages] == ["stage0", "stage1", "stage2", "stage3"]
    placement = place_stages(plan, step_us=1.0)
    # A forward and two backward edges of each copy's border, one from each forward to its backwards, B to W.
    crossing = {
        (edge.source[1], edge.target[1]) for edge in placement.edges if edge.source[1] != edge.target[1]
    }
    assert crossing == {("0", "1"), ("1", "0"), ("2", "3"), ("3", "2")}
    held = {name for stage in halves.stages for name in stage.parameters}
    groups = [{member.name for member in group} for group in plan.tied]
    assert set().union(*groups) == held
    assert all(len(group) >= 2 for group in plan.tied)
    assert check_chain(placement, copies=2) == 4
    with pytest.raises(EngineError, match=r"stage 2 .* takes results of stages"):
        check_chain(placement)


def test_mirrored_copies_share_all_devices_in_opposite_directions(halves: ModelPlan) -> None:
    assert devices_of(replicated(halves, 2, is_mirrored=True)) == ((0,), (1,), (1,), (0,))
    four = devices_of(replicated(halves, 4, is_mirrored=True))
    assert four == ((0,), (1,), (1,), (0,), (2,), (3,), (3,), (2,))


@pytest.mark.slow
def test_an_x_shape_has_the_losses_and_gradients_of_plain_torch(halves: ModelPlan) -> None:
    """The tied table is in both stages, so that each rank holds it for both ends of both copies."""
    report = run(replicated(halves, 2, is_mirrored=True))
    check(report)
    # Both ranks share all weights, whose gradients are summed after the steps.
    assert report.sums_ms is not None
    assert report.sums_ms > 0


def test_micro_batches_of_a_step_go_round_the_copies() -> None:
    copies = [PipelineCopy(number, 3) for number in range(3)]
    assert [each.of_step(micro_batch) for micro_batch in range(2) for each in copies] == list(range(6))


def test_one_copy_is_the_plan_itself(halves: ModelPlan) -> None:
    assert replicated(halves, 1) is halves


def test_copies_of_divided_stages_have_parts_of_their_own(halves: ModelPlan) -> None:
    """Between mirrored copies a device must hold the same parts of the same weights."""
    shards = ShardsPlan(num_shards=2, axes={}, collective_us={})
    first, second = halves.stages
    two = msgspec.structs.replace(
        halves,
        stages=(msgspec.structs.replace(first, shards=shards), second),
        stage_devices=((0, 1), (2,)),
    )
    assert devices_of(replicated(two, 2)) == ((0, 1), (2,), (3, 4), (5,))
    crossed = msgspec.structs.replace(two, stage_devices=((0, 1), (1,)))
    assert devices_of(replicated(crossed, 2, is_mirrored=True)) == ((0, 1), (1,), (0, 1), (0,))
    three = msgspec.structs.replace(
        halves,
        stages=(msgspec.structs.replace(first, shards=msgspec.structs.replace(shards, num_shards=3)), second),
        stage_devices=((0, 1, 2), (3,)),
    )
    with pytest.raises(ScheduleError, match="of which a mirrored copy would have other parts"):
        replicated(three, 2, is_mirrored=True)


@pytest.mark.slow  # four ranks compile at once
def test_two_copies_of_an_m_shape_have_the_losses_and_gradients_of_plain_torch() -> None:
    check(run(replicated(m_shape_on_tvm(LANGUAGE_MODEL, 2), 2)))


@pytest.mark.slow  # two ranks compile
def test_two_copies_have_the_losses_and_gradients_of_plain_torch(whole: ModelPlan) -> None:
    check(run(replicated(whole, 2)))


@pytest.mark.slow
def test_copies_that_repeat_one_anothers_micro_batches_are_seen(whole: ModelPlan) -> None:
    failures = run(
        replicated(whole, 2), provider="sharded_with_a_fault:repeated_micro_batches"
    ).check.failures
    assert {failure.kind for failure in failures} == {"gradient", "loss"}
    # Those of the second copy: every other micro-batch of the step.
    assert {failure.micro_batch for failure in failures if failure.kind == "loss"} == {1, 3}


@pytest.mark.slow  # four ranks compile at once
def test_two_copies_of_two_stages_have_the_losses_and_gradients_of_plain_torch(halves: ModelPlan) -> None:
    check(run(replicated(halves, 2)))
    check(run(replicated(halves, 2), is_torch=True))
