"""The least period for each memory limit: what more memory buys.

The limit is the same on every device, in the placement's units. From the least one that works at all up to
the one with which the busiest device never waits, points are kept only where the rate gets better, so each
next one costs more memory and is faster. A rate can only fall with more memory; where both ends of a range
have the same one, nothing lies between. The widest open range is halved first, so that an early end leaves a
coarse frontier, not a short one. Checked in tests/tessel/search/test_frontier.py.

    memory 1   16 steps a micro-batch          a four-device vshape with spans 1 and 3
    memory 2    8
    memory 3    16 / 3                         three copies of each block in one period
    memory 4    4                              and no more memory helps
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from tessel.errors import InfeasibleError, ScheduleError
from tessel.placement import Placement
from tessel.search.memory_levels import steady_peaks
from tessel.search.period import DEFAULT_MAX_COPIES, find_repetend
from tessel.search.period_result import RepetendResult
from tessel.search.problem import NO_LIMIT

LARGEST_SHARE = 0.25
"""Part of the time left that one point may take, so that a hard one does not hide the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """A memory limit worth having.

    Attributes:
        memory: limit in units, one a device, all the same.
        period: least steps found after which a pattern repeats under it.
        copies: micro-batches in one period.
        optimal: the period is proven least for that number of copies.
    """

    memory: tuple[int, ...]
    period: int
    copies: int
    optimal: bool

    @property
    def rate(self) -> Fraction:
        """Steps a micro-batch takes in the long run."""
        return Fraction(self.period, self.copies)


def find_frontier(
    placement: Placement,
    *,
    time_limit_s: float = 10.0,
    max_copies: int = DEFAULT_MAX_COPIES,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> list[FrontierPoint]:
    """Return the memory limits worth having, from the least to the one beyond which nothing gets better.

    Args:
        placement: the blocks of one micro-batch.
        time_limit_s: seconds for all points together; when they are over, points may be missing between.
        max_copies: most micro-batches in one period, >= 1.
        seed: has no effect, since nothing here is random; all searches are called alike.
        clock: seconds, monotonic.

    Raises:
        InfeasibleError: a micro-batch leaves memory behind, so no limit works in the long run.
        ScheduleError: the time was over before any repetend was found.
    """
    points = _Points(placement, max_copies, seed, clock, clock() + time_limit_s)
    points.find_ends()
    while not points.is_over():
        limit = points.widest_middle()
        if limit is None:
            break
        points.evaluate(limit)
    return points.frontier()


class _Points:
    """What is known by limit: a repetend, or that there is none."""

    def __init__(
        self,
        placement: Placement,
        max_copies: int,
        seed: int,
        clock: Callable[[], float],
        deadline: float,
    ) -> None:
        self.placement = placement
        self.max_copies = max_copies
        self.seed = seed
        self.clock = clock
        self.deadline = deadline
        self.unit = math.gcd(*(block.memory for block in placement.blocks)) or 1
        self.found: dict[int, RepetendResult | None] = {}

    def is_over(self) -> bool:
        return self.clock() >= self.deadline

    def find_ends(self) -> None:
        """Double the limit, from what one block needs, until it binds no more."""
        unlimited = self._search(NO_LIMIT - 1)
        limit = max(self.unit, *(block.memory for block in self.placement.blocks))
        self.found[0] = unlimited if not any(steady_peaks(unlimited)) else None
        if self.found[0] is not None:
            return
        highest = max(steady_peaks(unlimited))
        while limit < highest:
            self.evaluate(limit)
            reached = self.found[limit]
            if self.is_over() or (reached is not None and reached.rate <= unlimited.rate):
                return
            limit *= 2
        self.found[highest] = unlimited

    def evaluate(self, limit: int) -> None:
        """Search one limit; what is found also holds for the memory it really needs."""
        try:
            found = self._search(limit)
        except InfeasibleError:
            self.found[limit] = None
            return
        except ScheduleError:
            if not any(self.found.values()):
                raise
            self.found[limit] = None
            return
        self.found[limit] = self.found[max(steady_peaks(found))] = found

    def widest_middle(self) -> int | None:
        """Return a limit in the middle of the widest range whose ends differ."""
        ranges = [
            (high - low, low)
            for low, high in pairwise(sorted(self.found))
            if high - low > self.unit and _rate(self.found[low]) != _rate(self.found[high])
        ]
        if not ranges:
            return None
        width, low = max(ranges)
        return low + max(1, width // self.unit // 2) * self.unit

    def frontier(self) -> list[FrontierPoint]:
        points: list[FrontierPoint] = []
        for limit, found in sorted(self.found.items()):
            if found is not None and (not points or found.rate < points[-1].rate):
                points.append(
                    FrontierPoint(
                        memory=(limit,) * self.placement.devices,
                        period=found.period,
                        copies=found.copies,
                        optimal=found.optimal,
                    )
                )
        return points

    def _search(self, limit: int) -> RepetendResult:
        left = max(0.0, self.deadline - self.clock())
        return find_repetend(
            self.placement,
            memory=limit,
            max_copies=self.max_copies,
            time_limit_s=LARGEST_SHARE * left,
            seed=self.seed,
            clock=self.clock,
        )


def _rate(found: RepetendResult | None) -> Fraction | None:
    return None if found is None else found.rate
