"""What each rank is doing right now, where another process can read it even when the rank hangs.

A rank that hangs makes the others wait for it, so the one to name is not the one that waits. Each rank keeps
one line in a small file that is mapped into its memory: writing it costs about a microsecond and no system
call. Checked in tests/tessel/engine/test_launch.py.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import NamedTuple

_BYTES = 128


class Standing(NamedTuple):
    """What a rank was last seen doing, and whether that is to wait for other ranks.

    Attributes:
        is_waiting: whether it waits for others.
        what: what it does, in words.
        is_stopped: whether the process is stopped by a signal, where the system says so.
    """

    is_waiting: bool
    what: str
    is_stopped: bool = False


class Progress:
    """The line of one rank; the rank itself writes it."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = _path(folder, rank)
        path.write_bytes(bytes(_BYTES))
        self._process = os.getpid()
        with path.open("r+b") as file:
            self._line = mmap.mmap(file.fileno(), _BYTES)

    def work(self, what: str) -> None:
        """Say that the rank is at work on something of its own."""
        self._write(f"!{what}")

    def wait(self, what: str) -> None:
        """Say that the rank waits for others."""
        self._write(f".{what}")

    def _write(self, line: str) -> None:
        self._line[:] = f"{self._process} {line}".encode()[:_BYTES].ljust(_BYTES, b"\0")


def read_standing(folder: Path, rank: int) -> Standing:
    """Return what a rank was doing last; one that has not begun is at work."""
    path = _path(folder, rank)
    text = path.read_bytes().rstrip(b"\0").decode(errors="replace") if path.exists() else ""
    process, _, line = text.partition(" ")
    return Standing(line.startswith("."), line[1:] or "starting", _is_stopped(process))


def _is_stopped(process: str) -> bool:
    """Whether Linux lists a process as stopped; False where nothing lists processes."""
    try:
        status = Path("/proc", process, "stat").read_text()
    except OSError:
        return False
    # The name of the program, in brackets, may hold anything.
    return bool(process) and status.rpartition(")")[2].split()[0] in ("T", "t")


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
