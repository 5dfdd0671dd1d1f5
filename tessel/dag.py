"""What waits for what in a schedule, and what follows: earliest and latest starts, slack, the critical path.

A task is one block of one micro-batch, or one instruction. Arcs are the waits inside the model (a backward
for the gradient) and the order on each device. Slack is how long a task may be put off without making the
whole longer; tasks without slack from the first step to the last are the critical path.

    device 0   F0 F1 .  .  B0 B0 .  B1 B1     F1 has two steps of slack and B0 one: eager starts are as early
    device 1   .  F0 B0 B0 F1 B1 B1 .  .      as the arcs allow, lazy ones as late as the makespan allows

A schedule of this package and a `PipelineSchedule` of one's own become the same `Dag`. What an instruction
waits for is said by rules, functions that name what comes before; one's own rule is added to `pipeline_rule`.
Memory is left out: order decides it, and neither eager nor lazy starts change an order.
Checked in tests/tessel/test_dag.py.

Source: Chung et al., Perseus (SOSP 2024), section 4, for the DAG of a pipeline; its slack is what a slower,
cheaper clock may use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from tessel.errors import ScheduleError
from tessel.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    PipelineSchedule,
    Recompute,
    number_for,
)
from tessel.orders import device_orders
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.validation import check_schedule

Key = tuple[type[Instruction], int, int]
"""An instruction without its duration: kind, stage, micro-batch."""

Rule = Callable[[Instruction, int], Iterable[Key]]
"""What an instruction waits for, given the number of stages; what is not in the streams does not count."""


class Task(NamedTuple):
    """One block of one micro-batch.

    Attributes:
        block_index: its block in the placement.
        micro_batch: its micro-batch.
        duration: steps.
    """

    block_index: int
    micro_batch: int
    duration: int


class Arc(NamedTuple):
    """The target starts at least `lag` steps after the source ends; both are positions among the tasks."""

    source: int
    target: int
    lag: int


def pipeline_rule(instruction: Instruction, num_stages: int) -> Iterator[Key]:
    """Yield what an instruction waits for: results of the stage before, gradients of the one after."""
    stage, micro_batch = instruction.stage, instruction.micro_batch
    match instruction:
        case Forward() if stage > 0:
            yield Forward, stage - 1, micro_batch
        case Recompute():
            yield Forward, stage, micro_batch
        case Backward() | BackwardInput():
            yield Forward, stage, micro_batch
            yield Recompute, stage, micro_batch
            if stage + 1 < num_stages:
                yield Backward, stage + 1, micro_batch
                yield BackwardInput, stage + 1, micro_batch
        case BackwardWeight():
            yield BackwardInput, stage, micro_batch


@dataclass(frozen=True)
class Dag:
    """Tasks and what each waits for.

    Attributes:
        placement: the blocks that the tasks are of.
        micro_batches: how many there are.
        tasks: in an order in which each comes after those it waits for.
        arcs: waits, by position among the tasks.
    """

    placement: Placement
    micro_batches: int
    tasks: tuple[Task, ...]
    arcs: tuple[Arc, ...]

    @classmethod
    def of_schedule(cls, schedule: Schedule) -> Dag:
        """Return the DAG of a schedule: its placement's edges and the order on each device."""
        placement = schedule.placement
        starts = schedule.start_by_block()
        orders = device_orders(placement, starts)
        index = placement.index_by_name
        tasks = [Task(block, m, placement.blocks[block].span) for block, m in starts]
        arcs = [
            ((index[edge.source], m), (index[edge.target], m), edge.lag)
            for edge in placement.edges
            for m in range(schedule.micro_batches)
        ]
        arcs += [(before, after, 0) for order in orders for before, after in pairwise(order)]
        return cls._sorted(placement, schedule.micro_batches, tasks, arcs)

    @classmethod
    def of_pipeline(
        cls, pipeline: PipelineSchedule, *, rules: Sequence[Rule] = (pipeline_rule,), hop: int = 0
    ) -> Dag:
        """Return the DAG of a schedule of one's own.

        Args:
            pipeline: yields each device's instructions.
            rules: what instructions wait for, all rules together.
            hop: steps from the end of an instruction to the start of one on another device that waits for it.

        Raises:
            ScheduleError: instructions wait for each other, one occurs twice, a stage is on two devices, or
                a kind of instruction takes longer for one micro-batch of a stage than for another.
        """
        return _dag_of_streams(pipeline, pipeline.streams(), rules, hop)

    @classmethod
    def _sorted(
        cls,
        placement: Placement,
        micro_batches: int,
        tasks: Sequence[Task],
        arcs: Iterable[tuple[tuple[int, int], tuple[int, int], int]],
    ) -> Dag:
        """The DAG with its tasks in topological order; arcs to and from no task are dropped."""
        position = {(task.block_index, task.micro_batch): number for number, task in enumerate(tasks)}
        numbered = [
            Arc(position[source], position[target], lag)
            for source, target, lag in arcs
            if source in position and target in position
        ]
        order = _topological(placement, tasks, numbered)
        rank = {number: rank for rank, number in enumerate(order)}
        return cls(
            placement=placement,
            micro_batches=micro_batches,
            tasks=tuple(tasks[number] for number in order),
            arcs=tuple(Arc(rank[source], rank[target], lag) for source, target, lag in numbered),
        )

    @cached_property
    def earliest(self) -> tuple[int, ...]:
        """The earliest start of each task; O(tasks + arcs)."""
        starts = [0] * len(self.tasks)
        for target, arcs in enumerate(self._arcs_to):
            for source, _, lag in arcs:
                starts[target] = max(starts[target], starts[source] + self.tasks[source].duration + lag)
        return tuple(starts)

    @cached_property
    def makespan(self) -> int:
        """Step at which the last task ends if all start as early as they can."""
        return max(start + task.duration for start, task in zip(self.earliest, self.tasks, strict=True))

    @cached_property
    def latest(self) -> tuple[int, ...]:
        """The latest start of each task with which the makespan stays; O(tasks + arcs)."""
        starts = [self.makespan - task.duration for task in self.tasks]
        for target in reversed(range(len(self.tasks))):
            for source, _, lag in self._arcs_to[target]:
                starts[source] = min(starts[source], starts[target] - lag - self.tasks[source].duration)
        return tuple(starts)

    @cached_property
    def slack(self) -> tuple[int, ...]:
        """Steps that each task can be put off alone without making the makespan longer."""
        return tuple(late - early for late, early in zip(self.latest, self.earliest, strict=True))

    def critical_path(self) -> tuple[Task, ...]:
        """Return tasks that follow each other without a pause from step 0 to the makespan.

        Where several paths are critical, the one whose last tasks come first in the order of tasks.
        """
        ends = [start + task.duration for start, task in zip(self.earliest, self.tasks, strict=True)]
        path = [ends.index(self.makespan)]
        while self.earliest[path[-1]] > 0:
            path.append(
                min(
                    source
                    for source, target, lag in self._arcs_to[path[-1]]
                    if ends[source] + lag == self.earliest[target]
                )
            )
        return tuple(self.tasks[number] for number in reversed(path))

    def to_schedule(
        self, when: Literal["eager", "lazy"] = "eager", *, memory: Sequence[int] | None = None
    ) -> Schedule:
        """Return the schedule in which every task starts as early, or as late, as it can.

        Args:
            when: "eager" for as early, "lazy" for as late.
            memory: limit in units, one a device, that the schedule is to state; None for none.

        Raises:
            ScheduleError: a block of a micro-batch is missing, or the limit is not kept.
        """
        if when not in ("eager", "lazy"):
            raise ValueError(f'tasks can start "eager" or "lazy", {when!r} was asked for')
        starts = self.earliest if when == "eager" else self.latest
        schedule = Schedule.of(
            self.placement,
            {
                (task.block_index, task.micro_batch): start
                for task, start in zip(self.tasks, starts, strict=True)
            },
            micro_batches=self.micro_batches,
            memory=memory,
            found_by=when,
        )
        check_schedule(schedule)
        return schedule

    @cached_property
    def _arcs_to(self) -> tuple[tuple[Arc, ...], ...]:
        arcs: list[list[Arc]] = [[] for _ in self.tasks]
        for arc in self.arcs:
            arcs[arc.target].append(arc)
        return tuple(map(tuple, arcs))


