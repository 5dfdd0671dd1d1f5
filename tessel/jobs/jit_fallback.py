"""A search without compiled code: compile it first, or run uncompiled under a short time limit.

Compiling takes half a minute, once per machine, and counts against no limit. A search with a limit on work
waits for it, so that its answer is the one of every other machine. With a short limit on time the search runs
uncompiled, some hundred times slower with the same steps, while another process compiles for the next one;
`tessel.jobs.search_thread` ends it in time. Where no folder can be written, every search does.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

import os
import sys
import time

from tessel.progress import messages
from tessel.search.jit.cache import compile_in_background, is_compiled, is_compiling, is_kept

LONG_S = 60.0
"""Time limits from which on it pays to compile first."""

POLL_S = 0.2
"""Seconds between two looks whether everything is compiled."""

_OWN_PROCESS: list[bool] = []
"""Not empty where the process runs one command and ends."""


def own_process() -> None:
    """Say that the process ends with the command, so that it may run uncompiled."""
    _OWN_PROCESS.append(True)


def compile_or_do_without(time_limit_s: float | None) -> None:
    """Where nothing is compiled, wait for it, or let this process search uncompiled, if it is its own.

    To be called before anything imports numba.

    Args:
        time_limit_s: the only limit of the search; None where its work is limited.
    """
    is_decided = "numba" in sys.modules or "NUMBA_DISABLE_JIT" in os.environ
    if is_decided or is_compiled():
        return
    if not _OWN_PROCESS:  # a script or a notebook goes on after the search, which stays compiled
        if is_kept():
            compile_in_background()
            _wait_until_compiled()
        return
    if not is_kept():
        os.environ["NUMBA_DISABLE_JIT"] = "1"
        messages.note(
            "the compiled search cannot be kept, as neither the installation nor the home folder can be "
            "written: searches run uncompiled, a hundred times slower; set NUMBA_CACHE_DIR to a folder that "
            "can be written"
        )
        return
    compile_in_background()
    if time_limit_s is None or time_limit_s >= LONG_S:
        _wait_until_compiled()
        return
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    messages.note(
        "the search is being compiled in the background, once on this machine; till then, for half a minute "
        "or so, searches are a hundred times slower and end with the best found in their time"
    )


def _wait_until_compiled() -> None:
    """Wait for the process that compiles; where it does not end, the search compiles what it needs itself."""
    with messages.bar("compiling the search, once on this machine; that counts against no limit"):
        while is_compiling() and not is_compiled():
            time.sleep(POLL_S)
