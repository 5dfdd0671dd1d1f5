"""Progress on stderr: a bar on a terminal, and a plain line now and then where stderr is a file or a pipe.

Both say what is done, the time it took, and what is left where that can be known. Logs of long runs stay
short, since a line stands for ten seconds. With --verbose there are lines too, for log lines and a bar would
overwrite each other.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from tessel.progress.control_characters import printable

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines."""


class Reporter:
    """Takes how far the work is; `tessel.progress.messages.bar` makes one."""

    def __init__(self, progress: Progress, description: str, limit_s: float | None) -> None:
        self._progress = progress
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._changing = threading.Lock()  # for a moment there is no task
        self._task = self._add_task(description)

    def __call__(self, text: str, completed: float | None = None, total: float | None = None) -> None:
        """Say what is being done, and how much of how much; counts not given are not known."""
        with self._changing:
            if total is None and self._progress.tasks[0].total is not None:
                # A part of the work that cannot be counted follows one that could: its counts are over.
                self._progress.remove_task(self._task)
                self._task = self._add_task(text)
            self._progress.update(self._task, description=printable(text), completed=completed, total=total)

    def line(self) -> str:
        """Return what the bar would show as one line of text."""
        with self._changing:
            (task,) = self._progress.tasks
        return f"{task.description}: {_describe(task)}"

    def _add_task(self, text: str) -> TaskID:
        return self._progress.add_task(printable(text), total=None, limit_s=self._limit_s, began=self._began)


@contextmanager
def show_progress(
    console: Console, description: str, *, limit_s: float | None, bar: bool
) -> Iterator[Reporter]:
    """Show progress on the console while the body runs.

    Args:
        console: where; nothing is shown if it is quiet.
        limit_s: seconds after which the body ends at the latest; None where nobody knows.
        bar: whether to draw a bar; else a plain line every `PLAIN_EVERY_S`.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        _DoneColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not bar) as progress:
        reporter = Reporter(progress, description, limit_s)
        if bar or console.quiet:
            yield reporter
            return
        over = threading.Event()
        writer = threading.Thread(
            name="progress", target=_write_lines, args=(console, reporter, over), daemon=True
        )
        writer.start()
        try:
            yield reporter
        finally:
            over.set()
            writer.join()


def _write_lines(console: Console, reporter: Reporter, over: threading.Event) -> None:
    while not over.wait(PLAIN_EVERY_S):
        console.print(reporter.line(), markup=False, soft_wrap=True)


class _DoneColumn(ProgressColumn):
    """What is done, the time it took, and the time that is left where that can be known."""

    def render(self, task: Task) -> Text:
        return Text(_describe(task))


def _describe(task: Task) -> str:
    return describe_rest(
        task.completed,
        task.total,
        elapsed_s=time.monotonic() - task.fields["began"],
        remaining_s=task.time_remaining,
        limit_s=task.fields["limit_s"],
    )


def describe_rest(
    completed: float,
    total: float | None,
    *,
    elapsed_s: float,
    remaining_s: float | None,
    limit_s: float | None,
) -> str:
    """Return what is done and left, such as `12/40, 0:09, about 0:21 left`."""
    counts = [] if not completed and total is None else [f"{completed:.0f}"]
    if total is not None:
        counts = [f"{completed:.0f}/{total:.0f}"]
    left = []
    if total is not None and completed >= total:
        left = ["finishing"]
    elif total is not None and remaining_s is not None:
        left = [f"about {_clock(remaining_s)} left"]
    elif limit_s is not None:
        left = [f"at most {_clock(limit_s - elapsed_s)} left" if elapsed_s < limit_s else "finishing"]
    return ", ".join([*counts, _clock(elapsed_s), *left])


def _clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes:0>5}"
