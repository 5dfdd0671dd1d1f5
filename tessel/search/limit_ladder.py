"""Which memory limits are worth searching: bisection of a curve that can only fall.

The limit is the same on every device. From the least one that works at all up to the one that binds no
more, what is found for one limit also holds for the memory it really needs; where both ends of a range have
the same value, nothing lies between. The widest open range is halved first, so that an early end leaves a
coarse curve, not a short one. Checked in tests/tessel/search/test_frontier.py and test_makespan_frontier.py.

    limit   1   2   .   4   .   .   .   8      the ends, by doubling
    value   16  8       4               4      4 to 8 are alike; of 2 to 4 the middle comes next
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Generic, TypeVar

from tessel.errors import InfeasibleError, ScheduleError
from tessel.placement import Placement

Found = TypeVar("Found")


@dataclass(slots=True)
class LimitLadder(Generic[Found]):
    """What is known by limit: an answer, or None where there is none.

    Attributes:
        placement: the blocks of one micro-batch.
        search: returns the answer under a limit in units; None for no limit. Raises `InfeasibleError` where
            there is none, another `ScheduleError` where none was found in time.
        value_of: what is to be small in an answer.
        peak_of: units that the device which holds most of them holds in it.
        is_over: whether the time is over.
        found: answers by limit.
    """

    placement: Placement
    search: Callable[[int | None], Found]
    value_of: Callable[[Found], Fraction | int]
    peak_of: Callable[[Found], int]
    is_over: Callable[[], bool]
    found: dict[int, Found | None] = field(default_factory=dict)

    @property
    def unit(self) -> int:
        """No two limits less than this apart differ."""
        return math.gcd(*(block.memory for block in self.placement.blocks)) or 1

    def climb(self) -> None:
        """Search both ends, then between them until nothing is open or the time is over."""
        self._find_ends()
        while not self.is_over():
            limit = self._widest_middle()
            if limit is None:
                return
            self._evaluate(limit)

    def rungs(self) -> Iterator[tuple[int, Found]]:
        """Yield limits with their answers, rising, each better than all before."""
        best: Fraction | int | None = None
        for limit, found in sorted(self.found.items()):
            if found is not None and (best is None or self.value_of(found) < best):
                best = self.value_of(found)
                yield limit, found

    def _find_ends(self) -> None:
        """Double the limit, from what one block needs, until it binds no more."""
        unlimited = self.search(None)
        highest = self.peak_of(unlimited)
        self.found[0] = unlimited if highest == 0 else None
        limit = max(self.unit, *(block.memory for block in self.placement.blocks))
        while limit < highest:
            self._evaluate(limit)
            reached = self.found[limit]
            if self.is_over():
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
            self.found[limit] = None
            return
        except ScheduleError:
            if not any(self.found.values()):
                raise
            self.found[limit] = None
            return
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
