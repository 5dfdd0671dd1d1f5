"""Warm-up and cool-down from a repetend, without barriers: cut it to N micro-batches and close up.

The periodic schedule says in which order each device runs its tasks. Of that endless order keep the tasks of
N micro-batches, and start each as soon as its devices and what it waits for allow: the ramps fall into place,
and what repeats in the middle keeps its period. A device holds at no time more than in the endless order, so
the memory limits hold as well.

    endless    … b0 f2 b1 f3 b2 f4 b3 …
    N = 3      f0 f1 b0 f2 b1 b2

Checked in tests/tessel/search/makespan/test_warmup_cooldown.py against the figures of docs and the
independent validation.
"""

from __future__ import annotations

import time

import numpy as np

from tessel.errors import ScheduleError
from tessel.schedule.schedule import Schedule
from tessel.search.makespan.device_orders import earliest_starts, orders_of
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.lower_bounds import makespan_lower_bound
from tessel.search.makespan.repeating_part import schedule_of
from tessel.search.model.instance import Instance, IntArray, build_instance
from tessel.search.repetend.find_repetend import find_repetend
from tessel.search.repetend.repetend_result import RepetendResult

MANY_BLOCKS = 64
"""Blocks from which on a repetend is not begun where its share would not do."""

LEAST_OPERATIONS_A_BLOCK = 1_000_000
"""Operations a block that its search then takes: it looks at the budget too rarely to be cut off."""


def offer_ramps(best: Incumbent) -> None:
    """PricedCandidate the schedules that repetends give when they are cut.

    Args:
        best: where to offer; its budget is charged.
    """
    instance = best.instance
    for copies in best.params.repetend_copies:
        if best.is_over or copies > instance.micro_batches:
            return
        budget = best.budget.part(best.params.repetend_share)
        least = LEAST_OPERATIONS_A_BLOCK * instance.num_blocks
        if instance.num_blocks > MANY_BLOCKS and not budget.covers(least):
            return
        try:
            repetend = find_repetend(
                instance.placement, memory=instance.memory, max_copies=copies, budget=budget
            )
        except ScheduleError:  # none was found within the share
            return
        best.offer(cut_repetend(instance, repetend), "repetend with ramps")
        if repetend.rate_optimal:
            return


def unroll_repetend(repetend: RepetendResult, *, micro_batches: int) -> Schedule:
    """Return the whole schedule of so many micro-batches that a repetend gives when it is cut.

    No search follows: it takes milliseconds, and its ramps may be longer than `find_schedule`'s.

    Args:
        repetend: found under the limits that the schedule is to keep.
        micro_batches: how many are run, >= 1.
    """
    began = time.monotonic()
    placement, memory = repetend.placement, repetend.memory
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    start = cut_repetend(instance, repetend)
    return schedule_of(
        instance,
        start,
        lower_bound=makespan_lower_bound(placement, micro_batches=micro_batches, memory=memory),
        search_seconds=repetend.search_seconds + time.monotonic() - began,
        found_by="repetend with ramps",
    )


def cut_repetend(instance: Instance, repetend: RepetendResult) -> IntArray:
    """Return the starts by task of the repetend cut to the instance's micro-batches; -1 for tasks not run.

    Args:
        instance: what is scheduled.
        repetend: found under the instance's limits, for the same placement.
    """
    start = np.full((instance.micro_batches, instance.num_blocks), -1, dtype=np.int64)
    blocks = np.array(repetend.block_indices)
    for micro_batch in range(instance.micro_batches):
        lap, copy = divmod(micro_batch, repetend.copies)
        start[micro_batch, blocks] = np.array(repetend.starts[copy]) + lap * repetend.period
    return earliest_starts(instance.arrays, orders_of(instance.arrays, start.reshape(-1)))
