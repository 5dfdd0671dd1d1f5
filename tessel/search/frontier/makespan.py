"""The least makespan for each memory limit: what more memory buys for a given number of micro-batches.

The limit is the same on every device, in the placement's units. Which limits are searched is said in
`tessel.search.frontier.bisection`; a schedule found under a limit is where the search under a higher one
starts, and a bound under a limit holds under every lower one. What is left then goes to the points with wide
gaps, one after the other. What stays open is said in `tessel.search.frontier.open_ranges`. Checked in
tests/tessel/search/frontier/test_makespan.py.

    memory 1   128 steps                       a four-device vshape with spans 1 and 3, 8 micro-batches
    memory 2    68
    memory 3    52
    memory 4    44                             all proven optimal, and no more memory helps
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget
from tessel.search.frontier.bisection import MemoryBisection
from tessel.search.frontier.open_ranges import Frontier
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.params import MakespanParams
from tessel.search.model.instance import build_instance

MAX_SHARE = 0.25
"""Part of the budget left that one point may take at first, so that a hard one does not hide the others."""

LEAST_OPERATIONS = OPERATIONS_A_UNIT // 20
"""Operations that a search may take at least, unless fewer are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanPoint:
    """A memory limit worth having.

    Attributes:
        memory: limit in units, one a device, all the same.
        makespan: least steps found for all micro-batches under it.
        lower_bound: no schedule under it is shorter.
        optimal: the makespan is proven optimal.
        schedule: the schedule found; its own limit may be a higher one.
    """

    memory: tuple[int, ...]
    makespan: int
    lower_bound: int
    optimal: bool
    found_by: str
    schedule: Schedule

    @property
    def gap(self) -> float:
        """How far the makespan may be from the least one, as a fraction of the bound; 0 where proven."""
        return 0.0 if self.optimal else self.makespan / max(1, self.lower_bound) - 1


def find_makespan_frontier(
    placement: Placement,
    *,
    micro_batches: int,
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    params: MakespanParams | None = None,
    on_search: Callable[[int], None] | None = None,
) -> Frontier[MakespanPoint]:
    """Return the memory limits worth having, from the least to the one beyond which nothing got better.

    Args:
        placement: the blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        budget: what all points together may spend; `DEFAULT_WORK` units of work if left out. Where it is used
            up, points may be missing; `open_ranges` says where.
        time_limit_s: in place of a budget: seconds for all points together, > 0, without a limit on work.
        params: how each search divides its part; the defaults of `MakespanParams` if left out.
        on_search: told how many limits have been searched.

    Raises:
        KeyboardInterrupt: interrupted before there was any schedule; later, what was found is returned.
    """
    if time_limit_s is not None and time_limit_s <= 0:
        raise ValueError(f"time_limit_s is {time_limit_s}; give a number of seconds above 0")
    budget = SearchBudget.of(budget, time_limit_s=time_limit_s)
    searches = _Searches(placement, micro_batches, seed, params, on_search, budget)
    bisection = MemoryBisection(
        placement,
        searches.search,
        value_of=lambda found: found.makespan,
        bound_of=lambda found: found.lower_bound,
        peak_of=lambda found: max(found.peak_memory),
        budget=budget,
    )
    budget.answer = lambda: searches.frontier(bisection) if searches.found else None
    try:
        bisection.run()
        searches.narrow()
    except KeyboardInterrupt:
        if not searches.found:
            raise
        budget.interrupt()
    return searches.frontier(bisection)


@dataclass(slots=True)
class _Searches:
    """What has been found so far, and what may be spent."""

    placement: Placement
    micro_batches: int
    seed: int
    params: MakespanParams | None
    on_search: Callable[[int], None] | None
    budget: SearchBudget
    found: list[Schedule] = field(default_factory=list)
    turns: Counter[int] = field(default_factory=Counter)
    least: dict[int, int] = field(default_factory=dict)

    def search(self, limit: int | None, *, turn: int = 0) -> Schedule:
        """Search one limit, from the best schedule that fits it."""
        least = min(1.0, LEAST_OPERATIONS / max(1.0, self.budget.operations_left))
        found = find_schedule(
            self.placement,
            micro_batches=self.micro_batches,
            memory=limit,
            budget=self.budget.part(max(MAX_SHARE, least)),
            seed=self.seed + turn,
            start_from=self._best_under(limit),
            params=self.params,
        )
        self.found.append(found)
        self.budget.has_answer = True
        if self.on_search is not None:
            self.on_search(len(self.found))
        return found

    def narrow(self) -> None:
        """Search the points with wide gaps again, with other seeds, until the budget is used up."""
        while not self.budget.is_over:
            points = {max(point.memory): point for point in self.points() if not point.optimal}
            if not points:
                return
            limit = max(points, key=lambda limit: points[limit].gap / (1 + self.turns[limit]))
            self.turns[limit] += 1
            self.search(limit, turn=self.turns[limit])

    def frontier(self, bisection: MemoryBisection[Schedule]) -> Frontier[MakespanPoint]:
        """Return the points, and what is open between and at them."""
        points = self.points()
        bisection.bounds.update((max(point.memory), point.lower_bound) for point in points)
        values = [(max(point.memory), point.makespan) for point in points]
        bisection.bound_of_all = max(
            bisection.bound_of_all, *(found.lower_bound for found in self.found if found.memory is None)
        )
        return Frontier(
            points,
            open_ranges=bisection.open_ranges(values),
            bounds=bisection.known_bounds(),
            stopped_by=self.budget.stopped_by,
        )

    def points(self) -> list[MakespanPoint]:
        """Return every limit at which the makespan gets better, rising."""
        points: list[MakespanPoint] = []
        for found in sorted(self.found, key=lambda found: (max(found.peak_memory), found.makespan)):
            if points and found.makespan >= points[-1].makespan:
                continue
            limit = max(found.peak_memory)
            bound = self._bound_under(limit)
            points.append(
                MakespanPoint(
                    memory=(limit,) * self.placement.devices,
                    makespan=found.makespan,
                    lower_bound=bound,
                    optimal=found.makespan == bound,
                    found_by=found.found_by,
                    schedule=found,
                )
            )
        return points

    def _best_under(self, limit: int | None) -> Schedule | None:
        fitting = [found for found in self.found if limit is None or max(found.peak_memory) <= limit]
        return min(fitting, key=lambda found: found.makespan, default=None)

    def _bound_under(self, limit: int) -> int:
        """What was proven under a limit holds under every lower one."""
        proven = (each.lower_bound for each in self.found if each.memory is None or each.memory[0] >= limit)
        if limit not in self.least:
            limited = build_instance(self.placement, micro_batches=self.micro_batches, memory=limit)
            self.least[limit] = makespan_lower_bound(limited)
        return max(self.least[limit], *proven)
