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

import networkx as nx

from tessel.errors import ScheduleError
from tessel.placement import Placement


class Step(NamedTuple):
    """A block of a micro-batch; equal to the plain pair that `Schedule.of` is keyed by."""

    block_index: int
    micro_batch: int


Orders = Sequence[Sequence[Step]]
"""The steps of each device, first to last."""


def earliest_starts(placement: Placement, orders: Orders) -> dict[tuple[int, int], int]:
    """Return the earliest start of each step that the orders and edges allow; O(steps + edges).

    Edges to and from blocks that a micro-batch does not run do not count, so orders may run any option of a
    choice, or only some micro-batches.

    Args:
        placement: the blocks.
        orders: the steps of each device; a step stands once in the order of each of its block's devices.

    Returns:
        Step -> start, in an order in which every step comes after those it waits for.

    Raises:
        ScheduleError: the steps wait for each other (the message names the cycle), or one is missing on a
            device.
    """
    waits = _waits(placement, orders)
    followers: dict[Step, list[tuple[Step, int]]] = {step: [] for step in waits}
    for step, earlier in waits.items():
        for source, delay in earlier:
            followers[source].append((step, delay))
    return _longest_paths(placement, waits, followers)


def device_orders(
    placement: Placement, starts: Mapping[tuple[int, int], int]
) -> tuple[tuple[Step, ...], ...]:
    """Return the order in which each device runs these starts.

    Of blocks that start together, one of span 0 comes first, and of several such the one that comes first in
    a topological order of the edges.
    """
    rank = {name: rank for rank, name in enumerate(nx.topological_sort(placement.graph))}
    key = {
        step: (start, placement.blocks[step[0]].span > 0, step[1], rank[placement.blocks[step[0]].name])
        for step, start in starts.items()
    }
    orders: list[list[Step]] = [[] for _ in range(placement.devices)]
    for step in sorted(starts, key=key.__getitem__):
        for device in placement.blocks[step[0]].devices:
            orders[device].append(Step(*step))
    return tuple(map(tuple, orders))


_Waits = dict[Step, list[tuple[Step, int]]]
"""For each step those it waits for, with the least distance between the two starts."""


def _waits(placement: Placement, orders: Orders) -> _Waits:
    waits: _Waits = {step: [] for order in orders for step in order}
    _check_steps(placement, orders, waits)
    blocks = placement.blocks
    for order in orders:
        for before, after in pairwise(order):
            waits[after].append((before, blocks[before.block_index].span))
    index = placement.index_by_name
    edges = [(index[edge.source], index[edge.target], edge.lag) for edge in placement.edges]
    predecessors: list[list[tuple[int, int]]] = [[] for _ in blocks]
    for source, target, lag in edges:
        predecessors[target].append((source, blocks[source].span + lag))
    for step, earlier in waits.items():
        for source, delay in predecessors[step.block_index]:
            before = Step(source, step.micro_batch)
            if before in waits:
                earlier.append((before, delay))
    return waits


def _check_steps(placement: Placement, orders: Orders, waits: _Waits) -> None:
    if len(orders) != placement.devices:
        raise ValueError(
            f"{len(orders)} orders were given for {placement.devices} devices; give one per device"
        )
    places = 0
    for device, order in enumerate(orders):
        places += len(order)
        for step in order:
            if device not in placement.blocks[step.block_index].devices:
                raise ValueError(
                    f"{_label(placement, step)} stands in the order of device {device}, where the block does "
                    "not run; list it on its own devices"
                )
        if len(set(order)) != len(order):
            raise ScheduleError(f"the order of device {device} has a step twice; list each step once")
    if places == sum(len(placement.blocks[step.block_index].devices) for step in waits):
        return
    for step in waits:
        for device in placement.blocks[step.block_index].devices:
            if step not in orders[device]:
                raise ScheduleError(
                    f"{_label(placement, step)} is missing in the order of device {device}, which it also "
                    "holds; list it on each of its devices"
                )


def _longest_paths(placement: Placement, waits: _Waits, followers: _Waits) -> dict[tuple[int, int], int]:
    pending = {step: len(earlier) for step, earlier in waits.items()}
    start = dict.fromkeys(waits, 0)
    ready = [step for step, count in pending.items() if count == 0]
    done: dict[tuple[int, int], int] = {}
    while ready:
        step = ready.pop()
        done[step] = start[step]
        for follower, delay in followers[step]:
            start[follower] = max(start[follower], start[step] + delay)
            pending[follower] -= 1
            if pending[follower] == 0:
                ready.append(follower)
    if len(done) < len(waits):
        raise ScheduleError(_dead_lock(placement, waits, done))
    return done


def _dead_lock(placement: Placement, waits: _Waits, done: Mapping[tuple[int, int], int]) -> str:
    """Follow steps that wait for steps that wait, until one comes round again."""
    step = next(step for step in waits if step not in done)
    path: list[Step] = []
    while step not in path:
        path.append(step)
        step = next(source for source, _ in waits[step] if source not in done)
    cycle = [*path[path.index(step) :], step]
    return (
        f"the device orders deadlock: {' waits for '.join(_label(placement, step) for step in cycle)}; "
        "put one of these steps earlier in its device's order"
    )


def _label(placement: Placement, step: Step) -> str:
    return f"{placement.blocks[step.block_index].name}[{step.micro_batch}]"
