"""Budgets: what is charged counts, parts belong to a whole, and the speed of the clock changes no answer."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from fractions import Fraction

import msgspec
import pytest

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule, decode_schedule
from tessel.search import find_frontier, find_makespan_frontier, find_repetend, find_schedule
from tessel.search.budget import (
    DEFAULT_WORK,
    OPERATIONS_A_UNIT,
    SearchBudget,
    processor_clock,
    search_clock,
    stopped_clock,
)
from tessel.shapes import make_shape, zbv


def uneven_clock(seed: int, scale: float) -> Callable[[], float]:
    """Return a clock that moves on by anything from nothing to a scale each time it is read."""
    rng = random.Random(seed)
    steps = (rng.random() ** 8 * scale for _ in itertools.count())
    times = itertools.accumulate(steps)
    return lambda: next(times)


CLOCKS = {
    "standing": lambda: lambda: 0.0,
    "slow": lambda: uneven_clock(1, 1e-6),
    "fast": lambda: uneven_clock(2, 1e3),
    "faster": lambda: uneven_clock(3, 1e9),
}

PLACEMENTS = (
    (make_shape("nnshape", 4), 16, 6),
    (zbv(4, split_backward=True, forward_span=10, backward_input_span=11, backward_weight_span=9), 8, 4),
    (make_shape("vshape", 3, choose_backward=True, backward_input_span=2), 6, 3),
)


def document_of(found: Schedule) -> bytes:
    """The bytes of a schedule, without the one measurement of time in it."""
    return msgspec.structs.replace(found, search_seconds=0.0).to_json()


@pytest.mark.parametrize(("placement", "micro_batches", "memory"), PLACEMENTS)
def test_however_fast_the_clock_runs_the_schedule_is_the_same(
    placement: Placement, micro_batches: int, memory: int
) -> None:
    documents, spent = set(), set()
    for make_clock in CLOCKS.values():
        budget = SearchBudget(0.1, None, clock=make_clock())
        found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=budget, seed=7)
        documents.add(document_of(found))
        spent.add((budget.operations, budget.stopped_by))
    assert len(documents) == len(spent) == 1


def test_however_fast_the_clock_runs_repetend_and_frontiers_are_the_same() -> None:
    placement = make_shape("nnshape", 4)
    repetends, frontiers, whole = set(), [], []
    for make_clock in CLOCKS.values():
        budget = SearchBudget(0.05, None, clock=make_clock())
        found = find_repetend(placement, memory=3, budget=budget)
        repetends.add((found.period, found.copies, found.starts, found.lower_bound, found.least_rate))
        points = find_frontier(placement, budget=SearchBudget(0.05, None, clock=make_clock()))
        frontiers.append((list(points), points.open_ranges, points.bounds, points.stopped_by))
        shortest = find_makespan_frontier(
            placement, micro_batches=5, budget=SearchBudget(0.05, None, clock=make_clock())
        )
        whole.append(([point.makespan for point in shortest], shortest.open_ranges, shortest.stopped_by))
    assert len(repetends) == 1
    assert all(each == frontiers[0] for each in frontiers)
    assert all(each == whole[0] for each in whole)


def test_the_default_is_work_and_a_time_limit_alone_is_only_time() -> None:
    assert SearchBudget.of(None, time_limit_s=None).work_limit == DEFAULT_WORK
    by_time = SearchBudget.of(None, time_limit_s=2.0)
    assert (by_time.work_limit, by_time.time_limit_s, by_time.is_by_work) == (None, 2.0, False)
    given = SearchBudget(3.0)
    assert SearchBudget.of(given, time_limit_s=None) is given
    with pytest.raises(ValueError, match="put the time limit into the budget"):
        SearchBudget.of(given, time_limit_s=1.0)
    with pytest.raises(ValueError, match="work_limit is -1"):
        SearchBudget(-1)


def test_what_cuts_a_search_is_said() -> None:
    placement = make_shape("nnshape", 8)

    def stopped_by(budget: SearchBudget) -> str:
        found = find_schedule(placement, micro_batches=24, memory=8, budget=budget)
        assert found.optimal == (budget.stopped_by == "proven")
        return budget.stopped_by

    assert stopped_by(SearchBudget(0.3)) == "work"
    assert stopped_by(SearchBudget(0.3, 1e3, clock=uneven_clock(1, 1e9))) == "time"
    assert stopped_by(SearchBudget(None, 0.05)) == "time"

    interrupted = SearchBudget(1000.0, on_progress=lambda progress: interrupted.interrupt())
    assert stopped_by(interrupted) == "interrupt"

    proven = SearchBudget()
    assert find_schedule(make_shape("vshape", 4), micro_batches=8, budget=proven).optimal
    assert proven.stopped_by == "proven"


def test_a_part_spends_what_the_whole_has() -> None:
    whole = SearchBudget(10.0, None, clock=lambda: 0.0)
    part = whole.part(0.25)
    part.charge(OPERATIONS_A_UNIT)
    assert (part.operations, whole.operations) == (OPERATIONS_A_UNIT, OPERATIONS_A_UNIT)
    assert not part.is_over
    assert part.covers(1.5 * OPERATIONS_A_UNIT)
    assert not part.covers(1.6 * OPERATIONS_A_UNIT)
    part.charge(3 * OPERATIONS_A_UNIT)
    assert part.is_over
    assert not whole.is_over
    assert whole.stopped_by == "work"
    assert whole.part(0.5).operations_left == 3 * OPERATIONS_A_UNIT
    part.interrupt()
    assert whole.is_over
    assert whole.part(1.0).stopped_by == "interrupt"


def test_time_that_is_up_ended_a_search_whatever_ended_its_parts() -> None:
    now = [0.0]
    whole = SearchBudget(10.0, 5.0, clock=lambda: now[0])
    first, second = whole.part(0.25), whole.part(0.5)
    first.charge(3 * OPERATIONS_A_UNIT)
    assert first.is_over
    now[0] = 6.0
    assert second.is_over
    assert whole.stopped_by == "time"


def test_parts_of_time_are_parts_of_the_time_left() -> None:
    now = [0.0]
    whole = SearchBudget(None, 10.0, clock=lambda: now[0])
    now[0] = 2.0
    part = whole.part(0.25)
    assert part.seconds_left == 2.0
    assert whole.part(1.0, kept_s=1.0).seconds_left == 7.0
    now[0] = 4.0
    assert (part.is_over, whole.is_over) == (True, False)
    assert whole.stopped_by == "time"


@pytest.mark.parametrize(
    ("clock", "real"), [(search_clock, time.monotonic), (processor_clock, time.process_time)]
)
def test_clocks_stand_still_for_every_thread_until_the_last_body_has_ended(
    clock: Callable[[], float], real: Callable[[], float]
) -> None:
    """A first body ends while a second one goes on, and one lies within another."""
    has_begun, may_end, has_ended = (threading.Event() for _ in range(3))

    def load() -> None:
        with stopped_clock(), stopped_clock():
            has_begun.set()
            may_end.wait()
        has_ended.set()

    def pass_time() -> None:
        until = real() + 0.02
        while real() < until:
            pass

    thread = threading.Thread(target=load)
    thread.start()
    has_begun.wait()
    began = clock()
    pass_time()
    assert clock() == began
    with stopped_clock():
        may_end.set()
        has_ended.wait()
        pass_time()
        assert clock() == began
        before = real()
    thread.join()
    pass_time()
    assert 0.02 <= clock() - began <= real() - before + 1e-6
    assert SearchBudget(None, 1000.0, clock=clock).seconds_left > 900


def test_work_is_cut_by_no_time_unless_told() -> None:
    assert SearchBudget(3.0).seconds_left == SearchBudget().seconds_left == math.inf


def test_a_printed_document_is_read_again_and_other_keys_are_refused() -> None:
    found = find_schedule(make_shape("vshape", 2), micro_batches=3)
    printed = msgspec.json.encode({**msgspec.json.decode(found.to_json()), "stopped_by": "proven"})
    assert decode_schedule(printed) == found
    assert b"stopped_by" not in found.to_json()
    with pytest.raises(Exception, match="unknown field `stopped`"):
        decode_schedule(msgspec.json.encode({**msgspec.json.decode(found.to_json()), "stopped": 1}))


def test_the_bound_of_a_repetend_search_holds_for_all_numbers_of_copies() -> None:
    placement = make_shape("vshape", 4)
    one = find_repetend(placement, memory=3, max_copies=1)
    assert (one.rate, one.least_rate, one.rate_lower_bound) == (8, 8, Fraction(16, 3))
    three = find_repetend(placement, memory=3, max_copies=3)
    assert three.rate == three.least_rate == Fraction(16, 3)