def _topological(placement: Placement, tasks: Sequence[Task], arcs: Sequence[Arc]) -> list[int]:
    pending = [0] * len(tasks)
    followers: list[list[int]] = [[] for _ in tasks]
    for source, target, _ in arcs:
        pending[target] += 1
        followers[source].append(target)
    order = [number for number, count in enumerate(pending) if not count]
    for number in order:  # grows while it is read
        for follower in followers[number]:
            pending[follower] -= 1
            if not pending[follower]:
                order.append(follower)
    if len(order) < len(tasks):
        stuck = next(task for task, count in zip(tasks, pending, strict=True) if count)
        name = placement.blocks[stuck.block_index].name
        raise ScheduleError(
            f"instructions wait for each other, among them {name}[{stuck.micro_batch}]; "
            "put what it waits for earlier in a device's stream, or correct a rule"
        )
    return order


_NAMES: dict[type[Instruction], tuple[str, BlockKind]] = {
    Forward: ("f{}", BlockKind.FORWARD),
    Backward: ("b{}", BlockKind.BACKWARD),
    BackwardInput: ("b{}_input", BlockKind.BACKWARD_INPUT),
    BackwardWeight: ("b{}_weight", BlockKind.BACKWARD_WEIGHT),
    Recompute: ("r{}", BlockKind.RECOMPUTE),
}
"""Block names and kinds by kind of instruction; others are named after their class."""

