"""The option assignments of a placement, the most promising first.

Each assignment becomes a problem with its bound. Bounds rule most of them out unsearched. Where there are
more than `MOST_ASSIGNMENTS` only the likeliest are listed: every choice at the same option number, and every
choice at the option with the least work; `Assignments.bound` holds for all of them, listed or not, also if
micro-batches were to take different options. Checked in tests/tessel/search/test_period.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.search.bounds import device_bounds
from tessel.search.limits import limit_violation
from tessel.search.problem import Problem, make_problem, options

MOST_ASSIGNMENTS = 1024
"""Assignments listed in full: ten choices of two. Each costs some 0.3 ms before it is ruled out."""


@dataclass(frozen=True, slots=True)
class Assignments:
    """Problems to search, best bound first.

    Attributes:
        problems: one for each assignment listed, without those that break a limit whatever the period.
        bounds: steps that a micro-batch takes at least, as `problems`.
        bound: the same for every assignment and mixture.
        is_complete: whether all assignments are listed.
    """

    problems: tuple[Problem, ...]
    bounds: tuple[Fraction, ...]
    bound: Fraction
    is_complete: bool


def list_assignments(placement: Placement, *, memory: Sequence[int] | int | None) -> Assignments:
    """Return the assignments under these limits.

    Raises:
        InfeasibleError: every assignment breaks the limit of some device.
        ValueError: the number of limits is not the number of devices.
    """
    is_complete = math.prod(len(choice.options) for choice in placement.choices) <= MOST_ASSIGNMENTS
    indices = options(placement) if is_complete else _likely_options(placement)
    listed = [make_problem(placement, memory=memory, option_indices=taken) for taken in indices]
    violations = [limit_violation(problem) for problem in listed]
    possible = [problem for problem, violation in zip(listed, violations, strict=True) if violation is None]
    if not possible:
        raise InfeasibleError(violations[0])
    by_device = [device_bounds(problem) for problem in possible]
    ranked = sorted(range(len(possible)), key=lambda index: max(by_device[index]))
    if is_complete:
        bound = max(map(min, zip(*by_device, strict=True)))
    else:
        bound = max(Fraction(placement.work(device)) for device in range(placement.devices))
    return Assignments(
        problems=tuple(possible[index] for index in ranked),
        bounds=tuple(max(by_device[index]) for index in ranked),
        bound=bound,
        is_complete=is_complete,
    )


def _likely_options(placement: Placement) -> Iterator[dict[str, int]]:
    yield {
        choice.name: min(
            range(len(choice.options)), key=lambda index: _work(placement, choice.options[index])
        )
        for choice in placement.choices
    }
    for index in range(max(len(choice.options) for choice in placement.choices)):
        yield {choice.name: min(index, len(choice.options) - 1) for choice in placement.choices}


def _work(placement: Placement, names: Sequence[str]) -> int:
    return sum(placement.block(name).span * len(placement.block(name).devices) for name in names)
