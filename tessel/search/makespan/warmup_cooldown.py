"""Warm-up and cool-down from a repetend, without barriers: cut it to N micro-batches and close up.

The periodic schedule says in which order each device runs its tasks. Of that endless order keep the tasks of
N micro-batches, and start each as soon as its devices and what it waits for allow: warm-up and cool-down
fall into place, and what repeats in the middle keeps its period. Where no micro-batch frees before it adds, a
device holds at no time more than in the endless order, so the memory limits hold as well.

    endless    … b0 f2 b1 f3 b2 f4 b3 …
    N = 3      f0 f1 b0 f2 b1 b2

Checked in tests/tessel/search/makespan/test_warmup_cooldown.py against the figures of docs and the
independent validation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tessel.errors import ScheduleError
from tessel.schedule.schedule import Schedule
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.device_orders import Orders, earliest_starts, keeps_limits, orders_of
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.makespan.repeating_part import schedule_of
from tessel.search.model.instance import Instance, build_instance
from tessel.search.model.memory_need import NEVER_AMPLE
from tessel.search.repetend.find_repetend import find_repetend_of
from tessel.search.repetend.params import RepetendParams
from tessel.search.repetend.repetend_result import RepetendResult

MANY_BLOCKS = 64
"""Blocks from which on a repetend is not begun where its share would not do."""

LEAST_OPERATIONS_A_BLOCK = 1_000_000
"""Operations a block that its search then takes: it looks at the budget too rarely to be cut off."""


@dataclass(slots=True)
class RepetendSearch:
    """Searches for the repetend that is cut to a whole schedule, each longer than the one before.

    Attributes:
        best: where to offer; its budget is charged.
        work: units of work of each search of the next round.
        is_done: whether more work finds nothing new.
    """

    best: Incumbent
    work: float
    is_done: bool

    @classmethod
    def of(cls, best: Incumbent) -> RepetendSearch:
        """Return searches that have not begun."""
        return cls(best, best.params.first_repetend_work, Phase.REPETENDS in best.params.left_out)

    def run(self) -> None:
        """Search a round and offer what it gives, when it is time for one."""
        best, params = self.best, self.best.params
        is_first = self.work == params.first_repetend_work
        is_due = self.work * OPERATIONS_A_UNIT <= params.repetend_share * best.budget.operations
        if self.is_done or best.is_over or not (is_first or is_due):
            return
        budget = best.budget.part_of_work(self.work)
        self.is_done = self._offer(budget) or budget.is_proven
        self.work *= 4

    def _offer(self, budget: SearchBudget) -> bool:
        """Offer the repetend of one copy; return whether no other can be better."""
        instance = self.best.instance
        least = LEAST_OPERATIONS_A_BLOCK * instance.num_blocks
        if instance.num_blocks > MANY_BLOCKS and not budget.covers(least):
            return False
        try:
            repetend = find_repetend_of(instance, max_copies=1, budget=budget, params=RepetendParams())
        except ScheduleError:  # none was found within the work
            return False
        # With a higher limit another one would be found in its place.
        if not budget.is_proven and budget.is_cut_by_whole:
            return False
        orders = _cut_orders(instance, repetend)
        if _keeps_limits(instance, orders):
            self.best.offer(earliest_starts(instance.arrays, orders), "repetend with warm-up and cool-down")
        return repetend.rate_optimal


def unroll_repetend(repetend: RepetendResult, *, micro_batches: int) -> Schedule:
    """Return the whole schedule of so many micro-batches that a repetend gives when it is cut.

    No search follows: it takes milliseconds, and its warm-up and cool-down may be longer than those of
    `find_schedule`.

    Args:
        repetend: found under the limits that the schedule is to keep.
        micro_batches: how many are run, >= 1.

    Raises:
        ScheduleError: the repetend keeps its limits only in the long run.
    """
    began = time.monotonic()
    instance = build_instance(repetend.placement, micro_batches=micro_batches, memory=repetend.memory)
    orders = _cut_orders(instance, repetend)
    if not _keeps_limits(instance, orders):
        raise ScheduleError(
            f"the first of {micro_batches} micro-batches would hold more than the limits: the repetend "
            "relies on what earlier ones have freed before they add; use `find_schedule`"
        )
    return schedule_of(
        instance,
        earliest_starts(instance.arrays, orders),
        lower_bound=makespan_lower_bound(instance),
        search_seconds=repetend.search_seconds + time.monotonic() - began,
        found_by="repetend with warm-up and cool-down",
    )


def _keeps_limits(instance: Instance, orders: Orders) -> bool:
    """A repetend whose micro-batches free before they add may keep its limits only in the long run."""
    is_lent = (instance.arrays.ample >= NEVER_AMPLE).any()
    return not is_lent or keeps_limits(instance.arrays, orders)


def _cut_orders(instance: Instance, repetend: RepetendResult) -> Orders:
    """The orders of all devices in which the repetend runs the instance's micro-batches."""
    start = np.full((instance.micro_batches, instance.num_blocks), -1, dtype=np.int64)
    blocks = np.array(repetend.block_indices)
    for micro_batch in range(instance.micro_batches):
        iteration, copy = divmod(micro_batch, repetend.copies)
        start[micro_batch, blocks] = np.array(repetend.starts[copy]) + iteration * repetend.period
    return orders_of(instance.arrays, start.reshape(-1))
