"""The least number of steps in which a pattern of micro-batches can repeat, under the memory limits.

    device 0   f0 b0 b0 b0 f0 b0 b0 b0 …       period 4: the busiest device never waits
    device 1   …  f1 b1 b1 b1 f1 b1 b1 b1 …

One copy of each block in a period is tried first, then several: with a limit between two whole numbers of
micro-batches in flight, several copies come closer to it (four-device vshape, memory 3: 8 steps with one
copy, 16 / 3 with three). With choices, option assignments are searched in the order of their bounds, and
those whose bound is no better than the best period found are ruled out unsearched; all copies take the same
options.
Checked in tests/tessel/search/repetend/test_find_repetend.py, against CP-SAT and `tessel.validation`.

Source: Tessel (HPCA 2024), section 4, for repetends; the search is in
`tessel.search.repetend.branch_and_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.model.instance import Instance, build_instance
from tessel.search.model.problem import IntArray, Problem
from tessel.search.repetend.assignments import Assignments, list_assignments
from tessel.search.repetend.cyclic_problem import make_cyclic_problem
from tessel.search.repetend.cyclic_starts import close_up
from tessel.search.repetend.infeasibility import infeasible_error
from tessel.search.repetend.latency import shorten_latency
from tessel.search.repetend.params import RepetendParams
from tessel.search.repetend.period_search import PeriodSearch
from tessel.search.repetend.repetend_result import RepetendResult

__all__ = ["RepetendResult", "find_repetend"]

DEFAULT_MAX_COPIES = 4
"""Copies tried unless told otherwise; more rarely pay, and each costs more than the one before."""

OPERATIONS_AN_ASSIGNMENT = 500_000
"""Charged for each way to take the options: its arrays, bounds and rules."""


def find_repetend(
    placement: Placement,
    *,
    memory: Sequence[int] | int | None = None,
    max_copies: int = DEFAULT_MAX_COPIES,
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    params: RepetendParams | None = None,
) -> RepetendResult:
    """Return the repetend with the least period for each micro-batch in it; fewer copies win a tie.

    The search is exact. Within its budget it may end with a gap, which the bounds then show. An interrupt
    (Ctrl-C, or `budget.interrupt`) ends it like a budget that is used up once there is something to return.

    Args:
        placement: the blocks of one micro-batch.
        memory: limit in units, one for all devices or one a device; None for none.
        max_copies: most micro-batches in one period, >= 1.
        budget: what may be spent, who is told of each better period, and the clock; `DEFAULT_WORK` units of
            work if left out.
        time_limit_s: in place of a budget: seconds after which the best so far is returned, looked at every
            few tenths of a second, without a limit on work.
        params: how the budget is divided; the defaults of `RepetendParams` if left out.

    Raises:
        InfeasibleError: no period is long enough for the limits.
        ScheduleError: the budget was used up before any repetend was found.
        ValueError: `max_copies` or the number of limits is wrong.
    """
    if max_copies < 1:
        raise ValueError(f"max_copies is {max_copies}; a repetend has at least one copy of each block")
    return find_repetend_of(
        build_instance(placement, micro_batches=1, memory=memory),
        max_copies=max_copies,
        budget=SearchBudget.of(budget, time_limit_s=time_limit_s),
        params=params or RepetendParams(),
    )


def find_repetend_of(
    instance: Instance, *, max_copies: int, budget: SearchBudget, params: RepetendParams
) -> RepetendResult:
    """Return what `find_repetend` does for an instance's placement and limits.

    Args:
        instance: what repeats; its number of micro-batches does not matter.
        max_copies: most micro-batches in one period, >= 1.
        budget: what may be spent.
        params: how it is divided.

    Raises:
        InfeasibleError: no period is long enough for the limits.
        ScheduleError: the budget was used up before any repetend was found.
    """
    assignments = list_assignments(instance, params)
    budget.charge(OPERATIONS_AN_ASSIGNMENT * len(assignments.problems))
    run = _Run(budget=budget, part=budget, max_copies=max_copies, params=params)
    budget.answer = lambda: None if run.best is None else _result(assignments, run.best, run)
    try:
        best = _search_all_copies(assignments, run)
        starts = shorten_latency(best.problem, best.starts, best.period, budget, params)
    except KeyboardInterrupt:
        if run.best is None:
            raise
        budget.interrupt()
        best, starts = run.best, run.best.starts
    found = _result(assignments, replace(best, starts=starts), run)
    budget.is_proven = found.rate == found.least_rate
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    """A repetend and the bound on those with as many copies."""

    problem: Problem
    copies: int
    period: int
    starts: IntArray
    lower_bound: int
    found_by: str

    @property
    def rate(self) -> Fraction:
        return Fraction(self.period, self.copies)


@dataclass(slots=True)
class _Run:
    """What one call may spend, and what it knows.

    Attributes:
        budget: of the whole call.
        part: of the number of copies that is searched now.
        max_copies: most copies that are searched.
        params: how the budget is divided.
        best: the best repetend so far.
        bounds: by number of copies searched, the least period as far as is proven.
    """

    budget: SearchBudget
    part: SearchBudget
    max_copies: int
    params: RepetendParams
    best: _Found | None = None
    bounds: dict[int, int] = field(default_factory=dict)


def _search_all_copies(assignments: Assignments, run: _Run) -> _Found:
    run.part = run.budget.part(1.0 if run.max_copies == 1 else run.params.copies_share)
    best = run.best = _search_copies(assignments, 1, None, run)
    for copies in range(2, run.max_copies + 1):
        if run.budget.is_interrupted or _is_rate_optimal(best, assignments):
            break
        run.part = run.budget.part(1.0 if copies == run.max_copies else run.params.copies_share)
        best = run.best = _search_copies(assignments, copies, best, run)
    return best


def _search_copies(assignments: Assignments, copies: int, best: _Found | None, run: _Run) -> _Found:
    """Return the best repetend with that many copies if its rate is better than `best`'s, else `best`."""
    found: _Found | None = None
    is_proven = True
    open_bounds = [] if assignments.is_complete else [_least_period(assignments.bound, copies)]
    lowest_by_problem = [_least_period(bound, copies) for bound in assignments.bounds]
    for index, problem in enumerate(assignments.problems):
        lowest = lowest_by_problem[index]
        below = _upper_end(problem, copies, best, found)
        if lowest >= below or (run.part.is_over and (best is not None or found is not None)):
            open_bounds.append(lowest)
            break
        cyclic = make_cyclic_problem(problem, copies)
        search = PeriodSearch(
            cyclic, run.part, run.params, lowest=lowest, below=below, on_better=run.budget.report
        )
        try:
            _run_search(search)
        except KeyboardInterrupt:
            if best is None and found is None and search.period is None:
                raise
            run.budget.interrupt()
        open_bounds.append(search.lowest)
        is_proven = is_proven and search.is_closed
        if search.period is not None and search.starts is not None:
            starts = close_up(search.cyclic, search.starts, search.period)
            found = _Found(problem, copies, search.period, starts, search.lowest, search.found_by)
            still_open = (*open_bounds, *lowest_by_problem[index + 1 : index + 2])
            run.best = replace(found, lower_bound=min(found.period, *still_open))
    run.bounds[copies] = min(open_bounds)
    if found is not None:
        return replace(found, lower_bound=min(found.period, *open_bounds))
    if best is not None:
        return best
    if not is_proven or not assignments.is_complete:
        raise ScheduleError(
            f"no repetend was found within {run.budget.limit_text}, its period is at least "
            f"{min(open_bounds)}; give more, or fewer blocks"
        )
    raise infeasible_error(assignments.problems[0], run.budget)


