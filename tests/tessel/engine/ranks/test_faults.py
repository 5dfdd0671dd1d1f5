"""Every fault that is put into a stage is found and named; correct runs raise no alarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from fault_injection import CORRUPTIONS, NON_FINITE, Fault, FaultyProgram, run_in_process
from planned_models import ENCODER_DECODER, plan_on_tvm
from random_schedules import draw_schedule

from tessel.engine.job import RankResult
from tessel.engine.program import StageProgram
from tessel.engine.results_check import ExpectedResults, RankGradients, Reference, ResultsCheck, check_results
from tessel.schedule import Schedule
from tessel.shapes import make_shape
from tuner.plan import ModelPlan
from tuner.programs import compiled_stages, torch_programs

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

MICRO_BATCHES = 3


@dataclass(frozen=True)
class Subject:
    """Stages of an encoder and a decoder with tied embeddings, and the whole model's results."""

    plan: ModelPlan
    programs: Mapping[int, StageProgram]
    reference: Reference

    def check(self, fault: Fault | None, schedule: Schedule, folder: Path) -> ResultsCheck:
        programs = dict(self.programs)
        if fault is not None:
            programs[fault.stage] = FaultyProgram(programs[fault.stage], fault)
        return self.judge(*run_in_process(programs, schedule, folder))

    def judge(self, results: tuple[RankResult, ...], gradients: RankGradients) -> ResultsCheck:
        return check_results(
            {"searched": (results, gradients)},
            ExpectedResults(
                reference=lambda micro_batches: self.reference,
                name="the whole model",
                tied=self.plan.tied,
                parameters=[stage.parameters for stage in self.plan.stages],
            ),
            micro_batches=MICRO_BATCHES,
            last_stage=len(self.programs) - 1,
            is_trained=True,
        )

    def holders(self, weight: str) -> set[int]:
        return {number for number, stage in enumerate(self.plan.stages) if weight in stage.parameters}


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return plan_on_tvm(ENCODER_DECODER, ["encoder", "decoder.0"])


@pytest.fixture(scope="module", params=["compiled", "torch"])
def subject(request: pytest.FixtureRequest, plan: ModelPlan) -> Subject:
    numbers = range(len(plan.stages))
    if request.param == "compiled":
        spec = compiled_stages.ProgramSpec(plan=plan, trust_model=True)
        return Subject(
            plan,
            compiled_stages.load_programs(spec, numbers),
            compiled_stages.reference_step(spec, MICRO_BATCHES),
        )
    of_torch = torch_programs.TorchProgramSpec(plan=plan, trust_model=True)
    return Subject(
        plan,
        torch_programs.provide_programs(msgspec.json.encode(of_torch).decode(), numbers),
        torch_programs.reference_step(of_torch, MICRO_BATCHES),
    )


def draw(seed: int) -> Schedule:
    """Return any order of all stages on one rank, joint or split backwards as the seed says."""
    options = {"split_backward": True} if seed % 2 else {}
    placement = make_shape("interleaved", 1, chunks=3, **options)
    return draw_schedule(placement, MICRO_BATCHES, np.random.default_rng(seed))


def faults_of(plan: ModelPlan) -> list[Fault]:
    """List the faults: every corruption at every place, at each weight of each stage in turn."""
    last = len(plan.stages) - 1
    weights = [(number, name) for number, stage in enumerate(plan.stages) for name in stage.parameters]
    kinds = [*CORRUPTIONS, "missing", "unexpected"]
    gradients = [
        Fault(place="gradient", kind=kind, stage=stage, weight=weight)
        for index, kind in enumerate(kinds)
        for stage, weight in (weights[index % len(weights)], weights[(index + 3) % len(weights)])
    ]
    # The decoder's layers look alike: a mix-up shows in values alone.
    swapped = [
        Fault(place="gradient", kind="another's", stage=number, weight=name)
        for number, name in weights
        if name.endswith("bias") and sum(other.endswith("bias") for at, other in weights if at == number) > 1
    ]
    losses = [
        Fault(place="loss", kind=kind, stage=last, micro_batch=micro_batch)
        for kind in [*CORRUPTIONS, "missing", "unexpected", "another's"]
        for micro_batch in (0, MICRO_BATCHES - 1)
        if kind != "shifted by a row"  # A loss has none.
    ]
    borders = [
        Fault(place=place, kind=kind, stage=stage)
        for place, stages in (("sent", range(last)), ("returned", range(1, last + 1)))
        for stage in stages
        for kind in [*CORRUPTIONS, "stale"]
    ]
    return gradients + swapped + losses + borders


