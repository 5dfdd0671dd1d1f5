"""A search whose compiled code is not there yet: say so, have it compiled meanwhile, and end in time.

Compiling takes longer than most time limits. So the first search on a machine runs uncompiled, some hundred
times slower with the same answers, while another process compiles for the next one. Uncompiled code looks at
the clock too rarely; a timer interrupts it, as Ctrl-C would, and the best so far is the answer.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from scripts import console
from tessel.errors import ScheduleError
from tessel.search.cold_start import compile_in_background, is_compiled

LONG_S = 60.0
"""Time limits from which on it pays to compile first, within the limit."""

PATIENCE = 2.0
"""Multiple of the limit after which an uncompiled search without any answer ends."""


_OWN_PROCESS: list[bool] = []
"""Not empty where the process runs one command and ends."""


@dataclass(slots=True)
class _Timer:
    """The time limit of an uncompiled search.

    Attributes:
        is_late: the limit is over.
        has_answer: there is something to return.
        is_done: the search has been interrupted; what follows is not to be.
    """

    is_late: bool = False
    has_answer: bool = False
    is_done: bool = False

    def ring(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the search; the first time only if there is an answer."""
        if self.has_answer or self.is_late:
            self._interrupt()
        self.is_late = True

    def note_answer(self) -> None:
        """Remember that there is an answer; interrupt where it came late."""
        self.has_answer = True
        if self.is_late:
            self._interrupt()

    def _interrupt(self) -> None:
        if not self.is_done:
            self.is_done = True
            raise KeyboardInterrupt


def own_process() -> None:
    """Say that the process ends with the command, so that it may run uncompiled."""
    _OWN_PROCESS.append(True)


def run_uncompiled_if_cold(time_limit_s: float) -> None:
    """Where nothing is compiled and time is short, let this process search uncompiled, if it is its own.

    To be called before anything imports numba.
    """
    is_decided = "numba" in sys.modules or "NUMBA_DISABLE_JIT" in os.environ
    if not _OWN_PROCESS or is_decided or is_compiled():
        return
    if time_limit_s >= LONG_S:
        console.print_note("compiling the search, once on this machine; that takes part of the time limit")
        return
    compile_in_background()
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    console.print_note(
        "the search is being compiled in the background, once on this machine; till then, for half a minute "
        "or so, searches are a hundred times slower and end with the best found in their time"
    )


@contextmanager
def ended_in_time(time_limit_s: float) -> Iterator[Callable[[], None]]:
    """Interrupt an uncompiled search when its time is over; yields what to call at each answer.

    Raises:
        ScheduleError: there was no answer in time.
    """
    is_needed = os.environ.get("NUMBA_DISABLE_JIT") == "1" and hasattr(signal, "setitimer")
    if not is_needed or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    timer = _Timer()
    before = signal.signal(signal.SIGALRM, timer.ring)
    signal.setitimer(signal.ITIMER_REAL, time_limit_s, (PATIENCE - 1) * time_limit_s)
    try:
        yield timer.note_answer
    except KeyboardInterrupt:
        if not timer.is_done:
            raise
        raise ScheduleError(
            f"the uncompiled search has found nothing in {PATIENCE * time_limit_s:g} s; it is being "
            "compiled: call again in a minute, or give more time"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
