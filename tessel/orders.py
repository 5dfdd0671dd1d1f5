"""The earliest start of every block, given the order on each device.

Orders are what hand-written schedules define, what the search varies, and what a runtime executes. Given the
orders, the earliest starts follow from one longest-path computation and are simultaneously minimal: no start
can be earlier without changing an order. A block on several devices appears in the order of each of them.

    orders   device 0: f0[0] f0[1] b0[0]      earliest   f0 f0 .  .  b0 b0
             device 1: f1[0] b1[0] f1[1]                 .  f1 b1 b1 f1 .

Not modelled: memory, which depends on the orders alone. Checked in tests/tessel/test_orders.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tessel.batches import Batch
from tessel.errors import ScheduleError
from tessel.placement import Placement


class Task(NamedTuple):
    """A block of a micro-batch; equal to the plain pair that `Schedule.of` is keyed by."""

    block_index: int
    micro_batch: int


Orders = Sequence[Sequence[Task]]
"""The tasks of each device, first to last."""


class DeadlockError(ScheduleError):
    """Say that tasks wait for each other.

    Attributes:
        cycle: tasks of which each waits for the next, and the last for the first.
    """

    def __init__(self, message: str, cycle: Sequence[Task]) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


def earliest_starts(
    placement: Placement, orders: Orders, batch: Batch | None = None
) -> dict[tuple[int, int], int]:
    """Return the earliest start of each task that the orders and edges allow; O(tasks + edges).

    Edges to and from blocks that a micro-batch does not run do not count, so orders may run any option of a
    choice, or only some micro-batches.

    Args:
        orders: the tasks of each device; a task stands once in the order of each of its block's devices.
        batch: what the blocks take by micro-batch; None where the placement says it of all.

    Returns:
        Task -> start, in an order in which every task comes after those it waits for.

    Raises:
        DeadlockError: the tasks wait for each other; the message names the cycle.
        ScheduleError: a task is missing on a device.
    """
    waits = waits_of(placement, orders, batch)
    followers: dict[Task, list[tuple[Task, int]]] = {task: [] for task in waits}
    for task, earlier in waits.items():
        for source, delay in earlier:
            followers[source].append((task, delay))
    return _longest_paths(placement, waits, followers)


def device_orders(
    placement: Placement, starts: Mapping[tuple[int, int], int], batch: Batch | None = None
) -> tuple[tuple[Task, ...], ...]:
    """Return the order in which each device runs these starts.

    Of blocks that start together, one of span 0 comes first, and of several such the one that comes first in
    a topological order of the edges.
    """
    rank = {name: rank for rank, name in enumerate(placement.topological_order)}
    place = [rank[block.name] for block in placement.blocks]
    rows = [[span > 0 for span in own] for own in _span_rows(placement, batch)]
    sequence = _sequence(batch)
    key = {
        task: (
            start,
            (rows[0] if sequence is None else rows[sequence[task[1]]])[task[0]],
            task[1],
            place[task[0]],
        )
        for task, start in starts.items()
    }
    orders: list[list[Task]] = [[] for _ in range(placement.devices)]
    for task in sorted(starts, key=key.__getitem__):
        for device in placement.blocks[task[0]].devices:
            orders[device].append(Task(*task))
    return tuple(map(tuple, orders))


_Waits = dict[Task, list[tuple[Task, int]]]
"""For each task those it waits for, with the least distance between the two starts."""


def waits_of(placement: Placement, orders: Orders, batch: Batch | None = None) -> _Waits:
    """Return what each task waits for, by orders and edges, and how long after the start of that.

    Args:
        orders: the tasks of each device.
        batch: what the blocks take by micro-batch; None where the placement says it of all.

    Raises:
        ScheduleError: see `earliest_starts`.
    """
    waits: _Waits = {task: [] for order in orders for task in order}
    _check_tasks(placement, orders, waits)
    spans, lags = _span_rows(placement, batch), _lag_rows(placement, batch)
    predecessors = [_predecessors(placement, *own) for own in zip(spans, lags, strict=True)]
    sequence = _sequence(batch)
    for order in orders:
        for before, after in pairwise(order):
            own = spans[0] if sequence is None else spans[sequence[before.micro_batch]]
            waits[after].append((before, own[before.block_index]))
    for task, earlier in waits.items():
        rows = predecessors[0] if sequence is None else predecessors[sequence[task.micro_batch]]
        for source, delay in rows[task.block_index]:
            before = Task(source, task.micro_batch)
            if before in waits:
                earlier.append((before, delay))
    return waits


def _sequence(batch: Batch | None) -> tuple[int, ...] | None:
    """Return the class of each micro-batch; None where all are alike, of which there may be thousands."""
    return None if batch is None or len(batch.classes) == 1 else batch.sequence


def _span_rows(placement: Placement, batch: Batch | None) -> Sequence[Sequence[int]]:
    """Return the spans by class and block; one row without a batch."""
    if batch is None:
        return [[block.span for block in placement.blocks]]
    return [each.spans for each in batch.classes]


def _lag_rows(placement: Placement, batch: Batch | None) -> Sequence[Sequence[int]]:
    if batch is None:
        return [[edge.lag for edge in placement.edges]]
    return [each.lags for each in batch.classes]


def _predecessors(
    placement: Placement, spans: Sequence[int], lags: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Return for each block what comes before it, with the least distance between the two starts."""
    index = placement.index_by_name
    found: list[list[tuple[int, int]]] = [[] for _ in placement.blocks]
    for edge, lag in zip(placement.edges, lags, strict=True):
        source = index[edge.source]
        found[index[edge.target]].append((source, spans[source] + lag))
    return found