def test_every_fault_is_found_and_named(subject: Subject, tmp_path: Path) -> None:
    faults = faults_of(subject.plan)
    assert len(faults) > 60
    missed = [
        str(fault) for seed, fault in enumerate(faults) if not is_named(subject, fault, draw(seed), tmp_path)
    ]
    assert missed == []


def is_named(subject: Subject, fault: Fault, schedule: Schedule, folder: Path) -> bool:
    """Say whether the check finds a fault where it is."""
    check = subject.check(fault, schedule, folder)
    if not check.failures:
        return False
    first = check.failures[0]
    match fault.place:
        case "gradient" if fault.kind == "unexpected":
            found = [each for each in check.failures if each.tensor == "nobody's"]
            return [each.stages for each in found] == [(fault.stage,)] and len(check.failures) == 1
        case "gradient":
            others = {each.tensor for each in check.failures} - {fault.weight}
            odd = first.relative_error is None and fault.kind in NON_FINITE
            stages = {fault.stage} if odd else subject.holders(fault.weight)
            is_right = first.tensor == fault.weight or fault.kind == "another's"
            return is_right and set(first.stages) <= stages and (not others or fault.kind == "another's")
        case "loss":
            return all(each.kind == "loss" for each in check.failures) and (
                fault.kind in ("unexpected", "another's") or first.micro_batch == fault.micro_batch
            )
        case "sent":  # The loss of that micro-batch is wrong, and of no other.
            losses = [each.micro_batch for each in check.failures if each.kind == "loss"]
            return losses == [fault.micro_batch]
        case _:  # What is handed back is read by stages before only; losses are right.
            return all(each.kind == "gradient" and min(each.stages) < fault.stage for each in check.failures)


def test_correct_runs_raise_no_alarm(subject: Subject, tmp_path: Path) -> None:
    for seed in range(30):
        check = subject.check(None, draw(seed), tmp_path)
        assert check.failures == ()
        assert check.num_losses == MICRO_BATCHES
        assert check.worst_gradient is not None
        assert check.worst_gradient.relative_error is not None


def test_a_part_of_a_tied_weight_that_is_dropped_shows_with_all_its_stages(
    subject: Subject, tmp_path: Path
) -> None:
    results, gradients = run_in_process(subject.programs, draw(0), tmp_path)
    leader = subject.plan.tied[0][0].name
    for member in subject.plan.tied[0]:
        left = {place: copies for place, copies in gradients.items() if place != (member.name, member.stage)}
        first = subject.judge(results, left).failures[0]
        assert (first.tensor, set(first.stages)) == (leader, {each.stage for each in subject.plan.tied[0]})


def test_ranks_of_one_stage_must_agree(subject: Subject, tmp_path: Path) -> None:
    """Only one rank's gradients of a shared stage were looked at."""
    results, gradients = run_in_process(subject.programs, draw(0), tmp_path)
    place = next(iter(gradients))
    for kind in CORRUPTIONS:
        odd = CORRUPTIONS[kind](gradients[place][0][1])
        twice = {**gradients, place: [*gradients[place], (4, odd)]}
        check = subject.judge(results, twice)
        assert [each.tensor for each in check.failures] == [place[0]], kind
        assert "differs between ranks 0 and 4" in check.failures[0].fault
    other = RankResult(rank=1, events={}, losses={"searched": {0: float("nan")}})
    check = subject.judge((*results, other), gradients)
    assert [(each.kind, each.micro_batch) for each in check.failures] == [("loss", 0)]


def test_messages_name_three_tensors_and_count_the_rest(subject: Subject, tmp_path: Path) -> None:
    nan: Callable[[np.ndarray], np.ndarray] = CORRUPTIONS["NaN"]
    results, gradients = run_in_process(subject.programs, draw(0), tmp_path)
    check = subject.judge(results, {place: [(0, nan(copies[0][1]))] for place, copies in gradients.items()})
    message = check.describe_failures()
    assert message.startswith("the results are not those of the whole model: the gradient of ")
    assert message.count("where the reference is finite") == 3
    assert message.endswith(f"; and {len(check.failures) - 3} more tensors")
    assert subject.judge(results, gradients).describe_failures() == ""
