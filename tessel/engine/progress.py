"""What each rank is doing right now, where another process can read it even when the rank hangs.

A rank that hangs makes the others wait for it, so the one to name is not the one that waits. Each rank keeps
one line in a small file that is mapped into its memory: writing it costs about a microsecond and no system
call. Checked in tests/tessel/engine/test_launch.py.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

_BYTES = 128


class Standing(NamedTuple):
    """What a rank was last seen doing, and whether that is to wait for other ranks."""

    is_waiting: bool
    what: str


class Progress:
    """The line of one rank; the rank itself writes it."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = _path(folder, rank)
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._line = mmap.mmap(file.fileno(), _BYTES)

    def work(self, what: str) -> None:
        """Say that the rank is at work on something of its own."""
        self._write(f"!{what}")

    def wait(self, what: str) -> None:
        """Say that the rank waits for others."""
        self._write(f".{what}")

    def _write(self, line: str) -> None:
        self._line[:] = line.encode()[:_BYTES].ljust(_BYTES, b"\0")


def read_standing(folder: Path, rank: int) -> Standing:
    """Return what a rank was doing last; one that has not begun is at work."""
    path = _path(folder, rank)
    line = path.read_bytes().rstrip(b"\0").decode(errors="replace") if path.exists() else ""
    return Standing(line.startswith("."), line[1:] or "starting")


def _path(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
