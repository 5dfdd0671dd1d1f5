"""What is open in a frontier, by hand and against full searches."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from tessel.errors import ScheduleError
from tessel.search import find_frontier, find_makespan_frontier
from tessel.search.budget import SearchBudget
from tessel.search.frontier import period as period_frontier
from tessel.search.frontier.open_ranges import Frontier, OpenRange, find_open_ranges
from tessel.shapes import make_shape, zbv


def test_the_drawing_of_the_module() -> None:
    values = [(1, 16), (2, 8), (4, 4)]
    bounds = {1: 16, 2: 6, 4: 4}
    assert find_open_ranges(values, bounds, unit=1, bound_of_all=4) == (
        OpenRange(first=2, last=2, at_least=6, at_most=8),
        OpenRange(first=3, last=3, at_least=4, at_most=8),
    )


def test_equal_ends_close_what_lies_between_and_no_end_is_open() -> None:
    values = [(1, 16), (10, 8)]
    closed = find_open_ranges(values, {0: None, 1: 16, 9: 16, 10: 8}, unit=1, bound_of_all=8)
    assert closed == ()
    assert find_open_ranges(values, {1: 16, 9: 16, 10: 8}, unit=1, bound_of_all=7) == (
        OpenRange(first=11, last=None, at_least=7, at_most=8),
    )
    # Nothing was found at 5 before the budget was used up, which says nothing about it.
    assert find_open_ranges([(10, 8)], {1: None, 10: 8}, unit=1, bound_of_all=8) == (
        OpenRange(first=2, last=9, at_least=8, at_most=None),
    )


def test_what_a_longer_search_finds_lies_where_a_shorter_one_is_open() -> None:
    placement = zbv(2, split_backward=True, lag=1)
    shorts = [
        find_makespan_frontier(placement, micro_batches=5, budget=SearchBudget(work))
        for work in (0.01, 0.05, 0.2)
    ]
    long = find_makespan_frontier(placement, micro_batches=5, budget=SearchBudget(1.0))
    for short, point in itertools.product(shorts, long):
        limit = max(point.memory)
        known = min((each.makespan for each in short if max(each.memory) <= limit), default=None)
        if known is None or point.makespan < known:
            (within,) = [
                each
                for each in short.open_ranges
                if each.first <= limit and (each.last is None or limit <= each.last)
            ]
            assert within.at_least <= point.makespan


def test_a_frontier_that_is_done_has_nothing_open_and_one_that_is_cut_says_by_what() -> None:
    done = find_frontier(make_shape("vshape", 4))
    assert (done.open_ranges, done.stopped_by) == ((), "proven")
    assert done.bounds[-1] == (4, Fraction(4))
    placement = make_shape("nnshape", 8)
    cut = find_frontier(placement, budget=SearchBudget(0.2))
    assert cut.stopped_by == "work"
    assert cut.open_ranges
    longest = find_frontier(placement, budget=SearchBudget(0.2, 0.0))
    assert (longest.stopped_by, bool(longest.open_ranges)) == ("time", True)


def test_a_limit_for_which_the_budget_did_not_do_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    search = period_frontier.find_repetend

    def give_up(placement: object, *, memory: int, **more: object) -> object:
        if memory == 2:
            raise ScheduleError("no repetend was found within its share")
        return search(placement, memory=memory, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(period_frontier, "find_repetend", give_up)
    points = find_frontier(make_shape("vshape", 4))
    assert points.open_ranges == (OpenRange(first=2, last=2, at_least=Fraction(16, 3), at_most=Fraction(16)),)
    assert points.is_open(2)
    assert not points.is_open(3)


def test_a_frontier_is_a_list_of_its_points() -> None:
    assert Frontier([1, 2]) == [1, 2]
    assert Frontier([1, 2], stopped_by="work").stopped_by == "proven"
