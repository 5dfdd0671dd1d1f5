"""Limits in flight: lifetimes by hand, limits kept, and what they win under tight memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings

from tessel.errors import InfeasibleError
from tessel.placement import Placement
from tessel.search import SearchBudget
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.initial_schedules import offer_held_back, offer_list_schedules
from tessel.search.makespan.limits_in_flight import lifetimes_of
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.model.instance import IntArray, build_instance
from tessel.shapes import vshape, zbv
from tessel.validation import check_schedule
from tests.samples.schedule_samples import Case, as_schedule, tiny_cases


def incumbent_of(placement: Placement, micro_batches: int, memory: tuple[int, ...] | None) -> Incumbent:
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    return Incumbent(instance=instance, lower_bound=0, budget=SearchBudget(5.0))


def test_a_lifetime_is_the_way_to_the_backward_and_the_period_is_what_memory_allows() -> None:
    # f0 is freed by b0 13 steps after it starts: four steps of forwards, three backwards of three.
    instance = build_instance(vshape(4), micro_batches=8, memory=(2, 4, 4, 4))
    found = lifetimes_of(instance, np.empty((0, 8), dtype=np.int64))
    names = [block.name for block in instance.placement.blocks]
    assert {names[block]: steps for block, steps in found.lifetime.items()} == {
        "f0": 13, "f1": 9, "f2": 5, "f3": 1,
    }  # fmt: skip
    assert all(names[closer] == names[block].replace("f", "b") for block, closer in found.closing.items())
    assert found.period == 7  # 13 steps for each of two, against four of work


def test_options_that_are_not_run_close_nothing() -> None:
    placement = vshape(2, choose_backward=True, forward_memory=2, backward_memory=-2)
    instance = build_instance(placement, micro_batches=4, memory=(4, 4))
    names = [block.name for block in placement.blocks]
    for option, name in ((0, "b0"), (1, "b0_input")):
        options = np.full((len(placement.choices), 4), option, dtype=np.int64)
        assert names[lifetimes_of(instance, options).closing[0]] == name


def test_a_v_at_a_third_of_the_memory_is_far_shorter_than_without_limits() -> None:
    placement = zbv(
        8, split_backward=True, forward_span=20, backward_input_span=26, backward_weight_span=20, lag=1
    )
    memory = (10,) * 8
    plain, limited = (incumbent_of(placement, 32, memory) for _ in range(2))
    offer_list_schedules(plain)
    offer_held_back(limited)
    assert limited.makespan < 0.9 * plain.makespan
    assert limited.best.found_by == "list scheduling with limits in flight"
    check_schedule(as_schedule(placement, limited.instance.arrays, limited.best.start, memory))


@settings(max_examples=60, deadline=None)
@given(case=tiny_cases())
def test_every_schedule_offered_is_valid_and_keeps_the_limits(case: Case) -> None:
    placement, micro_batches, memory = case
    if memory is None:
        reject()
    try:
        best = incumbent_of(placement, micro_batches, memory)
    except InfeasibleError:
        reject()
    with pytest.MonkeyPatch.context() as patch:
        offered: list[IntArray] = []
        patch.setattr(Incumbent, "offer", lambda _, start, found_by: offered.append(start.copy()))
        offer_held_back(best)
    for start in offered:
        check_schedule(as_schedule(placement, best.instance.arrays, start, memory))


def test_nothing_is_offered_without_limits_or_where_left_out() -> None:
    free = incumbent_of(vshape(3), 4, None)
    offer_held_back(free)
    assert free.makespan == NEVER
    left_out = incumbent_of(vshape(3), 4, (2, 2, 2))
    left_out.params = MakespanParams(left_out=frozenset({Phase.LIMITS_IN_FLIGHT}))
    offer_held_back(left_out)
    assert left_out.makespan == NEVER
