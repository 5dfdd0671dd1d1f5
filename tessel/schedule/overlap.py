"""Pairs of a forward and a backward that run together on one device, and when blocks start where some do.

A pair takes a given share of what its blocks take one after the other, and at least as long as the longer of
both: it begins when both can, and hands on both results when it ends. What its forward holds is there from
its start, and what its backward frees until its end, as if they ran in that order. Blocks on several devices
and halves of backwards run by themselves.

    device 0   F0 F1 F2 B0 B0 .  B1 B1     apart      F0 F1 F2 B0 B0 .
               F0 F1 (F2 B0) B1 B1         together   the pair takes 0.67 of three steps: two

Left out: how the share depends on the blocks. In DeepSeek's published trace of DualPipe it is 0.54. Checked
in tests/tessel/search/overlap/test_find_overlapped.py against CP-SAT, and in
tests/tessel/checking/test_overlap.py against a simulation of cells.

Source: DeepSeek-V3 (2024), section 3.2.1, and its profile data; the cell OVERLAP_F_B of
torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tessel.errors import ScheduleError
from tessel.orders import Orders, Task, earliest_starts, waits_of
from tessel.placement import BlockKind, Placement

Pair = tuple[Task, Task]
"""A forward and a backward of one device."""


class PairedBlocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A pair by the names of its blocks and their micro-batches."""

    forward: str
    forward_micro_batch: int
    backward: str
    backward_micro_batch: int


