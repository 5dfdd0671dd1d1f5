"""Searches beside one another give what each gives alone, and end together at Ctrl-C."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tessel.errors import ScheduleError
from tessel.jobs.search_thread import run_side_by_side
from tessel.placement import Placement
from tessel.progress import interrupts
from tessel.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import mshape, vshape, zbv

WORK = 0.2


def search(placement: Placement, budget: SearchBudget) -> Schedule:
    return find_schedule(placement, micro_batches=6, memory=5, budget=budget)


def test_answers_are_those_of_each_search_alone() -> None:
    placements = (
        vshape(4, split_backward=True),
        mshape(4),
        zbv(3, split_backward=True, lag=1),
        vshape(3, choose_backward=True, backward_input_span=2, backward_weight_span=2),
    )
    alone = [search(each, SearchBudget(work_limit=WORK, time_limit_s=None)) for each in placements]
    for jobs in (1, 2, 4):
        budgets = [SearchBudget(work_limit=WORK, time_limit_s=None) for _ in placements]
        searches = [
            (budget, functools.partial(search, placement, budget))
            for budget, placement in zip(budgets, placements, strict=True)
        ]
        found = [answer() for answer in run_side_by_side(searches, jobs=jobs)]
        assert [each.starts for each in found] == [each.starts for each in alone]
        assert [each.lower_bound for each in found] == [each.lower_bound for each in alone]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_run_at_once_than_are_asked_for(jobs: int) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return number

    searches = [(SearchBudget(), functools.partial(call, number)) for number in range(7)]
    assert [answer() for answer in run_side_by_side(searches, jobs=jobs)] == list(range(7))
    assert most <= jobs


def test_an_error_is_that_of_its_search_alone() -> None:
    def fail() -> str:
        raise ScheduleError("nothing was found")

    wrong, right = run_side_by_side([(SearchBudget(), fail), (SearchBudget(), lambda: "found")], jobs=2)
    assert right() == "found"
    with pytest.raises(ScheduleError, match="nothing was found"):
        wrong()


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C as the program takes it, in this process."""
    before = signal.signal(signal.SIGINT, interrupts._handle)
    interrupts.raise_in_work()
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def spend(budget: SearchBudget, has_begun: threading.Event) -> str:
    budget.report(1, 0, "a rule")
    has_begun.set()
    while not budget.is_over:
        time.sleep(0.001)
    return budget.stopped_by


def test_ctrl_c_ends_those_that_run_and_others_begin(ctrl_c: Callable[[], None]) -> None:
    budgets = [SearchBudget(None, None) for _ in range(2)]
    begun = [threading.Event() for _ in budgets]
    searches = [
        (budget, functools.partial(spend, budget, event))
        for budget, event in zip(budgets, begun, strict=True)
    ]

    def interrupt_when_all_have_begun() -> str:
        for event in begun:
            event.wait()
        ctrl_c()
        return "interrupts"

    last = SearchBudget(None, 0.01)
    last_begun = threading.Event()
    first = SearchBudget(None, None)
    first.report(1, 0, "a rule")
    found = run_side_by_side(
        [
            (first, interrupt_when_all_have_begun),
            *searches,
            (last, functools.partial(spend, last, last_begun)),
        ],
        jobs=3,
    )
    assert [answer() for answer in found] == ["interrupts", "interrupt", "interrupt", "time"]


def test_ctrl_c_before_there_is_an_answer_leaves_none(ctrl_c: Callable[[], None]) -> None:
    budgets = [SearchBudget(None, None) for _ in range(2)]
    budgets[0].report(1, 0, "a rule")

    def wait(budget: SearchBudget) -> None:
        if budget is budgets[1]:
            ctrl_c()
        while not budget.is_over:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        run_side_by_side([(budget, functools.partial(wait, budget)) for budget in budgets], jobs=2)
    assert all(budget.is_interrupted for budget in budgets)
