"""A finished schedule from its starts, with the part that repeats: what DESIGN calls its repetend.

For k copies and a period T, a task of micro-batch m matches when the same block of micro-batch m + k starts T
later. The longest stretch of time in which every task matches both ways is the repeating part, if it holds
two whole periods or more. Checked in tests/tessel/search/makespan/test_repeating_part.py with the independent
validation.

    f0 f1 f2 b0 f3 b1 f4 b2 f5 b3 b4 b5
             |----------------|              two steps a period, one copy
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from tessel.schedule.schedule import Repetend, Schedule
from tessel.search.model.instance import Instance, InstanceArrays, IntArray

MAX_COPIES = 8
"""Most micro-batches in a period that are looked for."""


def find_repeating_part(instance: Instance, start: IntArray) -> Repetend | None:
    """Return the repeating part with the fewest copies, or None if nothing repeats.

    Args:
        instance: what was scheduled.
        start: start by task, -1 where a task is not run.
    """
    placement = instance.placement
    table = start.reshape(instance.micro_batches, instance.num_blocks)
    for copies in range(1, min(MAX_COPIES, (instance.micro_batches - 1) // 2) + 1):
        for period in _periods(table, copies):
            window = _longest_window(table, copies, period)
            if window is not None and _is_complete(instance.arrays, table, window[0], copies, period):
                least = copies * max(placement.work(device) for device in range(placement.devices))
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
        found_by: the method that found it.
    """
    starts = {
        (task % instance.num_blocks, task // instance.num_blocks): int(start[task])
        for task in map(int, np.flatnonzero(start >= 0))
    }
    return Schedule.of(
        instance.placement,
        starts,
        micro_batches=instance.micro_batches,
        memory=instance.memory,
        lower_bound=lower_bound,
        repetend=find_repeating_part(instance, start),
        search_seconds=search_seconds,
        found_by=found_by,
    )


def _periods(table: IntArray, copies: int) -> list[int]:
    """The distances between the copies of a block that occur most often, at most two."""
    is_run = (table[copies:] >= 0) & (table[:-copies] >= 0)
    distances = (table[copies:] - table[:-copies])[is_run]
    counted = Counter(int(distance) for distance in distances if distance > 0)
    return [period for period, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:2]]


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
    ends = sorted({int(cut) for cut in cuts if cut >= 0} | {-1})
    last = int(table.max())
    # `low` and `high` are starts without a match: the window begins after one, a period before the next.
    low, high = max(pairwise([*ends, max(last, ends[-1])]), key=lambda pair: (pair[1] - pair[0], -pair[0]))
    start, end = low + 1, high + period
    return (start, end) if end - start >= 2 * period else None


def _is_complete(arrays: InstanceArrays, table: IntArray, begin: int, copies: int, period: int) -> bool:
    """Whether each block outside choices starts as often as there are copies in the first period."""
    counts = ((table >= begin) & (table < begin + period)).sum(axis=0)
    return bool((counts[arrays.choice < 0] == copies).all())
