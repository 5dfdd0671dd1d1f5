"""A search is waited for until its answer keeps `find_schedule`'s promise, at any limit and load."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tessel.handwritten import HANDWRITTEN
from tessel.jobs import search_thread
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search.budget import SearchBudget, stopped_clock
from tessel.search.jit import compiled
from tessel.search.makespan import initial_schedules
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import mshape, vshape, zbv
from tessel.validation import check_schedule

PROBLEMS = (
    (vshape(8), 32, 8),
    (zbv(3, split_backward=True, lag=1), 9, 6),
    (mshape(3, lag=1), 7, 4),
)


def best_rule(placement: Placement, micro_batches: int, memory: int) -> int:
    limits = (memory,) * placement.devices
    return min(
        rule.build(placement, micro_batches=micro_batches, memory=limits).makespan
        for rule in HANDWRITTEN
        if rule.why_not(placement, micro_batches, limits) is None
    )


def load_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all machine code be loaded anew, each function for longer than the limits."""
    call: Callable[..., Any] = compiled._Compiled.__call__
    loaded = set()

    def load_and_call(self: Any, *arguments: object, **more: object) -> object:
        if self not in loaded:
            loaded.add(self)
            with stopped_clock():
                time.sleep(0.03)
        return call(self, *arguments, **more)

    monkeypatch.setattr(compiled._Compiled, "__call__", load_and_call)


def build_rules_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rule take longer than the limits, as on a busy machine."""
    build = initial_schedules.rule_schedules

    def sleep_and_build(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.01)
        return build(*arguments, **more)

    monkeypatch.setattr(initial_schedules, "rule_schedules", sleep_and_build)


@pytest.mark.parametrize("limit_s", [0.0001, 0.005, 0.02])
@pytest.mark.parametrize("slow_down", [load_slowly, build_rules_slowly])
def test_at_any_limit_and_load_no_rule_is_shorter_than_the_answer(
    slow_down: Callable[[pytest.MonkeyPatch], None], limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_thread, "GRACE_S", 0.0)
    monkeypatch.setattr(search_thread, "POLL_S", 0.001)
    least = [best_rule(*problem) for problem in PROBLEMS]
    slow_down(monkeypatch)
    for (placement, micro_batches, memory), known in zip(PROBLEMS, least, strict=True):
        budget = SearchBudget(None, limit_s)
        find: Callable[[], Schedule] = functools.partial(
            find_schedule, placement, micro_batches=micro_batches, memory=memory, budget=budget
        )
        found = search_thread.run_search(find, budget, description="searching")
        check_schedule(found)
        assert found.makespan <= known
        assert budget.stopped_by == ("proven" if found.optimal else "time")


def test_an_interrupt_while_rules_are_built_has_no_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C then leaves the command; an interrupt by the program ends the search after them."""
    placement, micro_batches, memory = PROBLEMS[1]
    known = best_rule(placement, micro_batches, memory)
    budget = SearchBudget(None, None)
    build = initial_schedules.rule_schedules

    def interrupt_and_build(*arguments: Any, **more: Any) -> Any:
        assert not budget.has_answer
        assert budget.answer is None
        budget.interrupt()
        return build(*arguments, **more)

    monkeypatch.setattr(initial_schedules, "rule_schedules", interrupt_and_build)
    found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=budget)
    assert found.makespan <= known
    assert budget.stopped_by == "interrupt"
