"""Run a search in a thread beside the one that handles Ctrl-C, so that its best answer is always at hand.

The search runs in a thread of its own and looks at its budget between rounds. Where it is to end, by Ctrl-C
or because its time is over, it has a moment to do so; then the best answer so far is taken without it, in the
middle of a compiled round or of code that is not compiled yet. A search of which there is no answer yet is
waited for, however late: `find_schedule` gives none before the hand-written rules are built.
Checked in tests/tessel/jobs/test_search_thread.py and tests/tessel/progress/test_interrupts.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from tessel.search.budget import SearchBudget

GRACE_S = 0.4
"""Seconds that a search has to end by itself."""

POLL_S = 0.05
"""Seconds between two looks at a search."""

Answer = TypeVar("Answer")

_abandoned: list[threading.Thread] = []


def is_any_abandoned() -> bool:
    """Whether a search is still running whose answer was taken without it."""
    return any(thread.is_alive() for thread in _abandoned)


@contextmanager
def ended_by_interrupt(budget: SearchBudget) -> Iterator[None]:
    """Let Ctrl-C end the search in the body with its best answer, once there is one."""

    def interrupt() -> None:
        if not budget.has_answer:
            raise KeyboardInterrupt
        budget.interrupt()

    with interrupts.called(interrupt):
        yield


def run_side_by_side(
    searches: Sequence[tuple[SearchBudget, Callable[[], Answer]]], *, jobs: int
) -> list[Callable[[], Answer]]:
    """Run searches in threads, several at once; return what gives each one's answer, or raises its error.

    They share the processor's time, so limits on time make their answers depend on one another. Ctrl-C ends
    those that run with their best answers; while one of them has none, it raises KeyboardInterrupt.

    Args:
        searches: each with the budget that it spends, in the order in which they begin.
        jobs: how many run at once.
    """
    works = [(budget, _Work(search)) for budget, search in searches]
    waiting = deque(works)
    running: list[tuple[SearchBudget, _Work[Answer]]] = []

    def interrupt() -> None:
        if not all(budget.has_answer for budget, _ in running):
            raise KeyboardInterrupt
        for budget, _ in running:
            budget.interrupt()

    try:
        with interrupts.called(interrupt):
            while waiting or running:
                while waiting and len(running) < jobs:
                    budget, work = waiting.popleft()
                    running.append((budget, work))
                    budget.begin()
                    work.start()
                running[0][1].join(POLL_S)
                running = [(budget, work) for budget, work in running if work.is_alive()]
    except BaseException:
        for budget, work in running:
            budget.interrupt()
            _abandoned.append(work)
        raise
    return [work.result for _, work in works]


def run_search(
    search: Callable[[], Answer], budget: SearchBudget, *, description: str, texts: list[str] | None = None
) -> Answer:
    """Return what the search returns, or its best answer so far where it is to end and does not in time.

    Args:
        search: spends the budget, and leaves its best answer there.
        budget: its limits; its listener may be called from another thread.
        description: what is being done, for the progress that is shown.
        texts: where the search tells of its progress, of which the last is shown; the makespans that the
            budget is told of are shown if None.
    """
    work = _Work(search)
    ended_s: list[float] = []
    shown = [description] if texts is None else texts

    def interrupt() -> None:
        if not budget.has_answer:
            interrupts.leave()
        budget.interrupt()
        ended_s.append(time.monotonic())

    limit_s = None if budget.is_by_work else budget.time_limit_s
    with messages.bar(description, limit_s=limit_s) as update, interrupts.called(interrupt):
        if texts is None:
            budget.on_progress = lambda progress: shown.append(f"best so far {progress.makespan}")
        budget.begin()
        work.start()
        while work.is_alive():
            _wait(work, interrupt)
            update(shown[-1], *_percent(budget))
            if not ended_s and budget.seconds_left < 0:
                ended_s.append(time.monotonic())
            if ended_s and time.monotonic() >= ended_s[0] + GRACE_S and work.is_alive():
                answer = budget.answer() if budget.answer is not None else None
                if answer is not None:
                    _abandon(work, budget)
                    return cast(Answer, answer)  # the budget's answer is of the search that it was given to
    return work.result()


def _abandon(work: _Work[Answer], budget: SearchBudget) -> None:
    """Leave a search to end by itself: its answer has been taken."""
    if budget.is_over:  # which notes the reason before there is another
        budget.interrupt()
    _abandoned.append(work)


def _percent(budget: SearchBudget) -> tuple[int | None, int | None]:
    """How much of the work is done and of how much; unknown where only time is limited, or all is done."""
    if not budget.is_by_work or not budget.operations_left:
        return None, None
    whole = budget.operations + budget.operations_left
    return int(100 * budget.operations / max(1, whole)), 100


def _wait(work: _Work[Answer], interrupt: Callable[[], None]) -> None:
    """Wait a moment for the search to end; without a handler of ours Ctrl-C is raised here."""
    try:
        work.join(POLL_S)
    except KeyboardInterrupt:
        interrupt()


class _Work(threading.Thread, Generic[Answer]):
    """A search in a thread, with what became of it."""

    def __init__(self, search: Callable[[], Answer]) -> None:
        super().__init__(name="search", daemon=True)
        self._search = search
        self._results: list[Answer] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._results.append(self._search())
        except BaseException as error:  # raised again where the answer is waited for
            self._error = error

    def result(self) -> Answer:
        if self._error is not None:
            raise self._error
        return self._results[0]
