"""Tasks beside one another, and what becomes of them when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from tvm import ir

from tuner.stages.task_pool import StoppedError, TaskPool

NOTHING = ir.IRModule()


def test_tasks_run_at_once_and_give_their_own_results() -> None:
    meeting = threading.Barrier(2, timeout=300)

    def run(module, inputs):
        meeting.wait()  # Neither would pass alone.
        return [inputs[0] + 1]

    with TaskPool(run, jobs=2) as lanes:
        later = [lanes.start(lambda n=n: lanes.run(NOTHING, [np.array(n)])[0]) for n in (1, 2)]
        assert [int(wait()) for wait in later] == [2, 3]


def test_one_job_runs_in_the_callers_thread_in_order() -> None:
    ran = []
    with TaskPool(lambda module, inputs: [ran.append(threading.current_thread())]) as lanes:
        lanes.start(lambda: lanes.run(NOTHING, ()))
        assert ran == [threading.current_thread()]


def test_where_one_fails_others_end_with_the_module_that_they_run() -> None:
    running, may_end = threading.Event(), threading.Event()
    ran = []

    def run(module, inputs):
        running.set()
        assert may_end.wait(300)
        ran.append(module)
        return inputs

    def run_three(lanes: TaskPool) -> None:
        for _ in range(3):
            lanes.run(NOTHING, ())

    def fail_beside(lanes: TaskPool) -> None:
        with lanes:
            waiting.append(lanes.start(lambda: run_three(lanes)))
            assert running.wait(300)
            threading.Thread(target=lambda: (lanes._is_stopped.wait(), may_end.set())).start()
            raise ValueError("wrong")

    waiting: list[Callable[[], None]] = []
    with pytest.raises(ValueError, match="wrong"):
        fail_beside(TaskPool(run, jobs=2))
    assert len(ran) == 1
    with pytest.raises(StoppedError):
        waiting[0]()


def test_what_waits_when_one_fails_is_never_started() -> None:
    started, may_end = threading.Event(), threading.Event()
    later = []

    def wait() -> None:
        started.set()
        assert may_end.wait(300)

    def fail_before_the_last_starts(lanes: TaskPool) -> None:
        with lanes:
            for _ in range(2):
                lanes.start(wait)
            lanes.start(lambda: later.append(1))
            assert started.wait(300)
            threading.Thread(target=lambda: (lanes._is_stopped.wait(), may_end.set())).start()
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail_before_the_last_starts(TaskPool(lambda module, inputs: inputs, jobs=2))
    assert not later


def test_only_an_interruption_ends_what_runs() -> None:
    interrupted = []
    for error in (ValueError, KeyboardInterrupt):
        lanes = TaskPool(lambda module, inputs: inputs, jobs=2, interrupt=lambda: interrupted.append(1))
        with pytest.raises(error), lanes:
            raise error
        assert len(interrupted) == (error is KeyboardInterrupt)
