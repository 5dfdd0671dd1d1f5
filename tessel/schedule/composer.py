"""Tessel's own names for its search: `Composer.compose_n`, `compose` and `compose_fast`.

    >>> from tessel.schedule.composer import Composer                               # doctest: +SKIP
    >>> schedule = Composer.compose_n(placement, memory=4, nmicros=4)               # doctest: +SKIP
    >>> print(schedule.unroll(6))                                                   # doctest: +SKIP

A thin wrapper: the repetend is found by `tessel.search.find_repetend`, exactly and with a proof, so that the
number of micro-batches need not be guessed; `nmicros` is only the number shown. Warm-up and cool-down are the
repetend's own device orders, run as early as they allow, without a barrier between the phases. For the
shortest schedule of a given number of micro-batches, use `tessel.search.find_schedule`.

No solution is an `InfeasibleError` that names the device, where Tessel returns None.
Checked in tests/tessel/test_schedplan.py.

Source: Lin et al., Tessel (HPCA 2024), section 4, whose search this replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tessel import search
from tessel.orders import device_orders, earliest_starts
from tessel.schedule.schedplan import SchedPlan
from tessel.schedule.schedule import Repetend, Schedule
from tessel.validation import find_violations

if TYPE_CHECKING:
    from tessel.search import RepetendResult

WORK = 60.0
"""Units of work that a search may take, about a minute; Tessel's own has no limit."""


class Composer:
    """Searches the schedule of a placement."""

    @staticmethod
    def compose(micro: SchedPlan, memory: int | Sequence[int]) -> SchedPlan:
        """Return the schedule with the least period, of as many micro-batches as its repetend needs.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        return Composer.compose_n(micro, memory, 1)

    @staticmethod
    def compose_n(micro: SchedPlan, memory: int | Sequence[int], nmicros: int) -> SchedPlan:
        """Return the schedule with the least period, of at least so many micro-batches.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.
            nmicros: micro-batches that the schedule shows; more where its repetend needs more.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        if nmicros < 1:
            raise ValueError(f"{nmicros} micro-batches were asked for; give at least 1")
        found = search.find_repetend(micro.to_placement(), memory=memory, budget=search.SearchBudget(WORK))
        return _unrolled(found, max(nmicros, _least_micro_batches(found)))

    @staticmethod
    def compose_fast(
        micro: SchedPlan, memory: int | Sequence[int], wc_ratio: tuple[int, float] | None = None
    ) -> SchedPlan:
        """Return what `compose` returns; the search is exact and fast, so there is no second one.

        Args:
            micro: the placement of one micro-batch.
            memory: limit in units, one for all devices or one per device.
            wc_ratio: without effect; Tessel ends its search when warm-up and cool-down are a small share.

        Raises:
            InfeasibleError: no schedule keeps the limit; the message names the device.
            ScheduleError: the placement is invalid, or nothing was found within `WORK`.
        """
        del wc_ratio
        return Composer.compose(micro, memory)


def _least_micro_batches(found: RepetendResult) -> int:
    """Micro-batches with which the schedule holds one whole period: all that are under way at once."""
    last = max(max(copy) for copy in found.starts)
    return found.copies * (last // found.period + 1)


def _unrolled(found: RepetendResult, micro_batches: int) -> SchedPlan:
    starts = {
        (block, micro_batch): start + (micro_batch // found.copies) * found.period
        for micro_batch in range(micro_batches)
        for block, start in zip(found.block_indices, found.starts[micro_batch % found.copies], strict=True)
    }
    # Kept orders keep the limits; the start may only come closer to the repetend, not the repetend change.
    tight = earliest_starts(found.placement, device_orders(found.placement, starts))
    schedule = _schedule(found, tight, micro_batches)
    if schedule.repetend is None or find_violations(schedule):
        schedule = _schedule(found, starts, micro_batches)
    return SchedPlan.of_schedule(schedule, unroll=lambda nmicros: _unroll(found, nmicros))


def _unroll(found: RepetendResult, nmicros: int) -> SchedPlan:
    if nmicros < 1:
        raise ValueError(f"{nmicros} micro-batches were asked for; give at least 1")
    return _unrolled(found, nmicros)


def _schedule(found: RepetendResult, starts: Mapping[tuple[int, int], int], micro_batches: int) -> Schedule:
    return Schedule.of(
        found.placement,
        starts,
        micro_batches=micro_batches,
        memory=found.memory,
        repetend=_repeating_part(found, starts, micro_batches),
        search_seconds=found.search_seconds,
        found_by=found.found_by,
    )


def _repeating_part(
    found: RepetendResult, starts: Mapping[tuple[int, int], int], micro_batches: int
) -> Repetend | None:
    """The longest interval that is periodic and contains at least one full period, if there is one.

    A start with no match a period later must lie before the interval or in its last period, and one with no
    match a period earlier in its first period or behind it. Shifted by a period both cut alike.
    """
    cuts = {-1}
    for (block, micro_batch), start in starts.items():
        if starts.get((block, micro_batch + found.copies)) != start + found.period:
            cuts.add(start)
        if starts.get((block, micro_batch - found.copies)) != start - found.period:
            cuts.add(start - found.period)
    stretches = [
        (before + 1, after + found.period)
        for before, after in pairwise(sorted(cut for cut in cuts if cut >= -1))
        if _is_whole(found, starts, before + 1)
    ]
    if not stretches:
        return None
    begin, end = max(stretches, key=lambda stretch: (stretch[1] - stretch[0], -stretch[0]))
    return Repetend(
        period=found.period,
        micro_batches=found.copies,
        lower_bound=found.lower_bound,
        optimal=found.optimal,
        start=begin,
        end=end,
    )


def _is_whole(found: RepetendResult, starts: Mapping[tuple[int, int], int], begin: int) -> bool:
    """Whether each block starts as often in the period from a step on as there are copies of it."""
    counts = Counter(block for (block, _), start in starts.items() if begin <= start < begin + found.period)
    return all(counts[block] == found.copies for block in found.block_indices)
