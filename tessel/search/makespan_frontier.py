"""The least makespan for each memory limit: what more memory buys for a given number of micro-batches.

The limit is the same on every device, in the placement's units. Which limits are searched is said in
`tessel.search.limit_ladder`; a schedule found under a limit is where the search under a higher one starts,
and a bound under a limit holds under every lower one. What time is left then goes to the points with wide
gaps, one after the other. Checked in tests/tessel/search/test_makespan_frontier.py.

    memory 1   128 steps                       a four-device vshape with spans 1 and 3, 8 micro-batches
    memory 2    68
    memory 3    52
    memory 4    44                             all proven least, and no more memory helps
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.limit_ladder import LimitLadder
from tessel.search.makespan import find_schedule
from tessel.search.makespan_bounds import makespan_lower_bound

LARGEST_SHARE = 0.25
"""Part of the time left that one point may take at first, so that a hard one does not hide the others."""

LEAST_S = 0.05
"""Seconds that a search takes at least, unless fewer are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanPoint:
    """A memory limit worth having.

    Attributes:
        memory: limit in units, one a device, all the same.
        makespan: least steps found for all micro-batches under it.
        lower_bound: no schedule under it is shorter.
        optimal: the makespan is proven least.
        found_by: the method that found it.
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
    time_limit_s: float = 10.0,
    seed: int = 0,
    on_search: Callable[[int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[MakespanPoint]:
    """Return the memory limits worth having, from the least to the one beyond which nothing got better.

    Args:
        placement: the blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        time_limit_s: seconds for all points together, > 0; when they are over, points may be missing between.
        seed: seed of the searches.
        on_search: told how many limits have been searched.
        clock: seconds, monotonic.

    Raises:
        KeyboardInterrupt: interrupted before there was any schedule; later, what was found is returned.
    """
    if time_limit_s <= 0:
        raise ValueError(f"time_limit_s is {time_limit_s}; give a number of seconds above 0")
    searches = _Searches(placement, micro_batches, seed, on_search, clock, clock() + time_limit_s)
    ladder = LimitLadder(
        placement,
        searches.search,
        value_of=lambda found: found.makespan,
        peak_of=lambda found: max(found.peak_memory),
        is_over=searches.is_over,
    )
    try:
        ladder.climb()
        searches.narrow()
    except KeyboardInterrupt:
        if not searches.found:
            raise
    return searches.points()


@dataclass(slots=True)
class _Searches:
    """What has been found so far, and the clock."""

    placement: Placement
    micro_batches: int
    seed: int
    on_search: Callable[[int], None] | None
    clock: Callable[[], float]
    deadline: float
    found: list[Schedule] = field(default_factory=list)
    turns: Counter[int] = field(default_factory=Counter)
    is_interrupted: bool = False

    def is_over(self) -> bool:
        return self.is_interrupted or self.clock() >= self.deadline

    def search(self, limit: int | None, *, turn: int = 0) -> Schedule:
        """Search one limit, from the best schedule that fits it."""
        left = self.deadline - self.clock()
        found = find_schedule(
            self.placement,
            micro_batches=self.micro_batches,
            memory=limit,
            time_limit_s=max(LARGEST_SHARE * left, min(LEAST_S, left), 1e-6),
            seed=self.seed + turn,
            start_from=self._best_under(limit),
            on_interrupt=self._interrupt,
            clock=self.clock,
        )
        self.found.append(found)
        if self.on_search is not None:
            self.on_search(len(self.found))
        return found

    def narrow(self) -> None:
        """Search the points with wide gaps again, with other seeds, until the time is over."""
        while not self.is_over():
            points = {max(point.memory): point for point in self.points() if not point.optimal}
            if not points:
                return
            limit = max(points, key=lambda limit: points[limit].gap / (1 + self.turns[limit]))
            self.turns[limit] += 1
            self.search(limit, turn=self.turns[limit])

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

    def _interrupt(self) -> None:
        self.is_interrupted = True

    def _best_under(self, limit: int | None) -> Schedule | None:
        fitting = [found for found in self.found if limit is None or max(found.peak_memory) <= limit]
        return min(fitting, key=lambda found: found.makespan, default=None)

    def _bound_under(self, limit: int) -> int:
        """What was proven under a limit holds under every lower one."""
        proven = (each.lower_bound for each in self.found if each.memory is None or each.memory[0] >= limit)
        own = makespan_lower_bound(
            self.placement, micro_batches=self.micro_batches, memory=(limit,) * self.placement.devices
        )
        return max(own, *proven)
