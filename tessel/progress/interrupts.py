"""Handling of Ctrl-C, from the program's first instruction to its last.

A signal may come at any moment: while modules are imported, inside a library's callback, or while the answer
is printed. Raised there, KeyboardInterrupt becomes a traceback or is lost. So one handler is installed before
anything else, and what it does depends on what is under way:

    start, imports        leave at once: there is nothing to keep yet
    a command's work      raise KeyboardInterrupt: the command keeps what is finished
    a search              ask it to end; the best so far is the answer (`called`)
    printing, saving      go on; a second one, a second or more later, leaves (`deferred`)

A script or a notebook that calls a job keeps its own handler: there the job's is installed for its searches
alone, and where a command would leave the process, KeyboardInterrupt is raised.

Only the standard library is imported here, and little of it. Checked in
tests/tessel/progress/test_interrupts.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130

MESSAGE = "interrupted; finished measurements are kept"

PATIENCE_S = 1.0
"""Seconds after which a second Ctrl-C ends the process: the first one has not helped."""

_SHOW_CURSOR = b"\x1b[?25h"
"""Progress bars hide the cursor of a terminal."""


def install() -> None:
    """Take Ctrl-C over for the whole process, unless it was started with Ctrl-C switched off."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    _state.action = leave
    _state.is_installed = True
    signal.signal(signal.SIGINT, _handle)
    sys.unraisablehook = _leave_where_lost


def leave() -> None:
    """End the process at once with one line; of a process that is not the command's, raise KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: the process is the caller's own.
    """
    if not _state.is_installed:
        _raise()
    line = f"tessel: {MESSAGE}\n".encode()
    try:
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + line)
    finally:
        os._exit(EXIT_INTERRUPTED)


def raise_in_work() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, save in the middle of an import."""
    _state.was_raised = False
    _state.action = _raise


def leave_quietly(status: int) -> None:
    """Let Ctrl-C end the process with this status from now on: everything has been said."""
    _state.action = lambda: os._exit(status)


@contextmanager
def called(action: Callable[[], None]) -> Iterator[None]:
    """Call a function at each Ctrl-C while the body runs."""
    before, _state.action = _state.action, action
    takes_over = _is_callers_own()
    if takes_over:
        signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        _state.action = before
        if takes_over:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_callers_own() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt here, as in a script or a notebook that calls a job."""
    is_main = threading.current_thread() is threading.main_thread()  # in others no handler can be set
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def deferred() -> Iterator[None]:
    """Finish the body whatever comes; a second Ctrl-C after `PATIENCE_S` leaves all the same."""
    first: list[float] = []

    def note() -> None:
        if first and time.monotonic() - first[0] >= PATIENCE_S:
            leave()
        first.append(time.monotonic())

    with called(note):
        yield


class _State:
    """What Ctrl-C does now."""

    action: Callable[[], None]
    was_raised = False
    is_installed = False


_state = _State()


def _handle(number: int, frame: FrameType | None) -> None:
    if _state.action is _raise and _is_importing(frame):
        leave()
    _state.action()


def _raise() -> None:
    _state.was_raised = True
    raise KeyboardInterrupt


def was_raised() -> bool:
    """Say whether Ctrl-C has interrupted a command's work; compiled code makes another error of it."""
    return _state.was_raised


_state.action = _raise


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: half of one is no state to go on from."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _leave_where_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Leave where a KeyboardInterrupt was raised in a callback that cannot pass it on."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        leave()
    sys.__unraisablehook__(unraisable)
