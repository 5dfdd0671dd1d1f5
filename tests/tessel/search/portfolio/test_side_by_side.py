"""Strategies side by side: as good as the plain search, and the same for any number of processes."""

from __future__ import annotations

import threading
import time

import pytest

from tessel.errors import InfeasibleError
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.portfolio.side_by_side import find_schedule_side_by_side
from tessel.search.portfolio.strategies import STRATEGIES
from tessel.search.progress import Progress
from tessel.shapes import vshape, zbv
from tessel.validation import check_schedule

OPEN_PROBLEM = zbv(4, split_backward=True)
"""Not proven within a few tenths of a unit, with 12 micro-batches and memory for 5 units."""


def test_answers_are_those_of_the_best_strategy_whatever_the_number_of_processes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    alone = find_schedule(OPEN_PROBLEM, micro_batches=12, memory=5, budget=SearchBudget(0.2))
    budgets = [SearchBudget(0.2), SearchBudget(0.2)]
    found = [
        find_schedule_side_by_side(OPEN_PROBLEM, micro_batches=12, memory=5, budget=budget, jobs=jobs)
        for budget, jobs in zip(budgets, (1, 3), strict=True)
    ]
    assert [budget.stopped_by for budget in budgets] == ["work", "work"]
    assert capfd.readouterr().err == ""
    check_schedule(found[0])
    assert found[0].starts == found[1].starts
    assert found[0].lower_bound == found[1].lower_bound
    assert found[0].found_by == found[1].found_by
    assert found[0].makespan <= alone.makespan
    assert found[0].lower_bound >= alone.lower_bound


def test_the_first_strategy_is_the_plain_search() -> None:
    assert STRATEGIES[0].seed_offset == 0
    assert STRATEGIES[0].left_out == frozenset()


def test_a_proof_ends_all_and_progress_only_gets_better() -> None:
    told: list[Progress] = []
    budget = SearchBudget(1.0, on_progress=told.append)
    found = find_schedule_side_by_side(vshape(4), micro_batches=8, memory=4, budget=budget, jobs=2)
    assert (found.makespan, found.optimal, budget.is_proven) == (44, True, True)
    makespans = [each.makespan for each in told]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] == 44


def test_an_interrupt_returns_the_best_so_far() -> None:
    budget = SearchBudget(work_limit=None, time_limit_s=None)
    timer = threading.Thread(target=lambda: _interrupt_when_found(budget), daemon=True)
    timer.start()
    found = find_schedule_side_by_side(OPEN_PROBLEM, micro_batches=12, memory=5, budget=budget, jobs=2)
    check_schedule(found)
    assert budget.stopped_by == "interrupt"


def _interrupt_when_found(budget: SearchBudget) -> None:
    while not budget.has_answer:
        time.sleep(0.02)
    budget.interrupt()


def test_impossible_limits_and_wrong_numbers_are_refused_before_any_process_starts() -> None:
    with pytest.raises(InfeasibleError, match="needs at least"):
        find_schedule_side_by_side(zbv(2), micro_batches=4, memory=1)
    with pytest.raises(ValueError, match="jobs is 0"):
        find_schedule_side_by_side(zbv(2), micro_batches=4, jobs=0)
