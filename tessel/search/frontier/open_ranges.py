"""A frontier with what is still open in it: memory limits at which something better may exist.

The curve of least values only falls as the limit grows, so every search says two things: its answer holds for
every higher limit, its lower bound for every lower one. Where the two meet the curve is known; everywhere
else, between points that were found or at them, it is open.

    limit     1    2    3    4              2 is where the search was cut: found 8, at least 6
    found    16    8         4              3 was not searched: at most 8 by what 2 found,
    bound    16    6         4              at least 4 by what is proven for 4

Checked in tests/tessel/search/frontier/test_open_ranges.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from tessel.search.budget import StoppedBy

Value = Fraction | int

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRange:
    """Memory limits of which the best value is not known.

    Attributes:
        first: the least of them, in units.
        last: the largest; None where there is no end.
        at_least: no value at these limits is smaller.
        at_most: what is found for less memory holds here too; None where nothing is found.
    """

    first: int
    last: int | None
    at_least: Value
    at_most: Value | None


class Frontier(list[Point]):
    """Points, rising in memory, each better than the one before, and what is open.

    Attributes:
        open_ranges: limits at which something better may exist, the points' own limits included, rising.
        bounds: limit and bound of every search, rising; a bound holds for every lower limit.
        stopped_by: what ended the search; `proven` where nothing is open.
    """

    def __init__(
        self,
        points: Iterable[Point] = (),
        *,
        open_ranges: Sequence[OpenRange] = (),
        bounds: Sequence[tuple[int, Value]] = (),
        stopped_by: StoppedBy = "proven",
    ) -> None:
        super().__init__(points)
        self.open_ranges = tuple(open_ranges)
        self.bounds = tuple(bounds)
        self.stopped_by: StoppedBy = stopped_by if open_ranges else "proven"

    def is_open(self, limit: int) -> bool:
        """Whether something better than what is found may exist at a limit."""
        return any(
            each.first <= limit and (each.last is None or limit <= each.last) for each in self.open_ranges
        )


def find_open_ranges(
    values: Sequence[tuple[int, Value]],
    bounds: Mapping[int, Value | None],
    *,
    unit: int,
    bound_of_all: Value,
) -> tuple[OpenRange, ...]:
    """Return where bound and value do not meet, rising; neighbours with equal ends are one range.

    Args:
        values: limits with the values found, rising in limit, falling in value.
        bounds: by limit searched, what no value there or at a lower limit is below; None: nothing works.
        unit: no two limits less than this apart differ.
        bound_of_all: holds for every limit.
    """
    ends = sorted({*(limit for limit, _ in values), *bounds})
    found: list[OpenRange] = []
    below = 0
    for end in ends:
        # The end itself may have a value of its own; the limits below it have that of the point before.
        for first, last in ((below + unit, end - unit), (end, end)):
            best = _value_at(values, first)
            least = _bound_at(bounds, first, bound_of_all)
            if first <= last and least is not None and (best is None or least < best):
                _add(found, OpenRange(first=first, last=last, at_least=least, at_most=best), unit)
        below = end
    best = _value_at(values, below)
    if best is None or bound_of_all < best:
        _add(found, OpenRange(first=below + unit, last=None, at_least=bound_of_all, at_most=best), unit)
    return tuple(found)


def _value_at(values: Sequence[tuple[int, Value]], limit: int) -> Value | None:
    return min((value for at, value in values if at <= limit), default=None)


def _bound_at(bounds: Mapping[int, Value | None], limit: int, bound_of_all: Value) -> Value | None:
    """The largest bound of a limit that is not lower; None where nothing works at such a limit."""
    proven = [bound for at, bound in bounds.items() if at >= limit]
    if None in proven:
        return None
    return max([bound_of_all, *(bound for bound in proven if bound is not None)])


def _add(found: list[OpenRange], new: OpenRange, unit: int) -> None:
    """Add a range, or lengthen the one before where they differ in nothing else."""
    before = found[-1] if found else None
    is_next = before is not None and before.last is not None and before.last + unit == new.first
    if before is not None and is_next and (before.at_least, before.at_most) == (new.at_least, new.at_most):
        found[-1] = OpenRange(
            first=before.first, last=new.last, at_least=before.at_least, at_most=before.at_most
        )
    else:
        found.append(new)
