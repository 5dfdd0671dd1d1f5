"""The current activity of each rank, readable by another process even if the rank hangs.

A rank that hangs makes the others wait for it, so the culprit is a rank that is not waiting. Each rank keeps
one line in a small file that is mapped into its memory: writing it costs about a microsecond and no system
call. A thread of the rank appends the time every half second, its heartbeat. Silence alone is no evidence: a
busy machine delays a thread, and a long computation may hold the interpreter's lock. Only a rank that is
silent and whose process the system lists as stopped will not continue by itself. Checked in
tests/tessel/engine/ranks/test_launch.py.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil

_BYTES = 128
_BEAT = struct.Struct("<d")
"""Seconds on the machine's monotonic clock, which all its processes share."""

_BEAT_PERIOD_S = 0.5


class Standing(NamedTuple):
    """What a rank was last seen doing, and whether that is to wait for other ranks.

    Attributes:
        what: what it does, in words.
        is_stopped: whether the process is stopped, by a signal or by a debugger.
        silent_s: seconds since its last heartbeat; 0 before the first.
    """

    is_waiting: bool
    what: str
    is_stopped: bool = False
    silent_s: float = 0.0


class Progress:
    """The line of one rank; the rank itself writes it."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = _path(folder, rank)
        path.write_bytes(bytes(_BYTES + _BEAT.size))
        self._process = os.getpid()
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES + _BEAT.size)

    def start_heartbeat(self) -> None:
        """Write the time every half second from now on, until the process ends."""

        def beat() -> None:
            while True:
                self._map[_BYTES:] = _BEAT.pack(time.monotonic())
                time.sleep(_BEAT_PERIOD_S)

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()

    def work(self, what: str) -> None:
        """Say that the rank is at work on something of its own."""
        self._write(f"!{what}")

    def wait(self, what: str) -> None:
        """Say that the rank waits for others."""
        self._write(f".{what}")

    def _write(self, line: str) -> None:
        self._map[:_BYTES] = f"{self._process} {line}".encode()[:_BYTES].ljust(_BYTES, b"\0")


def read_standing(folder: Path, rank: int) -> Standing:
    """Return what a rank was doing last; one that has not begun is at work."""
    path = _path(folder, rank)
    content = path.read_bytes() if path.exists() else b""
    process, _, line = content[:_BYTES].rstrip(b"\0").decode(errors="replace").partition(" ")
    beat = _BEAT.unpack(content[_BYTES:])[0] if len(content) == _BYTES + _BEAT.size else 0.0
    return Standing(
        is_waiting=line.startswith("."),
        what=line[1:] or "starting",
        is_stopped=process.isdigit() and is_stopped(int(process)),
        silent_s=time.monotonic() - beat if beat else 0.0,
    )


def is_stopped(process: int) -> bool:
    """Whether the system lists a process as stopped; False of one that has ended."""
    try:
        return psutil.Process(process).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
