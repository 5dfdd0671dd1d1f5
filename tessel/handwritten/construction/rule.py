"""The interface of a hand-written schedule: a rule that gives each device its instructions, and its domain.

`build` turns the instructions into tasks of the placement and starts each as soon as its device and its
dependencies allow, so that one rule covers equal and unequal stages, with and without hops. A rule never
exceeds a memory limit silently: `why_not` reports that it does not fit, and `build` fails.

    instructions   device 0: F0 F1 B0 B1      earliest   F0 F1 .  .  B0 B0 .  B1 B1
                   device 1: F0 B0 F1 B1                 .  F0 B0 B0 F1 B1 B1 .  .

Where a rule leaves freedom, `build` follows the publication, and `every_orders` enumerates what the rule
permits: warm-up depths, joint or split backwards where there is a choice, and what weaker rules of its family
do, which need no more memory. `tessel.handwritten.strongest` takes the best of them. Checked in
tests/tessel/handwritten/test_formulas.py against closed formulas and published figures, and in
test_strongest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten.construction.columns import Columns, kept
from tessel.handwritten.construction.greedy import Preference
from tessel.handwritten.construction.stages import NotAPipelineError, Pipeline, Stage, read_pipeline
from tessel.instruction import Backward, BackwardInput, BackwardWeight, Forward, Instruction, Recompute
from tessel.orders import Orders, Task, earliest_starts
from tessel.placement import Edge, Placement
from tessel.schedule.schedule import Schedule, peak_memory

Streams = Sequence[Iterable[Instruction]]
"""The instructions of each device, in order."""

MAX_BLOCKS_AN_INSTRUCTION = 3
"""A whole backward may be a recomputation and two halves."""

Starts = Mapping[tuple[int, int], int]
"""Start by (block index, micro-batch)."""


class Rule(Protocol):
    """A hand-written schedule that can be asked whether it applies, and built.

    Its functions take the blocks of one micro-batch, how many micro-batches are run (>= 1), and the memory
    limit in units, one per device, or None for none.
    """

    @property
    def name(self) -> str:
        """Short name, as tables print it."""
        ...

    @property
    def needs_limit(self) -> bool:
        """Whether the rule reads the memory limit and has no meaning without one."""
        ...

    def why_not(
        self, placement: Placement, micro_batches: int, memory: Sequence[int] | None = None
    ) -> str | None:
        """Return one sentence that says why the rule cannot be used here, or None if it can."""
        ...

    def orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Orders:
        """Return the tasks of each device, whether or not they fit the limit.

        Raises:
            ScheduleError: the rule does not apply; the message says why.
        """
        ...

    def every_orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Iterator[Orders]:
        """Yield the tasks of each device for every way in which the rule may be followed, `orders` first.

        Raises:
            ScheduleError: the rule does not apply; the message says why.
        """
        ...

    def timed(self, placement: Placement, orders: Orders) -> Starts:
        """Return the earliest starts in one of these orders."""
        ...

    def build(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Schedule:
        """Return the schedule.

        Raises:
            InfeasibleError: it needs more memory than there is; the message names the device.
            ScheduleError: the rule does not apply; the message says why.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRule:
    """A rule that is published as the instructions of each device; a memory limit does not change them.

    Attributes:
        name: short name, as tables print it.
        applies: returns why the rule does not apply to a pipeline with so many micro-batches, or None.
        streams: returns the instructions of each device, given pipeline and micro-batches.
        extra_edges: returns precedences that the rule adds to the placement's.
        variants: returns other instructions that follow the rule as well, where it leaves numbers free.
        generalised: how it is simulated on placements to which the published rule does not apply, if it is.
        includes: weaker rules of the same family; their orders keep what this one promises, such as memory.
    """

    name: str
    applies: Callable[[Pipeline, int], str | None]
    streams: Callable[[Pipeline, int], Streams]
    variants: Callable[[Pipeline, int], Iterable[Streams]] = lambda pipeline, micro_batches: ()
    extra_edges: Callable[[Pipeline], tuple[Edge, ...]] = lambda pipeline: ()
    generalised: Preference | None = None
    includes: tuple[StreamRule, ...] = ()
    needs_limit: bool = False

    def why_not(
        self, placement: Placement, micro_batches: int, memory: Sequence[int] | None = None
    ) -> str | None:
        """Return one sentence that says why the rule cannot be used here, or None if it can."""
        check_micro_batches(micro_batches)
        if self.generalised is None:
            found = self._read(placement, micro_batches)
            if isinstance(found, str):
                return found
        if memory is None:
            return None
        excess = find_excess(placement, self._starts(placement, micro_batches), memory)
        return None if excess is None else f"{self.name} does not fit: {excess}"

    def build(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Schedule:
        """Return the schedule.

        Raises:
            InfeasibleError: it needs more memory than there is; the message names the device.
            ScheduleError: the rule does not apply; the message says why.
        """
        check_micro_batches(micro_batches)
        starts = self._starts(placement, micro_batches)
        return as_schedule(self.name, placement, starts, micro_batches=micro_batches, memory=memory)

    def orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Orders:
        """Return the tasks of each device, whether or not they fit the limit.

        Raises:
            ScheduleError: the rule does not apply; the message says why.
        """
        check_micro_batches(micro_batches)
        del memory
        pipeline = self._read(placement, micro_batches)
        if isinstance(pipeline, str):
            return in_order_of_start(placement, self._generalised(pipeline, placement, micro_batches))
        return as_orders(pipeline, self.streams(pipeline, micro_batches))

    def every_orders(
        self, placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
    ) -> Iterator[Orders]:
        """Yield the tasks of each device for every way in which the rule may be followed, `orders` first.

        Raises:
            ScheduleError: the rule does not apply; the message says why.
        """
        check_micro_batches(micro_batches)
        pipeline = self._read(placement, micro_batches)
        if isinstance(pipeline, str):
            if self.generalised is None:
                raise ScheduleError(f"{pipeline}; use another schedule or another placement")
            for preference in self.generalised.variants(placement):
                yield in_order_of_start(placement, preference.starts(placement, micro_batches))
            return
        for streams in self.every_streams(pipeline, micro_batches):
            yield as_orders(pipeline, streams)
        for weaker in self.includes:
            if weaker.applies(pipeline, micro_batches) is None:
                yield from weaker.every_orders(placement, micro_batches=micro_batches, memory=memory)

    def every_streams(self, pipeline: Pipeline, micro_batches: int) -> Iterator[Streams]:
        """Yield the instructions of each device for every way to follow the rule, the published one first.

        Those of the rules that it includes are left out.

        Args:
            pipeline: one that the rule applies to.
            micro_batches: how many are run, >= 1.
        """
        published = tuple(map(kept, self.streams(pipeline, micro_batches)))
        yield published
        free = [tuple(map(kept, streams)) for streams in self.variants(pipeline, micro_batches)]
        for split in ((), *_sets_to_split(pipeline)):
            for streams in (published, *free) if split else free:
                yield [tuple(_in_halves(stream, frozenset(split))) for stream in streams]

    def timed(self, placement: Placement, orders: Orders) -> Starts:
        """Return the earliest starts in one of these orders, with the precedences that the rule adds."""
        edges: tuple[Edge, ...] = ()
        try:
            pipeline = read_pipeline(placement)
            # What is simulated, whatever the number of micro-batches, does without them.
            if self.generalised is None or self.applies(pipeline, 1) is None:
                edges = self.extra_edges(pipeline)
        except NotAPipelineError:
            pass
        return earliest_starts(with_edges(placement, edges), orders)

    def _starts(self, placement: Placement, micro_batches: int) -> Starts:
        pipeline = self._read(placement, micro_batches)
        if isinstance(pipeline, str):
            return self._generalised(pipeline, placement, micro_batches)
        orders = as_orders(pipeline, self.streams(pipeline, micro_batches))
        return earliest_starts(with_edges(placement, self.extra_edges(pipeline)), orders)

    def _generalised(self, reason: str, placement: Placement, micro_batches: int) -> Starts:
        if self.generalised is None:
            raise ScheduleError(f"{reason}; use another schedule or another placement")
        return self.generalised.starts(placement, micro_batches)

    def _read(self, placement: Placement, micro_batches: int) -> Pipeline | str:
        """The placement as stages, or why the published rule does not apply to it."""
        try:
            pipeline = read_pipeline(placement)
        except NotAPipelineError as error:
            return f"{self.name} does not apply: {error}"
        reason = self.applies(pipeline, micro_batches)
        return pipeline if reason is None else f"{self.name} does not apply: {reason}"


def as_schedule(
    name: str,
    placement: Placement,
    starts: Starts,
    *,
    micro_batches: int,
    memory: Sequence[int] | None,
) -> Schedule:
    """Return the schedule of a rule's starts.

    Raises:
        InfeasibleError: it breaks the memory limit; the message names the device.
    """
    if memory is not None:
        excess = find_excess(placement, starts, memory)
        if excess is not None:
            raise InfeasibleError(f"{name} does not fit: {excess}; use another schedule or raise the limit")
    return Schedule.of(placement, starts, micro_batches=micro_batches, memory=memory, found_by=name)


def find_excess(placement: Placement, starts: Starts, memory: Sequence[int]) -> str | None:
    """Return which device needs more than its limit and how much, or None if none does.

    Raises:
        ValueError: there is not one limit per device.
    """
    if len(memory) != placement.devices:
        raise ValueError(
            f"{len(memory)} memory limits were given for {placement.devices} devices; give one per device"
        )
    peaks = peak_memory(placement, starts)
    for device, (peak, limit) in enumerate(zip(peaks, memory, strict=True)):
        if peak > limit:
            return f"device {device} needs {peak} units, its limit is {limit}"
    return None


def in_order_of_start(placement: Placement, starts: Starts) -> Orders:
    """Return the tasks of each device for starts that are listed in the order in which they start."""
    orders: list[list[Task]] = [[] for _ in range(placement.devices)]
    for block, micro_batch in starts:
        for device in placement.blocks[block].devices:
            orders[device].append(Task(block, micro_batch))
    return orders


def as_orders(pipeline: Pipeline, streams: Streams) -> Orders:
    """Return the tasks of each device for its instructions, as the stages can run them.

    A joint backward on a stage that can only split runs both halves one after the other; a split one on a
    stage that can only run jointly runs whole where its input half stands. A recomputation stands right
    before its backward unless the stream says where.
    """
    return tuple(
        tuple(
            # An instruction given before its place by default keeps the earlier place.
            dict.fromkeys(
                Task(block_index, instruction.micro_batch)
                for instruction in stream
                for block_index in blocks_of(pipeline.stages[instruction.stage], type(instruction))
            )
        )
        for stream in streams
    )


def task_numbers(pipeline: Pipeline, streams: Streams) -> list[npt.NDArray[np.int64]]:
    """Return what `as_orders` does as numbers: micro-batch times blocks of the placement, plus block.

    Args:
        streams: the instructions of each device.

    Returns:
        int64, one array a device, its tasks first to last.
    """
    num_blocks = len(pipeline.placement.blocks)
    blocks_by_kind: dict[type[Instruction], npt.NDArray[np.int64]] = {}
    found = []
    for columns in map(Columns.of, streams):
        for kind in columns.kinds:
            if kind not in blocks_by_kind:
                table = np.full((len(pipeline.stages), MAX_BLOCKS_AN_INSTRUCTION), -1, dtype=np.int64)
                for row, stage in zip(table, pipeline.stages, strict=True):
                    blocks = blocks_of(stage, kind)
                    row[: len(blocks)] = blocks
                blocks_by_kind[kind] = table
        if not columns.kinds:
            found.append(columns.micro_batch)
            continue
        run = np.array([blocks_by_kind[kind] for kind in columns.kinds])[columns.kind, columns.stage]
        tasks = (columns.micro_batch[:, None] * num_blocks + run)[run >= 0]
        # An instruction given before its place by default keeps the earlier place.
        unique, places = np.unique(tasks, return_index=True)
        found.append(tasks if len(unique) == len(tasks) else tasks[np.sort(places)])
    return found


def with_edges(placement: Placement, edges: tuple[Edge, ...]) -> Placement:
    """Return the placement with more precedences."""
    if not edges:
        return placement
    return Placement(
        devices=placement.devices,
        blocks=placement.blocks,
        edges=(*placement.edges, *edges),
        choices=placement.choices,
    )


def _sets_to_split(pipeline: Pipeline) -> Iterator[tuple[int, ...]]:
    """Yield sets of stages to run in halves: all that may, and those that then have less work."""
    blocks = pipeline.placement.blocks
    free = [
        number for number, stage in enumerate(pipeline.stages) if stage.joint is not None and stage.is_split
    ]
    shorter = [
        number
        for number in free
        if sum(blocks[half].span for half in _halves(pipeline.stages[number]))
        < blocks[pipeline.stages[number].joint or 0].span
    ]
    if free:
        yield tuple(free)
    if shorter and shorter != free:
        yield tuple(shorter)


def _halves(stage: Stage) -> tuple[int, ...]:
    return tuple(half for half in (stage.input, stage.weight) if half is not None)


def _in_halves(stream: Iterable[Instruction], split: frozenset[int]) -> Iterator[Instruction]:
    """Yield the instructions with each backward of these stages in two halves, one after the other."""
    for instruction in stream:
        if isinstance(instruction, Backward) and instruction.stage in split:
            yield BackwardInput(instruction.stage, instruction.micro_batch)
            yield BackwardWeight(instruction.stage, instruction.micro_batch)
        else:
            yield instruction


def check_micro_batches(micro_batches: int) -> None:
    """Refuse a schedule of nothing.

    Raises:
        ValueError: fewer than one micro-batch.
    """
    if micro_batches < 1:
        raise ValueError(f"{micro_batches} micro-batches were asked for; a schedule has at least 1")


def blocks_of(stage: Stage, kind: type[Instruction]) -> tuple[int, ...]:
    """Return the blocks that a kind of instruction runs on a stage, in order.

    Raises:
        ValueError: placements have no blocks for this kind.
    """
    wanted: tuple[int | None, ...]
    if issubclass(kind, Forward):
        wanted = (stage.forward,)
    elif issubclass(kind, Recompute):
        wanted = (stage.recompute,)
    elif issubclass(kind, Backward):
        whole = (stage.joint,) if stage.joint is not None else (stage.input, stage.weight)
        wanted = (stage.recompute, *whole)
    elif issubclass(kind, BackwardInput):
        wanted = (stage.recompute, *((stage.input,) if stage.is_split else (stage.joint, stage.input)))
    elif issubclass(kind, BackwardWeight):
        wanted = (stage.weight,) if stage.is_split or stage.joint is None else ()
    else:
        raise ValueError(f"{kind.__name__} is of no type that a placement has blocks for")
    return tuple(block for block in wanted if block is not None)