_Waits = dict[Key, dict[Key, int]]
"""For each instruction what it waits for, and the lag."""


def _dag_of_streams(
    pipeline: PipelineSchedule,
    streams: Sequence[Sequence[Instruction]],
    rules: Sequence[Rule],
    hop: int,
) -> Dag:
    by_key, device_of = _index(streams)
    waits: _Waits = {
        key: {
            before: hop if device_of[before] != device_of[key] else 0
            for rule in rules
            for before in rule(instruction, pipeline.num_stages)
            if before in by_key
        }
        for key, instruction in by_key.items()
    }
    placement = _placement(pipeline, by_key, device_of, waits)
    block = {key: placement.index_by_name[_name(key)] for key in by_key}
    arcs = [
        ((block[before], before[2]), (block[key], key[2]), lag)
        for key, earlier in waits.items()
        for before, lag in earlier.items()
    ]
    arcs += [
        ((block[before], before[2]), (block[after], after[2]), 0)
        for stream in streams
        for before, after in pairwise(map(_key, stream))
    ]
    tasks = [Task(block[key], key[2], instruction.duration) for key, instruction in by_key.items()]
    return Dag._sorted(placement, pipeline.num_micro_batches, tasks, arcs)


def _index(streams: Sequence[Sequence[Instruction]]) -> tuple[dict[Key, Instruction], dict[Key, int]]:
    """Instructions and their devices by key."""
    by_key: dict[Key, Instruction] = {}
    device_of: dict[Key, int] = {}
    for device, stream in enumerate(streams):
        for instruction in stream:
            key = _key(instruction)
            if key in by_key:
                raise ScheduleError(
                    f"{_name(key)}[{key[2]}] is on device {device_of[key]} and again on device {device}; "
                    "an instruction runs once, leave one out"
                )
            by_key[key] = instruction
            device_of[key] = device
    if not by_key:
        raise ScheduleError("no device has an instruction; yield at least one")
    return by_key, device_of


def _key(instruction: Instruction) -> Key:
    return type(instruction), instruction.stage, instruction.micro_batch


def _name(key: Key) -> str:
    kind, stage, _ = key
    form, _ = _NAMES.get(kind, (kind.__name__.lower() + "{}", BlockKind.OTHER))
    return form.format(stage)


def _placement(
    pipeline: PipelineSchedule,
    by_key: dict[Key, Instruction],
    device_of: dict[Key, int],
    waits: _Waits,
) -> Placement:
    """One micro-batch's blocks, which must be alike in all, and the waits that all micro-batches share."""
    blocks: dict[str, Block] = {}
    for key, instruction in by_key.items():
        _, kind = _NAMES.get(key[0], ("", BlockKind.OTHER))
        block = Block(
            name=_name(key),
            kind=kind,
            devices=(device_of[key],),
            span=instruction.duration,
            memory=number_for(pipeline.memory, instruction, 0),
        )
        known = blocks.setdefault(block.name, block)
        if known != block:
            raise ScheduleError(
                f"{block.name} is on device {known.devices[0]} for {known.span} steps in one micro-batch and "
                f"on device {block.devices[0]} for {block.span} in another; a stage is the same in all"
            )
    return Placement(
        devices=pipeline.num_devices,
        blocks=tuple(blocks.values()),
        edges=tuple(_shared_edges(by_key, waits)),
        choices=tuple(_choices(blocks, pipeline.num_stages)),
    )


def _shared_edges(by_key: dict[Key, Instruction], waits: _Waits) -> Iterator[Edge]:
    """Waits inside a micro-batch that hold in every micro-batch that runs both blocks."""
    lags: dict[tuple[str, str], list[int]] = defaultdict(list)
    pairs: dict[tuple[str, str], tuple[Key, Key]] = {}
    for key, earlier in waits.items():
        for before, lag in earlier.items():
            if before[2] == key[2]:
                lags[_name(before), _name(key)].append(lag)
                pairs[_name(before), _name(key)] = (before, key)
    for names, found in lags.items():
        before, key = pairs[names]
        both = sum((*before[:2], m) in by_key and (*key[:2], m) in by_key for m in {k[2] for k in by_key})
        if both == len(found):
            yield Edge(*names, min(found))


def _choices(blocks: dict[str, Block], num_stages: int) -> Iterator[Choice]:
    """Stages that run their backward whole in some micro-batches and split in others."""
    for stage in range(num_stages):
        whole = f"b{stage}"
        halves = tuple(name for name in (f"b{stage}_input", f"b{stage}_weight") if name in blocks)
        if whole in blocks and halves:
            yield Choice(whole, ((whole,), halves))
