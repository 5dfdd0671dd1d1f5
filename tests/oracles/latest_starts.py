"""The latest start of every block when each device's order is given, from the definition: an oracle."""

from __future__ import annotations

from itertools import pairwise

from tessel.orders import Orders, earliest_starts
from tessel.placement import Placement


def latest_starts(placement: Placement, orders: Orders, makespan: int) -> dict[tuple[int, int], int]:
    """Return the latest starts with which every block of every micro-batch still ends by `makespan`."""
    blocks, index = placement.blocks, placement.index_by_name
    order = [tuple(task) for task in earliest_starts(placement, orders)]
    latest = {task: makespan - blocks[task[0]].span for task in order}
    pairs = [(tuple(before), tuple(after), 0) for each in orders for before, after in pairwise(each)]
    for edge in placement.edges:
        source, target = index[edge.source], index[edge.target]
        pairs += [
            ((source, number), (target, number), edge.lag)
            for block, number in order
            if block == source and (target, number) in latest
        ]
    for task in reversed(order):
        for before, after, lag in pairs:
            if before == task:
                latest[before] = min(latest[before], latest[after] - blocks[before[0]].span - lag)
    return latest
