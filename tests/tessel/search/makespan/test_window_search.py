"""Window search: reaches what exhaustive search finds, never gets worse, and mends the ends of rules."""

from __future__ import annotations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from random_schedules import copy_of, listed

from tessel.errors import InfeasibleError
from tessel.handwritten.zero_bubble.zb_v import ZB_V
from tessel.search import MakespanParams, Phase, SearchBudget, find_schedule
from tessel.search.makespan.incumbent import Incumbent, makespan_of
from tessel.search.makespan.initial_schedules import offer_rules, offer_serial
from tessel.search.makespan.window_search import FOUND_BY, WindowSearch, search_windows
from tessel.search.model.instance import build_instance
from tessel.shapes import zbv
from tessel.validation import check_schedule
from tests.samples.schedule_samples import Case, as_schedule, least_makespan, tiny_cases

ONLY_WINDOWS = MakespanParams(left_out=frozenset(Phase) - {Phase.WINDOWS})


@settings(max_examples=12, deadline=None)
@given(case=tiny_cases(), seed=st.integers(0, 1000))
def test_tiny_problems_are_solved_as_by_exhaustive_search(case: Case, seed: int) -> None:
    placement, micro_batches, memory = case
    if placement.choices:
        reject()  # options stay as they are
    try:
        found = find_schedule(
            placement,
            micro_batches=micro_batches,
            memory=memory,
            budget=SearchBudget(0.1),
            seed=seed,
            params=ONLY_WINDOWS,
        )
    except InfeasibleError:
        reject()
    check_schedule(found)
    assert found.makespan == least_makespan(placement, micro_batches, memory)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), limit=st.integers(4, 8), is_choice=st.booleans())
def test_the_search_keeps_what_is_valid_and_no_longer(*, seed: int, limit: int, is_choice: bool) -> None:
    placement = zbv(3, choose_backward=is_choice, split_backward=not is_choice, lag=1)
    memory = (limit,) * 3
    instance = build_instance(placement, micro_batches=5, memory=memory)
    arrays, current = instance.arrays, listed(instance, seed)
    before = makespan_of(arrays, current.start)
    again = copy_of(current)
    makespan, state, visited = search_windows(arrays, current, before, 8, 100_000, 0, seed)
    check_schedule(as_schedule(placement, arrays, current.start, memory))
    assert makespan_of(arrays, current.start) == makespan <= before
    assert visited >= 100_000
    assert search_windows(arrays, again, before, 8, 100_000, 0, seed) == (makespan, state, visited)
    assert (again.start == current.start).all()


@pytest.mark.parametrize("devices", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_the_end_of_zero_bubble_v_is_built_anew(devices: int) -> None:
    # The published order leaves devices idle while the last micro-batches drain: 9 steps less than 72 a
    # device, where 8 less than 71 are least (`ramp_bound`). Half of that difference is to go at once.
    placement = zbv(devices, split_backward=True, lag=1)
    instance = build_instance(placement, micro_batches=8 * devices, memory=2 * devices)
    best = Incumbent(instance=instance, lower_bound=0, budget=SearchBudget(work_limit=None))
    offer_serial(best)
    offer_rules(best)
    assert best.makespan == 72 * devices - 9
    assert best.makespan == ZB_V.build(placement, micro_batches=8 * devices).makespan
    WindowSearch(best, state=0).rebuild_ends()
    assert 71 * devices - 8 <= best.makespan <= 71.5 * devices - 8
    assert best.best.found_by == FOUND_BY
    check_schedule(as_schedule(placement, instance.arrays, best.best.start, instance.memory or ()))


def test_leaving_it_out_leaves_it_out() -> None:
    placement = zbv(4, split_backward=True, lag=1)
    params = MakespanParams(left_out=frozenset({Phase.WINDOWS}))
    found = find_schedule(placement, micro_batches=32, memory=8, budget=SearchBudget(0.01), params=params)
    assert found.makespan == 279
