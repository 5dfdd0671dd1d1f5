"""The state of a schedule that is being listed, and what says which task is taken first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessel.search.model.instance import InstanceArrays, IntArray
from tessel.search.model.precedence import as_array, flat_rows

NEVER = 1 << 62
"""Later than any step of any schedule."""


class Dispatch(NamedTuple):
    """Which of the tasks that could come next is taken; all int64.

    Attributes:
        priority: by task, the lowest first, ties by earliest start, then by block; empty for the rest here.
        group: by block, the lowest first; then what has been ready for longest, then the earlier micro-batch.
        rank: by block, the lowest first where even that is equal.
        in_flight: by block, how many micro-batches it may be ahead of its closing blocks; 0 for no limit.
        closing_start: rows of `closing` by block.
        closing: blocks whose start says that a micro-batch of the block is no longer in flight.
        opening_start: rows of `opening` by block.
        opening: blocks that a block is a closing one of.
    """

    priority: IntArray
    group: IntArray
    rank: IntArray
    in_flight: IntArray
    closing_start: IntArray
    closing: IntArray
    opening_start: IntArray
    opening: IntArray


def by_priority(arrays: InstanceArrays, priority: IntArray) -> Dispatch:
    """Return the dispatch by a priority of each task, the lowest first."""
    none = np.zeros(arrays.num_blocks, dtype=np.int64)
    rows = flat_rows([()] * arrays.num_blocks)
    return Dispatch(priority, none, none, none, *rows, *rows)


def by_preference(
    arrays: InstanceArrays,
    *,
    group: IntArray,
    rank: IntArray,
    in_flight: Mapping[int, int],
    closing: Mapping[int, Sequence[int]],
) -> Dispatch:
    """Return the dispatch first come, first served, among blocks of equal group.

    Args:
        group: by block, the lowest first.
        rank: by block, for what is otherwise equal.
        in_flight: by block, how many micro-batches it may be ahead, >= 1; blocks left out have no limit.
        closing: for each of these blocks, those that it may be ahead of.
    """
    limits = np.zeros(arrays.num_blocks, dtype=np.int64)
    opening: list[list[int]] = [[] for _ in range(arrays.num_blocks)]
    for block, limit in in_flight.items():
        limits[block] = limit
        for closer in closing[block]:
            opening[closer].append(block)
    rows = [closing[block] if block in in_flight else () for block in range(arrays.num_blocks)]
    return Dispatch(as_array(()), group, rank, limits, *flat_rows(rows), *flat_rows(opening))


class Listing(NamedTuple):
    """A schedule that is being listed; all int64.

    Attributes:
        start: by task, -1 where it has not started, or is not run.
        options: option by choice and micro-batch, -1 where undecided.
        free: step from which each device is free.
        held: units on each device.
        peak: most units on each device so far.
        following: next micro-batch of each block.
        makespan: one number, the last end so far.
        last_end: by block, the end of its last task so far.
        since: by block, when its next task had all it waits for but devices.
        earliest: by block, when its next task could start; -1 while it waits, or does not fit.
        is_waiting_for_room: by block, 1 where it did not fit.
        tree: by node, when the first task below it could end (start, where devices do not idle).
    """

    start: IntArray
    options: IntArray
    free: IntArray
    held: IntArray
    peak: IntArray
    following: IntArray
    makespan: IntArray
    last_end: IntArray
    since: IntArray
    earliest: IntArray
    is_waiting_for_room: IntArray
    tree: IntArray
