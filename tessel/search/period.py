"""The least number of steps in which a pattern of micro-batches can repeat, under the memory limits.

    device 0   f0 b0 b0 b0 f0 b0 b0 b0 …       period 4: the busiest device never waits
    device 1   …  f1 b1 b1 b1 f1 b1 b1 b1 …

One copy of each block in a period is tried first, then several: with a limit between two whole numbers of
micro-batches in flight, several copies come closer to it (four-device vshape, memory 3: 8 steps with one
copy, 16 / 3 with three). With choices, option assignments are searched in the order of their bounds, and
those whose bound is no better than the best period found are ruled out unsearched; all copies take the same
options.
Checked in tests/tessel/search/test_period.py, against CP-SAT and `tessel.validation`.

Source: Tessel (HPCA 2024), section 4, for repetends; the search is in `tessel.search.cyclic_orders`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tessel.errors import ScheduleError
from tessel.placement import Placement
from tessel.search.assignments import Assignments, list_assignments
from tessel.search.cyclic_problem import make_cyclic_problem
from tessel.search.cyclic_starts import close_up
from tessel.search.latency import shorten_latency
from tessel.search.limits import infeasible_error
from tessel.search.period_result import RepetendResult
from tessel.search.period_search import PeriodSearch
from tessel.search.problem import Integers, Problem
from tessel.search.progress import Progress

__all__ = ["RepetendResult", "find_repetend"]

DEFAULT_MAX_COPIES = 4
"""Copies tried unless told otherwise; more rarely pay, and each costs more than the one before."""

SHARE_OF_COPIES = 0.5
"""Part of the time left that one number of copies may take, so that a hard proof does not hide the next."""


def find_repetend(
    placement: Placement,
    *,
    memory: Sequence[int] | int | None = None,
    max_copies: int = DEFAULT_MAX_COPIES,
    time_limit_s: float = 10.0,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    on_interrupt: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RepetendResult:
    """Return the repetend with the least period for each micro-batch in it; fewer copies win a tie.

    The search is exact. Within the time limit it may end with a gap, which the bounds then show. An interrupt
    (Ctrl-C) ends it like the time limit once there is something to return.

    Args:
        placement: the blocks of one micro-batch.
        memory: limit in units, one for all devices or one a device; None for none.
        max_copies: most micro-batches in one period, >= 1.
        time_limit_s: seconds after which the best so far is returned, looked at every few tenths of a second.
        seed: has no effect, since nothing here is random; all searches are called alike.
        on_progress: called at each better period.
        on_interrupt: called when an interrupt ends the search, for callers that search more than once.
        clock: seconds, monotonic.

    Raises:
        InfeasibleError: no period is long enough for the limits.
        ScheduleError: the time was over before any repetend was found.
        ValueError: `max_copies` or the number of limits is wrong.
    """
    del seed
    if max_copies < 1:
        raise ValueError(f"max_copies is {max_copies}; a repetend has at least one copy of each block")
    run = _Run(clock=clock, started=clock(), time_limit_s=time_limit_s, on_progress=on_progress)
    assignments = list_assignments(placement, memory=memory)
    try:
        best = _search_all_copies(assignments, max_copies, run)
        starts = shorten_latency(best.problem, best.starts, best.period, run.is_over)
    except KeyboardInterrupt:
        if run.best is None:
            raise
        run.is_interrupted = True
        best, starts = run.best, run.best.starts
    if run.is_interrupted and on_interrupt is not None:
        on_interrupt()
    return _result(assignments, replace(best, starts=starts), run)


@dataclass(frozen=True, slots=True)
class _Found:
    """A repetend and the bound on those with as many copies."""

    problem: Problem
    copies: int
    period: int
    starts: Integers
    lower_bound: int
    found_by: str

    @property
    def rate(self) -> Fraction:
        return Fraction(self.period, self.copies)


@dataclass(slots=True)
class _Run:
    """The clock of one call, and whom to tell."""

    clock: Callable[[], float]
    started: float
    time_limit_s: float
    on_progress: Callable[[Progress], None] | None
    is_interrupted: bool = False
    best: _Found | None = None
    until_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    def is_over(self) -> bool:
        return self.is_interrupted or self.elapsed_s >= self.until_s

    def share_time(self, share: float) -> None:
        """Let the next search take that part of the time left."""
        self.until_s = self.elapsed_s + share * max(0.0, self.time_limit_s - self.elapsed_s)

    def report(self, period: int, lower_bound: int, found_by: str) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(period, lower_bound, self.elapsed_s, found_by))


def _search_all_copies(assignments: Assignments, max_copies: int, run: _Run) -> _Found:
    run.share_time(1.0 if max_copies == 1 else SHARE_OF_COPIES)
    best = run.best = _search_copies(assignments, 1, None, run)
    for copies in range(2, max_copies + 1):
        if run.is_interrupted or _is_rate_optimal(best, assignments):
            break
        run.share_time(1.0 if copies == max_copies else SHARE_OF_COPIES)
        best = run.best = _search_copies(assignments, copies, best, run)
    run.share_time(1.0)
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
        if lowest >= below or (run.is_over() and (best is not None or found is not None)):
            open_bounds.append(lowest)
            break
        cyclic = make_cyclic_problem(problem, copies)
        search = PeriodSearch(cyclic, lowest=lowest, below=below, on_better=run.report)
        try:
            _run_search(search, run)
        except KeyboardInterrupt:
            if best is None and found is None and search.period is None:
                raise
            run.is_interrupted = True
        open_bounds.append(search.lowest)
        is_proven = is_proven and search.is_closed
        if search.period is not None and search.starts is not None:
            starts = close_up(search.cyclic, search.starts, search.period)
            found = _Found(problem, copies, search.period, starts, search.lowest, search.found_by)
            still_open = (*open_bounds, *lowest_by_problem[index + 1 : index + 2])
            run.best = replace(found, lower_bound=min(found.period, *still_open))
    if found is not None:
        return replace(found, lower_bound=min(found.period, *open_bounds))
    if best is not None:
        return best
    if not is_proven or not assignments.is_complete:
        raise ScheduleError(
            f"no repetend was found within {run.time_limit_s:g} s, its period is at least "
            f"{min(open_bounds)}; give more time, or fewer blocks"
        )
    raise infeasible_error(assignments.problems[0], run.is_over)


def _upper_end(problem: Problem, copies: int, best: _Found | None, found: _Found | None) -> int:
    """Return the first period that is of no interest."""
    if found is not None:
        return found.period
    if best is not None:
        return math.ceil(copies * best.rate)
    return 1 + max(1, copies * int(problem.spans.sum() + problem.lags.sum()))


def _run_search(search: PeriodSearch, run: _Run) -> None:
    """Search until closed or out of time; then at least with all micro-batches one after the other."""
    search.run(run.is_over)
    if search.period is None and search.cyclic.copies == 1 and run.is_over():
        search.settle_for(search.below - 1)


def _least_period(bound: Fraction, copies: int) -> int:
    """A whole number, and at least 1: an empty period repeats nothing."""
    return max(1, math.ceil(copies * bound))


def _is_rate_optimal(best: _Found, assignments: Assignments) -> bool:
    return best.rate == assignments.bound


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
        search_seconds=run.elapsed_s,
        found_by=best.found_by,
    )
