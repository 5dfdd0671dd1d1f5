"""Tasks that run modules, several at once where whoever runs them has the processes for it.

A task is Python that waits for modules to run elsewhere, so threads suffice. Checked in
tests/tuner/stages/test_task_pool.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from tuner.frontend.model import Run
from tuner.graph.relax_types import IRModule

_Result = TypeVar("_Result")


class StoppedError(Exception):
    """Another task has failed, or the user has interrupted: this one's result is of no use."""


class TaskPool:
    """Runs tasks beside one another; where one fails, the others end with the module that they run.

    Args:
        run: executes a module; called by several threads at once where there are several lanes.
        jobs: how many tasks run at once; with 1 each runs in the caller's own thread when it is started.
        interrupt: ends what runs at once, when the user interrupts.
    """

    def __init__(self, run: Run, *, jobs: int = 1, interrupt: Callable[[], None] = lambda: None) -> None:
        self._run = run
        self._interrupt = interrupt
        self._is_stopped = threading.Event()
        self._threads = ThreadPoolExecutor(jobs) if jobs > 1 else None

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._is_stopped.set()
            if not isinstance(error, Exception):
                self._interrupt()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def run(self, module: IRModule, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run a module for a task.

        Raises:
            StoppedError: nobody needs the task's result any more.
        """
        if self._is_stopped.is_set():
            raise StoppedError
        return self._run(module, inputs)

    def start(self, task: Callable[[], _Result]) -> Callable[[], _Result]:
        """Start a task, which runs modules by `run`; return what waits for its result."""
        if self._threads is None:
            result = task()
            return lambda: result
        return self._threads.submit(task).result
