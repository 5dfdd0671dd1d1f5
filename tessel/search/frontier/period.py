"""The least period for each memory limit: what more memory buys in the long run.

The limit is the same on every device, in the placement's units. Points are kept only where the rate gets
better, so each next one costs more memory and is faster. Which limits are searched is said in
`tessel.search.frontier.bisection`, what is open where the budget did not do in
`tessel.search.frontier.open_ranges`. Checked in tests/tessel/search/frontier/test_period.py.

    memory 1   16 steps a micro-batch          a four-device vshape with spans 1 and 3
    memory 2    8
    memory 3    16 / 3                         three copies of each block in one period
    memory 4    4                              and no more memory helps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.frontier.bisection import MemoryBisection
from tessel.search.frontier.open_ranges import Frontier
from tessel.search.model.problem import UNLIMITED
from tessel.search.repetend.find_repetend import DEFAULT_MAX_COPIES, find_repetend
from tessel.search.repetend.params import RepetendParams
from tessel.search.repetend.repetend_result import RepetendResult
from tessel.search.repetend.steady_state_memory import steady_peaks

MAX_SHARE = 0.25
"""Part of the budget left that one point may take, so that a hard one does not hide the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """A memory limit worth having.

    Attributes:
        memory: limit in units, one a device, all the same.
        period: least steps found after which a pattern repeats under it.
        copies: micro-batches in one period.
        lower_bound: no repetend of as many copies has a shorter period under it.
        optimal: the period is proven optimal for that number of copies.
    """

    memory: tuple[int, ...]
    period: int
    copies: int
    lower_bound: int
    optimal: bool

    @property
    def rate(self) -> Fraction:
        """Steps a micro-batch takes in the long run."""
        return Fraction(self.period, self.copies)


def find_frontier(
    placement: Placement,
    *,
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    max_copies: int = DEFAULT_MAX_COPIES,
    params: RepetendParams | None = None,
    on_search: Callable[[int], None] | None = None,
) -> Frontier[FrontierPoint]:
    """Return the memory limits worth having, from the least to the one beyond which nothing gets better.

    Args:
        placement: the blocks of one micro-batch.
        budget: what all points together may spend; `DEFAULT_WORK` units of work if left out. Where it is used
            up, points may be missing; `open_ranges` says where.
        time_limit_s: in place of a budget: seconds for all points together, without a limit on work.
        max_copies: most micro-batches in one period, >= 1.
        params: how each search divides its part; the defaults of `RepetendParams` if left out.
        on_search: told how many limits have been searched.

    Raises:
        InfeasibleError: a micro-batch leaves memory behind, so no limit works in the long run.
        ScheduleError: the budget was used up before any repetend was found.
        KeyboardInterrupt: interrupted before that; later, what was found is returned.
    """
    budget = SearchBudget.of(budget, time_limit_s=time_limit_s)
    searched = count(1)

    def search(limit: int | None) -> RepetendResult:
        found = find_repetend(
            placement,
            memory=UNLIMITED - 1 if limit is None else limit,
            max_copies=max_copies,
            budget=budget.part(MAX_SHARE),
            params=params,
        )
        budget.has_answer = True
        if on_search is not None:
            on_search(next(searched))
        return found

    bisection = MemoryBisection(
        placement,
        search,
        value_of=lambda found: found.rate,
        bound_of=lambda found: found.least_rate,
        peak_of=lambda found: max(steady_peaks(found)),
        budget=budget,
    )
    budget.answer = lambda: _frontier(placement, bisection) if any(bisection.found.values()) else None
    try:
        bisection.run()
    except KeyboardInterrupt:
        if not any(bisection.found.values()):
            raise
        budget.interrupt()
    return _frontier(placement, bisection)


def _frontier(placement: Placement, bisection: MemoryBisection[RepetendResult]) -> Frontier[FrontierPoint]:
    points = [
        FrontierPoint(
            memory=(limit,) * placement.devices,
            period=found.period,
            copies=found.copies,
            lower_bound=found.lower_bound,
            optimal=found.optimal,
        )
        for limit, found in bisection.points()
    ]
    return Frontier(
        points,
        open_ranges=bisection.open_ranges(),
        bounds=bisection.known_bounds(),
        stopped_by=bisection.budget.stopped_by,
    )
