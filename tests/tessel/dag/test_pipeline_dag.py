"""Schedules of one's own, their kinds and rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tessel.dag.pipeline_dag import Key, dag_of_pipeline, pipeline_rule
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    PipelineSchedule,
    Recompute,
)
from tessel.picture.bars import bars_of
from tessel.picture.text import text_grid
from tessel.schedule import Schedule
from tessel.shapes import vshape
from tessel.validation import find_violations

RULES = {rule.name: rule for rule in HANDWRITTEN}


class OneForwardOneBackward(PipelineSchedule):
    """1F1B, as a user would write it."""

    def instructions(self, device: int) -> Iterator[Instruction]:
        warm_up = min(self.num_stages - device, self.num_micro_batches)
        yield from (Forward(device, m) for m in range(warm_up))
        for m in range(self.num_micro_batches):
            yield Backward(device, m)
            if m + warm_up < self.num_micro_batches:
                yield Forward(device, m + warm_up)


@pytest.mark.parametrize("hop", [0, 2])
def test_a_schedule_of_ones_own_is_the_hand_written_one(hop: int) -> None:
    pipeline = OneForwardOneBackward(
        num_stages=4, num_micro_batches=8, durations={Forward: (1, 2, 3, 1), Backward: 3}
    )
    own = dag_of_pipeline(pipeline, hop=hop).to_schedule()
    placement = vshape(4, forward_span=(1, 2, 3, 1), backward_span=3, lag=hop)
    published = RULES["1f1b"].build(placement, micro_batches=8)

    def by_name(schedule: Schedule) -> dict[tuple[str, int], int]:
        return {(start.block, start.micro_batch): start.start for start in schedule.starts}

    assert by_name(own) == by_name(published)
    assert own.peak_memory == published.peak_memory


def test_two_devices_by_hand() -> None:
    """F0 F1 . . B0 B0 . B1 B1 over . F0 B0 B0 F1 B1 B1 . . : F1 may wait two steps, B0 one."""
    pipeline = OneForwardOneBackward(num_stages=2, num_micro_batches=2, durations={Backward: 2})
    dag = dag_of_pipeline(pipeline)
    slack = {
        (dag.placement.blocks[task.block_index].name, task.micro_batch): slack
        for task, slack in zip(dag.tasks, dag.slack, strict=True)
        if slack
    }
    assert slack == {("f0", 1): 2, ("b0", 0): 1}
    path = [(dag.placement.blocks[task.block_index].name, task.micro_batch) for task in dag.critical_path()]
    assert path == [("f0", 0), ("f1", 0), ("b1", 0), ("f1", 1), ("b1", 1), ("b0", 1)]


def test_split_and_whole_backwards_mix_as_a_choice() -> None:
    class SplitAtTheEnd(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Forward(device, 0)
            yield Forward(device, 1)
            yield Recompute(device, 0)
            yield Backward(device, 0)
            yield Recompute(device, 1)
            yield BackwardInput(device, 1)
            yield BackwardWeight(device, 1)

    schedule = dag_of_pipeline(SplitAtTheEnd(num_stages=2, num_micro_batches=2)).to_schedule()
    assert [choice.name for choice in schedule.placement.choices] == ["b0", "b1"]
    assert schedule.peak_memory == (2, 2)


def test_several_stages_may_share_a_device() -> None:
    class ThereAndBack(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            for stage in (device, 3 - device):
                for m in range(self.num_micro_batches):
                    yield Forward(stage, m)

    schedule = dag_of_pipeline(ThereAndBack(num_stages=4, num_devices=2, num_micro_batches=3)).to_schedule()
    assert schedule.placement.devices == 2
    assert schedule.makespan == 8


@dataclass(frozen=True, slots=True)
class Reduce(Instruction):
    """Gradients of a stage are reduced once, after its last backward."""


def test_a_kind_and_a_rule_of_ones_own() -> None:
    class WithReduce(OneForwardOneBackward):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield from super().instructions(device)
            for m in range(self.num_micro_batches):
                yield Reduce(device, m)

    def reduce_in_stage_order(instruction: Instruction, num_stages: int) -> Iterator[Key]:
        if isinstance(instruction, Reduce) and instruction.stage > 0:
            yield Reduce, instruction.stage - 1, instruction.micro_batch

    pipeline = WithReduce(num_stages=3, num_micro_batches=4, durations={Reduce: 5})
    free = dag_of_pipeline(pipeline)
    ordered = dag_of_pipeline(pipeline, rules=(pipeline_rule, reduce_in_stage_order))
    assert ordered.makespan == free.makespan + 10
    assert ordered.to_schedule().placement.block("reduce2").span == 5


def test_an_instruction_of_ones_own_may_run_once() -> None:
    class ReduceAtTheEnd(OneForwardOneBackward):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield from super().instructions(device)
            yield Reduce(device, self.num_micro_batches - 1)

    pipeline = ReduceAtTheEnd(num_stages=2, num_micro_batches=3, durations={Reduce: 5})
    plain = dag_of_pipeline(OneForwardOneBackward(num_stages=2, num_micro_batches=3)).to_schedule()
    for when in ("eager", "lazy"):
        schedule = dag_of_pipeline(pipeline).to_schedule(when)
        assert schedule.makespan == plain.makespan + 5
        drawn = [(bar.block, bar.micro_batch) for bar in bars_of(schedule) if bar.end > bar.start]
        assert [name for name in drawn if name[0].startswith("reduce")] == [("reduce0", 2), ("reduce1", 2)]
        assert text_grid(schedule).plain.count("2") >= 2


def test_rules_may_reach_across_micro_batches() -> None:
    """A stage that waits for the whole micro-batch before it: no overlap is left."""

    def one_at_a_time(instruction: Instruction, num_stages: int) -> Iterator[Key]:
        if isinstance(instruction, Forward) and instruction.stage == 0 and instruction.micro_batch:
            yield Backward, 0, instruction.micro_batch - 1

    class AllForwardsFirst(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            for m in range(self.num_micro_batches):
                yield Forward(device, m)
                yield Backward(device, m)

    pipeline = AllForwardsFirst(num_stages=3, num_micro_batches=4, durations={Backward: 2})
    dag = dag_of_pipeline(pipeline, rules=(pipeline_rule, one_at_a_time))
    assert dag.makespan == 4 * 3 * 3
    assert find_violations(dag.to_schedule("lazy")) == ()


def test_refusals_say_what_to_do() -> None:
    class Backwards(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Backward(device, 0)
            yield Forward(device, 0)

    class Twice(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Forward(0, 0)

    class Nothing(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            return iter(())

    class Uneven(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Forward(device, 0, 1)
            yield Forward(device, 1, 2)

    class Incomplete(PipelineSchedule):
        def instructions(self, device: int) -> Iterator[Instruction]:
            yield Forward(device, 0)

    cases = [
        (Backwards(num_stages=1, num_micro_batches=1), "wait for each other, among them b0"),
        (Twice(num_stages=2, num_micro_batches=1), "on device 0 and again on device 1"),
        (Nothing(num_stages=1, num_micro_batches=1), "no device has an instruction"),
        (Uneven(num_stages=1, num_micro_batches=2), "for 1 steps in one micro-batch and on device 0 for 2"),
    ]
    for pipeline, reason in cases:
        with pytest.raises(ScheduleError, match=reason):
            dag_of_pipeline(pipeline)
    dag = dag_of_pipeline(Incomplete(num_stages=1, num_micro_batches=2))
    with pytest.raises(ScheduleError, match="it has 1 starts, and 2 micro-batches of 1 blocks need 2"):
        dag.to_schedule()
    with pytest.raises(ValueError, match='"eager" or "lazy"'):
        dag.to_schedule("soon")  # type: ignore[arg-type]  # the mistake that is tested
    with pytest.raises(ScheduleError, match="holds 2 units"):
        dag_of_pipeline(OneForwardOneBackward(num_stages=2, num_micro_batches=2)).to_schedule(memory=(1, 1))