class Overlap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The pairs of a schedule.

    Attributes:
        factor: share of the sum of its blocks that a pair takes, in whole millionths above 0, 1 at most.
        pairs: ordered as their backwards start.

    Raises:
        ScheduleError: the factor is no such share.
    """

    factor: float
    pairs: tuple[PairedBlocks, ...] = ()

    def __post_init__(self) -> None:
        if not 1 / MILLION <= self.factor <= 1:
            raise ScheduleError(f"an overlap has factor {self.factor:g}, and a pair takes a share of its sum")

    def tasks(self, placement: Placement) -> Iterator[Pair]:
        """Yield the pairs as tasks of a placement.

        Raises:
            ScheduleError: the placement has no such block.
        """
        index = placement.index_by_name
        for pair in self.pairs:
            if pair.forward not in index or pair.backward not in index:
                raise ScheduleError("an overlap names a block that the placement does not have")
            yield (
                Task(index[pair.forward], pair.forward_micro_batch),
                Task(index[pair.backward], pair.backward_micro_batch),
            )

    @classmethod
    def of(cls, placement: Placement, factor: float, pairs: Iterable[Pair]) -> Overlap:
        """Return the overlap of these tasks."""
        names = [block.name for block in placement.blocks]
        return cls(
            factor=factor,
            pairs=tuple(
                PairedBlocks(names[one.block_index], one.micro_batch, names[two.block_index], two.micro_batch)
                for one, two in pairs
            ),
        )


class PairedStarts(NamedTuple):
    """When tasks start and end, each after those it waits for, and the pairs that run together."""

    starts: dict[tuple[int, int], int]
    ends: dict[tuple[int, int], int]
    pairs: tuple[Pair, ...]


MILLION = 1_000_000
"""Parts in which a factor is counted, so that whole steps are exact."""


def pair_span(forward: int, backward: int, *, factor: float) -> int:
    """Return the whole steps of a pair whose blocks take so many by themselves."""
    return max(forward, backward, -(-round(factor * MILLION) * (forward + backward) // MILLION))


def spans_of_pairs(placement: Placement, factor: float, pairs: Iterable[Pair]) -> dict[Task, int]:
    """Return what the tasks of pairs take."""
    found: dict[Task, int] = {}
    for forward, backward in pairs:
        spans = (placement.blocks[task.block_index].span for task in (forward, backward))
        found[forward] = found[backward] = pair_span(*spans, factor=factor)
    return found


class DeviceWork(NamedTuple):
    """What one device does in a step, in steps or microseconds.

    Attributes:
        forward: of all forwards.
        backward: of all backwards, each as short as it can be.
        shortest_forward: the shortest forward; 0 where each may have a backward beside it.
        shortest_backward: the shortest backward, likewise.
        head: least time ahead of the first block.
        backward_head: least time ahead of the first backward.
        tail: least time behind the last block.
        forward_tail: least time behind the last forward.
    """

    forward: float
    backward: float
    shortest_forward: float = 0.0
    shortest_backward: float = 0.0
    head: float = 0.0
    backward_head: float = 0.0
    tail: float = 0.0
    forward_tail: float = 0.0


def least_end(work: DeviceWork, factor: float) -> float:
    """Return a time before which the device and what follows it cannot be done, pairs or not.

    A pair saves at most the shorter of its blocks, and at most the given share of their sum. Where a device
    has for each backward the forward of its micro-batch, the backward of its earliest pair had its forward by
    itself, and the forward of its latest pair has its backward by itself. With F and B all forwards and
    backwards, f and b the shortest, and c the factor, it is busy for

        max(F + b, B + f, c (F + B) + (1 - c) (f + b))

    Before its first backward can begin only forwards run, and behind the last forward only backwards: what
    runs then has nothing beside it.
    """
    total, alone = work.forward + work.backward, work.shortest_forward + work.shortest_backward
    busy = max(
        work.forward + work.shortest_backward,
        work.backward + work.shortest_forward,
        factor * total + (1 - factor) * alone,
    )
    least = max(
        work.head + busy + work.tail,
        work.backward_head + work.backward + work.tail,
        work.head + work.forward + work.forward_tail,
    )
    before, behind = work.backward_head - work.head, work.forward_tail - work.tail
    if before < 0 or behind < 0 or work.forward < before:
        return least
    between = max(0, total - before - behind)
    return max(least, work.backward_head + factor * between + work.forward_tail)


def can_pair(placement: Placement, one: Task, other: Task) -> bool:
    """Whether two tasks are a forward and a joint backward of two micro-batches, on one device alone."""
    blocks = placement.blocks[one.block_index], placement.blocks[other.block_index]
    kinds = {block.kind for block in blocks}
    return (
        kinds == {BlockKind.FORWARD, BlockKind.BACKWARD}
        and all(len(block.devices) == 1 for block in blocks)
        and blocks[0].devices == blocks[1].devices
        and one.micro_batch != other.micro_batch
    )


def neighbours(placement: Placement, orders: Orders, *, forward_first: bool) -> tuple[Pair, ...]:
    """Return pairs of neighbours in the orders, each task in one at most, from the first on.

    Args:
        orders: of each device.
        forward_first: whether a pair is a forward and what follows it, or a backward and what follows it.
    """
    found = []
    for order in orders:
        is_taken = False
        for one, other in pairwise(order):
            if is_taken:
                is_taken = False
                continue
            is_forward = placement.blocks[one.block_index].kind is BlockKind.FORWARD
            if is_forward is forward_first and can_pair(placement, one, other):
                found.append((one, other) if forward_first else (other, one))
                is_taken = True
    return tuple(found)


def paired_starts(
    placement: Placement, orders: Orders, pairs: Sequence[tuple[Task, ...]], factor: float
) -> PairedStarts:
    """Return the earliest start of each task where pairs run together; O(tasks + edges).

    A pair that would wait for itself, by way of other devices perhaps, runs apart, in the order of its
    device; so does one of a single micro-batch, whose backward waits for its forward.

    Args:
        orders: of each device.
        pairs: neighbours in the order of a device, each task in one at most; of each the forward, then the
            backward, which may be both of its halves in turn.
        factor: within 0..1.

    Raises:
        DeadlockError: the orders wait for themselves without any pair.
        ScheduleError: a task is missing on a device.
    """
    return _Walk(placement, orders, pairs, factor).run()


class _Walk:
    """One walk over all tasks, each after those it waits for; pairs that block each other come apart."""

    def __init__(
        self, placement: Placement, orders: Orders, pairs: Sequence[tuple[Task, ...]], factor: float
    ) -> None:
        self._placement, self._orders, self._factor = placement, orders, factor
        self._waits = waits_of(placement, orders)
        together = [unit for unit in pairs if unit[0].micro_batch != unit[1].micro_batch]
        self._unit = {task: unit for unit in together for task in unit}
        self._followers: dict[Task, list[tuple[Task, int]]] = {task: [] for task in self._waits}
        self._pending = dict.fromkeys(self._waits, 0)
        self._start = dict.fromkeys(self._waits, 0)
        self._done: dict[tuple[int, int], int] = {}
        self._ends: dict[tuple[int, int], int] = {}
        for task, earlier in self._waits.items():
            for source, delay in earlier:
                lag = delay - placement.blocks[source.block_index].span
                self._followers[source].append((task, lag))
                self._pending[task] += self._unit.get(source) is not self._unit.get(task, task)
        self._ready = [task for task in self._waits if self._is_ready(task)]

    def run(self) -> PairedStarts:
        while True:
            while self._ready:
                task = self._ready.pop()
                if task not in self._done:
                    self._finish(self._unit.get(task, (task,)))
            if len(self._done) == len(self._waits):
                together = dict.fromkeys(self._unit.values())
                return PairedStarts(self._done, self._ends, tuple((unit[0], unit[1]) for unit in together))
            self._part()

    def _is_ready(self, task: Task) -> bool:
        unit = self._unit.get(task)
        if unit is None:
            return not self._pending[task]
        return not any(self._pending[each] for each in unit)

    def _finish(self, unit: tuple[Task, ...]) -> None:
        blocks = self._placement.blocks
        spans = [blocks[task.block_index].span for task in unit]
        span = spans[0] if len(spans) == 1 else pair_span(spans[0], sum(spans[1:]), factor=self._factor)
        start = max(self._start[task] for task in unit)
        self._done |= dict.fromkeys(unit, start)
        self._ends |= dict.fromkeys(unit, start + span)
        for task in unit:
            for follower, lag in self._followers[task]:
                if follower in self._done:
                    continue
                self._start[follower] = max(self._start[follower], start + span + lag)
                self._pending[follower] -= 1
                if not self._pending[follower] and self._is_ready(follower):
                    self._ready.append(follower)

    def _part(self) -> None:
        """Take apart the first pair of a cycle of waits.

        Raises:
            DeadlockError: there is none in it.
        """
        unit = next(self._unit.get(task, (task,)) for task in self._waits if task not in self._done)
        path: list[tuple[Task, ...]] = []
        while unit not in path:
            path.append(unit)
            waited = next(
                source
                for task in unit
                for source, _ in self._waits[task]
                if source not in self._done and source not in unit
            )
            unit = self._unit.get(waited, (waited,))
        cycle = path[path.index(unit) :]
        pair = next((each for each in cycle if len(each) > 1), None)
        if pair is None:
            earliest_starts(self._placement, self._orders)  # which says how they wait for each other
            raise AssertionError("orders wait for themselves only where blocks run together")
        for task in pair:
            del self._unit[task]
        for task in pair:
            self._pending[task] += sum(source in pair for source, _ in self._waits[task])
        self._ready += [task for task in pair if not self._pending[task]]


def saved_steps(placement: Placement, spans: Mapping[Task, int], pairs: Iterable[Pair]) -> int:
    """Return the steps that devices are busy less where pairs run together."""
    blocks = placement.blocks
    return sum(sum(blocks[task.block_index].span for task in pair) - spans[pair[0]] for pair in pairs)
