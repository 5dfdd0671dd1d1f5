"""A finished schedule from its starts, with the part that repeats: what DESIGN calls its repetend.

For k copies and a period T, a task of micro-batch m matches when the same block of micro-batch m + k starts T
later. The longest stretch of time in which every task matches both ways is the repeating part, if it holds
two whole periods or more. Checked in tests/tessel/search/makespan/test_repeating_part.py with the independent
validation.

    f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 b4 b5
             |----------------|              two steps a period, one copy
"""

from __future__ import annotations

import numpy as np

from tessel.schedule.schedule import Repetend, Schedule
from tessel.search.model.instance import Instance, IntArray

MAX_COPIES = 8
"""Most micro-batches in a period that are looked for."""

SAMPLED_BLOCKS = 8
"""Blocks that are looked at before all are, about."""

SAMPLED_DISTANCES = 20_000
"""Distances between copies that are counted, about."""


def find_repeating_part(instance: Instance, start: IntArray) -> Repetend | None:
    """Return the repeating part with the fewest copies, or None if nothing repeats.

    Args:
        instance: what was scheduled.
        start: start by task, -1 where a task is not run.
    """
    table = start.reshape(instance.micro_batches, instance.num_blocks)
    # What repeats does so for every block: a few columns, from first to last, tell most often that none does.
    choice = instance.arrays.choice
    stride = max(1, instance.num_blocks // SAMPLED_BLOCKS)
    for copies in range(1, min(MAX_COPIES, (instance.micro_batches - 1) // 2) + 1):
        for period in _periods(table, copies):
            if _window(table[:, ::stride], choice[::stride], copies, period) is None:
                continue
            window = _window(table, choice, copies, period)
            if window is not None:
                least = copies * int(instance.least_work().max())
                return Repetend(
                    period=period,
                    micro_batches=copies,
                    lower_bound=min(least, period),
                    optimal=period == least,
                    start=window[0],
                    end=window[1],
                )
    return None


def schedule_of(
    instance: Instance, start: IntArray, *, lower_bound: int, search_seconds: float, found_by: str
) -> Schedule:
    """Return the schedule of these starts, with its repeating part.

    Args:
        instance: what was scheduled.
        start: start by task, -1 where a task is not run.
        lower_bound: no schedule of the instance is shorter.
        search_seconds: seconds it took to find.
    """
    micro_batch, block = np.nonzero(start.reshape(instance.micro_batches, instance.num_blocks) >= 0)
    return Schedule.of_tasks(
        instance.placement,
        block,
        micro_batch,
        start[start >= 0],
        micro_batches=instance.micro_batches,
        memory=instance.memory,
        lower_bound=lower_bound,
        repetend=find_repeating_part(instance, start),
        search_seconds=search_seconds,
        found_by=found_by,
    )


def _periods(table: IntArray, copies: int) -> list[int]:
    """The distances between the copies of a block that occur most often, at most two."""
    stride = 1 + table.size // SAMPLED_DISTANCES
    earlier, later = table[:-copies].ravel()[::stride], table[copies:].ravel()[::stride]
    distances = (later - earlier)[(later >= 0) & (earlier >= 0)]
    found, counts = np.unique(distances[distances > 0], return_counts=True)
    return [int(each) for each in found[np.lexsort((found, -counts))][:2]]


def _window(table: IntArray, choice: IntArray, copies: int, period: int) -> tuple[int, int] | None:
    """The longest window in which these blocks repeat, if every one of them does."""
    window = _longest_window(table, copies, period)
    if window is None or not _is_complete(table, choice, window[0], copies, period):
        return None
    return window


def _longest_window(table: IntArray, copies: int, period: int) -> tuple[int, int] | None:
    """The longest [start, end) in which every task has its match later and earlier, two periods or more."""
    is_run = table >= 0
    later = np.zeros_like(is_run)
    later[:-copies] = is_run[:-copies] & (table[copies:] == table[:-copies] + period)
    earlier = np.zeros_like(is_run)
    earlier[copies:] = is_run[copies:] & (table[:-copies] == table[copies:] - period)
    # A task without a later match starts before the window or in its last period; one without an earlier
    # match starts in its first period or after it. Shifted by a period, both cut the same stretch of time.
    cuts = np.concatenate([table[is_run & ~later], table[is_run & ~earlier] - period])
    ends = np.sort(np.append(cuts[cuts >= 0], -1))
    ends = np.append(ends, max(int(table.max()), int(ends[-1])))
    # The widest gap between two starts without a match, the first of several: the window begins after the
    # one, a period before the other.
    widest = int(np.diff(ends).argmax())
    start, end = int(ends[widest]) + 1, int(ends[widest + 1]) + period
    return (start, end) if end - start >= 2 * period else None


def _is_complete(table: IntArray, choice: IntArray, begin: int, copies: int, period: int) -> bool:
    """Whether each block outside choices starts as often as there are copies in the first period."""
    counts = ((table >= begin) & (table < begin + period)).sum(axis=0)
    return bool((counts[choice < 0] == copies).all())
