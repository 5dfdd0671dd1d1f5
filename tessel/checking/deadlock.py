"""Cycles of waits in orders that never end, in words.

Each task of the cycle waits for the next one, because it takes its result or gradient, or because it stands
behind it in the order of a device. Checked in tests/tessel/checking/test_deadlock.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.orders import DeadlockError, Orders, Task
from tessel.placement import Placement


def explain_deadlock(placement: Placement, orders: Orders, error: DeadlockError) -> tuple[str, ...]:
    """Return a sentence for each task of the cycle: where it is, what it waits for, and why.

    Args:
        placement: the blocks.
        orders: those that deadlock.
        error: what `earliest_starts` raised for them.
    """
    cycle = shortened(placement, orders, error.cycle)
    return tuple(
        _sentence(placement, orders, task, cycle[(number + 1) % len(cycle)])
        for number, task in enumerate(cycle)
    )


def shortened(placement: Placement, orders: Orders, cycle: Sequence[Task]) -> tuple[Task, ...]:
    """Return the cycle without tasks that only stand between two others in one device's order."""
    if len(cycle) < 3:
        return tuple(cycle)
    place = _places(orders)
    kept = [
        task
        for number, task in enumerate(cycle)
        if not (
            _stands_behind(place, cycle[number - 1], task)
            and _stands_behind(place, task, cycle[(number + 1) % len(cycle)])
        )
    ]
    return tuple(kept)


def _sentence(placement: Placement, orders: Orders, task: Task, other: Task) -> str:
    if any(
        placement.index_by_name[edge.source] == other.block_index
        for edge in placement.edges
        if placement.index_by_name[edge.target] == task.block_index and task.micro_batch == other.micro_batch
    ):
        return f"{_label(placement, task)} takes the result of {_label(placement, other)}"
    return f"{_label(placement, task)} stands behind {_label(placement, other)} in the order of its device"


def _stands_behind(place: dict[Task, list[tuple[int, int]]], task: Task, other: Task) -> bool:
    return any(
        device == same and later > earlier for device, later in place[task] for same, earlier in place[other]
    )


def _places(orders: Orders) -> dict[Task, list[tuple[int, int]]]:
    places: dict[Task, list[tuple[int, int]]] = {}
    for device, order in enumerate(orders):
        for position, task in enumerate(order):
            places.setdefault(task, []).append((device, position))
    return places


def _label(placement: Placement, task: Task) -> str:
    block = placement.blocks[task.block_index]
    devices = ", ".join(map(str, block.devices))
    return f"{block.name}[{task.micro_batch}] on device {devices}"
