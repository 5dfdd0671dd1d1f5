"""Bisection of a curve that can only fall: the memory limits that are worth searching.

The limit is the same on every device. From the least one that works at all up to the one that binds no
more, what is found for one limit also holds for the memory it really needs; where both ends of a range have
the same value, nothing lies between. The widest open range is halved first, so that an early end leaves a
coarse curve, not a short one. Checked in tests/tessel/search/frontier/test_period.py and
test_makespan_frontier.py.

    limit   1   2   .   4   .   .   .   8      the ends, by doubling
    value   16  8       4               4      4 to 8 are alike; of 2 to 4 the middle comes next
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

from tessel.errors import InfeasibleError, ScheduleError
from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.frontier.open_ranges import OpenRange, Value, find_open_ranges

Found = TypeVar("Found")


@dataclass(slots=True)
class MemoryBisection(Generic[Found]):
    """What is known by limit: an answer, or None where none is found.

    Attributes:
        placement: the blocks of one micro-batch.
        search: returns the answer under a limit in units; None for no limit. Raises `InfeasibleError` where
            there is none, another `ScheduleError` where the budget did not do for one.
        value_of: what is to be small in an answer.
        bound_of: what no answer under the limit that was searched is below.
        peak_of: units that the device which holds most of them holds in it.
        budget: what all searches together may spend.
        found: answers by limit.
        bounds: by limit searched, what no answer is below; None where none exists.
        bound_of_all: the same without a limit.
    """

    placement: Placement
    search: Callable[[int | None], Found]
    value_of: Callable[[Found], Value]
    bound_of: Callable[[Found], Value]
    peak_of: Callable[[Found], int]
    budget: SearchBudget
    found: dict[int, Found | None] = field(default_factory=dict)
    bounds: dict[int, Value | None] = field(default_factory=dict)
    bound_of_all: Value = 0

    @property
    def unit(self) -> int:
        """No two limits less than this apart differ."""
        return math.gcd(*(block.memory for block in self.placement.blocks)) or 1

    def run(self) -> None:
        """Search both ends, then between them until nothing is open or the budget is used up."""
        self._find_ends()
        while not self.budget.is_over:
            limit = self._widest_middle()
            if limit is None:
                return
            self._evaluate(limit)

    def points(self) -> Iterator[tuple[int, Found]]:
        """Yield limits with their answers, rising, each better than all before."""
        best: Value | None = None
        for limit, found in sorted(self.found.copy().items()):
            if found is not None and (best is None or self.value_of(found) < best):
                best = self.value_of(found)
                yield limit, found

    def open_ranges(self, values: Sequence[tuple[int, Value]] | None = None) -> tuple[OpenRange, ...]:
        """Return the limits at which something better may exist than what is found.

        Args:
            values: what is found by limit, where that is better than the answers here.
        """
        if values is None:
            values = [(limit, self.value_of(found)) for limit, found in self.points()]
        return find_open_ranges(values, self.bounds, unit=self.unit, bound_of_all=self.bound_of_all)

    def known_bounds(self) -> tuple[tuple[int, Value], ...]:
        """Return limits with their bounds, rising; the last stands for every higher limit too."""
        known = {limit: bound for limit, bound in self.bounds.copy().items() if bound is not None}
        highest = max((limit for limit, _ in self.points()), default=0)
        known.setdefault(max([highest, *known]), self.bound_of_all)
        return tuple(sorted(known.items()))

    def _find_ends(self) -> None:
        """Double the limit, from what one block needs, until it binds no more."""
        unlimited = self.search(None)
        highest = self.peak_of(unlimited)
        self.bound_of_all = self.bound_of(unlimited)
        self.found[0] = unlimited if highest == 0 else None
        if highest > 0:
            # A block that adds memory does not run without any.
            self.bounds[0] = None
        limit = max(self.unit, *(block.memory for block in self.placement.blocks))
        while limit < highest:
            self._evaluate(limit)
            reached = self.found[limit]
            if self.budget.is_over:
                break
            if reached is not None and self.value_of(reached) <= self.value_of(unlimited):
                return
            limit *= 2
        self._keep(highest, unlimited)

    def _evaluate(self, limit: int) -> None:
        """Search one limit; what is found also holds for the memory it really needs."""
        try:
            found = self.search(limit)
        except InfeasibleError:
            self.found[limit] = self.bounds[limit] = None
            return
        except ScheduleError:
            if not any(self.found.values()):
                raise
            self.found[limit] = None
            return
        self.bounds[limit] = self.bound_of(found)
        self._keep(limit, found)
        self._keep(self.peak_of(found), found)

    def _keep(self, limit: int, found: Found) -> None:
        known = self.found.get(limit)
        if known is None or self.value_of(found) < self.value_of(known):
            self.found[limit] = found

    def _widest_middle(self) -> int | None:
        """Return a limit in the middle of the widest range whose ends differ."""
        ranges = [
            (high - low, low)
            for low, high in pairwise(sorted(self.found))
            if high - low > self.unit and self._is_worth(low, high)
        ]
        if not ranges:
            return None
        width, low = max(ranges)
        return low + max(1, width // self.unit // 2) * self.unit

    def _is_worth(self, low: int, high: int) -> bool:
        """Whether something between two limits may be better than the lower one's answer."""
        below, above = self.found[low], self.found[high]
        if above is None:
            return False
        return below is None or self.value_of(above) < self.value_of(below)