def _upper_end(problem: Problem, copies: int, best: _Found | None, found: _Found | None) -> int:
    """Return the first period that is of no interest."""
    if found is not None:
        return found.period
    if best is not None:
        return math.ceil(copies * best.rate)
    return 1 + max(1, copies * int(problem.spans.sum() + problem.lags.sum()))


def _run_search(search: PeriodSearch) -> None:
    """Search until closed or cut short; then at least with all micro-batches one after the other."""
    search.run()
    if search.period is None and search.cyclic.copies == 1 and search.budget.is_over:
        search.settle_for(search.below - 1)


def _least_period(bound: Fraction, copies: int) -> int:
    """A whole number, and at least 1: an empty period repeats nothing."""
    return max(1, math.ceil(copies * bound))


def _is_rate_optimal(best: _Found, assignments: Assignments) -> bool:
    return best.rate == assignments.bound


def _least_rate(assignments: Assignments, best: _Found, run: _Run) -> Fraction:
    """Return the bound on the rate with as many copies as were asked for; what is not searched is open."""
    proven = (
        Fraction(run.bounds[copies], copies) if copies in run.bounds else assignments.bound
        for copies in range(1, run.max_copies + 1)
    )
    return min(best.rate, max(assignments.bound, min(proven)))


def _result(assignments: Assignments, best: _Found, run: _Run) -> RepetendResult:
    problem = best.problem
    return RepetendResult(
        placement=problem.placement,
        memory=problem.limits_or_none,
        period=best.period,
        copies=best.copies,
        block_indices=problem.block_indices,
        starts=tuple(tuple(map(int, row)) for row in best.starts),
        lower_bound=best.lower_bound,
        optimal=best.lower_bound == best.period,
        rate_lower_bound=assignments.bound,
        rate_optimal=_is_rate_optimal(best, assignments),
        least_rate=_least_rate(assignments, best, run),
        search_seconds=run.budget.elapsed_s,
        found_by=best.found_by,
    )