def _check_tasks(placement: Placement, orders: Orders, waits: _Waits) -> None:
    if len(orders) != placement.devices:
        raise ValueError(
            f"{len(orders)} orders were given for {placement.devices} devices; give one per device"
        )
    places = 0
    for device, order in enumerate(orders):
        places += len(order)
        for task in order:
            if device not in placement.blocks[task.block_index].devices:
                raise ValueError(
                    f"{_label(placement, task)} stands in the order of device {device}, where the block does "
                    "not run; list it on its own devices"
                )
        if len(set(order)) != len(order):
            raise ScheduleError(f"the order of device {device} has a task twice; list each task once")
    if places == sum(len(placement.blocks[task.block_index].devices) for task in waits):
        return
    for task in waits:
        for device in placement.blocks[task.block_index].devices:
            if task not in orders[device]:
                raise ScheduleError(
                    f"{_label(placement, task)} is missing in the order of device {device}, which it also "
                    "holds; list it on each of its devices"
                )


def _longest_paths(placement: Placement, waits: _Waits, followers: _Waits) -> dict[tuple[int, int], int]:
    pending = {task: len(earlier) for task, earlier in waits.items()}
    start = dict.fromkeys(waits, 0)
    ready = [task for task, count in pending.items() if count == 0]
    done: dict[tuple[int, int], int] = {}
    while ready:
        task = ready.pop()
        done[task] = start[task]
        for follower, delay in followers[task]:
            start[follower] = max(start[follower], start[task] + delay)
            pending[follower] -= 1
            if pending[follower] == 0:
                ready.append(follower)
    if len(done) < len(waits):
        raise _deadlock(placement, waits, done)
    return done


def _deadlock(placement: Placement, waits: _Waits, done: Mapping[tuple[int, int], int]) -> DeadlockError:
    """Follow tasks that wait for tasks that wait, until one comes round again."""
    task = next(task for task in waits if task not in done)
    path: list[Task] = []
    while task not in path:
        path.append(task)
        task = next(source for source, _ in waits[task] if source not in done)
    cycle = path[path.index(task) :]
    waits_for = " waits for ".join(_label(placement, each) for each in [*cycle, task])
    return DeadlockError(
        f"the device orders deadlock: {waits_for}; put one of these tasks earlier in its device's order",
        cycle,
    )


def _label(placement: Placement, task: Task) -> str:
    return f"{placement.blocks[task.block_index].name}[{task.micro_batch}]"
