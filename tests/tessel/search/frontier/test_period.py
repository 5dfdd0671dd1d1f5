"""Frontiers against one search for every limit."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest

from tessel.errors import InfeasibleError
from tessel.placement import Block, Placement
from tessel.search import FrontierPoint, find_frontier, find_repetend
from tessel.search.budget import SearchBudget
from tessel.shapes import make_shape


def test_a_chain_gets_faster_up_to_four_units() -> None:
    points = find_frontier(make_shape("vshape", 4), budget=SearchBudget(60))
    assert [(point.memory[0], point.rate) for point in points] == [
        (1, Fraction(16)),
        (2, Fraction(8)),
        (3, Fraction(16, 3)),
        (4, Fraction(4)),
    ]
    assert all(point.optimal for point in points)
    assert points[2] == FrontierPoint(memory=(3, 3, 3, 3), period=16, copies=3, lower_bound=16, optimal=True)


@pytest.mark.parametrize("shape", ["kshape", "interleaved", "mshape"])
def test_every_limit_is_answered_as_by_itself(shape: str) -> None:
    placement = make_shape(shape, 3, lag=1)
    points = find_frontier(placement, max_copies=1, budget=SearchBudget(60))
    assert all(later.rate < point.rate for point, later in pairwise(points))
    for limit in range(1, points[-1].memory[0] + 2):
        worth = [point.rate for point in points if point.memory[0] <= limit]
        try:
            rate = find_repetend(placement, memory=limit, max_copies=1).rate
        except InfeasibleError:
            assert not worth
        else:
            assert worth[-1] == rate


def test_large_units_need_no_more_points() -> None:
    unit = 1_500_000_007
    placement = make_shape("vshape", 4, forward_memory=unit, backward_memory=-unit)
    limits = [point.memory[0] for point in find_frontier(placement, budget=SearchBudget(60))]
    assert limits == [unit, 2 * unit, 3 * unit, 4 * unit]


def test_without_memory_there_is_one_point() -> None:
    points = find_frontier(make_shape("vshape", 3, infer=True), budget=SearchBudget(60))
    assert points == [FrontierPoint(memory=(0, 0, 0), period=1, copies=1, lower_bound=1, optimal=True)]


def test_memory_left_behind_has_no_frontier() -> None:
    placement = Placement(devices=1, blocks=(Block(name="f", devices=(0,), memory=2),))
    with pytest.raises(InfeasibleError, match="leaves 2 units behind"):
        find_frontier(placement)
