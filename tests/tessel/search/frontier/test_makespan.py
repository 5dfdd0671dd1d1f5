"""Makespan frontiers against one search for every limit, and against exhaustive search."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from tessel.handwritten import HANDWRITTEN
from tessel.search import MakespanPoint, find_makespan_frontier, find_schedule
from tessel.search.budget import SearchBudget
from tessel.shapes import make_shape, zbv
from tessel.validation import check_schedule
from tests.samples.schedule_samples import Case, least_makespan, tiny_cases


def check_points(points: list[MakespanPoint], micro_batches: int) -> None:
    """Each point is a valid schedule that fits, costs more memory than the one before, and is shorter."""
    for point in points:
        check_schedule(point.schedule)
        assert point.schedule.micro_batches == micro_batches
        assert max(point.schedule.peak_memory) <= max(point.memory)
        assert point.schedule.makespan == point.makespan >= point.lower_bound
        assert point.optimal == (point.makespan == point.lower_bound)
    for point, later in pairwise(points):
        assert max(point.memory) < max(later.memory)
        assert point.makespan > later.makespan
        assert point.lower_bound >= later.lower_bound


@settings(max_examples=30, deadline=None)
@given(case=tiny_cases())
def test_points_lie_between_bound_and_truth(case: Case) -> None:
    placement, micro_batches, _ = case
    points = find_makespan_frontier(placement, micro_batches=micro_batches, budget=SearchBudget(0.1))
    check_points(points, micro_batches)
    for point in points:
        truth = least_makespan(placement, micro_batches, point.memory)
        assert truth is not None
        assert point.lower_bound <= truth <= point.makespan


@pytest.mark.parametrize("shape", ["vshape", "kshape", "zbv"])
def test_no_limit_is_answered_worse_than_by_a_rule_that_fits(shape: str) -> None:
    placement = make_shape(shape, 4)
    points = find_makespan_frontier(placement, micro_batches=6, budget=SearchBudget(0.3))
    check_points(points, 6)
    for limit in range(1, max(points[-1].memory) + 1):
        fitting = [point.makespan for point in points if max(point.memory) <= limit]
        for rule in HANDWRITTEN:
            if rule.why_not(placement, 6, (limit,) * 4) is None:
                schedule = rule.build(placement, micro_batches=6, memory=(limit,) * 4)
                assert fitting[-1] <= schedule.makespan


def test_an_interrupt_ends_all_searches_and_keeps_what_was_found() -> None:
    searched = []

    def interrupt(count: int) -> None:
        searched.append(count)
        if count == 2:
            raise KeyboardInterrupt

    points = find_makespan_frontier(zbv(3), micro_batches=6, budget=SearchBudget(5), on_search=interrupt)
    assert searched == [1, 2]
    assert points
    check_points(points, 6)


def test_a_search_starts_from_a_schedule_that_is_given() -> None:
    placement = zbv(3, split_backward=True, lag=1)
    known = find_schedule(placement, micro_batches=6, memory=8, budget=SearchBudget(0.3))
    again = find_schedule(placement, micro_batches=6, memory=9, budget=SearchBudget(0.3), start_from=known)
    assert again.makespan <= known.makespan
    with pytest.raises(ValueError, match="more than the limits"):
        find_schedule(placement, micro_batches=6, memory=min(known.peak_memory) - 1, start_from=known)
    with pytest.raises(ValueError, match="another placement or number"):
        find_schedule(placement, micro_batches=5, start_from=known)


def test_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        find_makespan_frontier(zbv(2), micro_batches=2, time_limit_s=0)
