"""stdout and stderr of a one-command process: neither an unencodable character nor a closed pipe stops it.

Results of minutes of work are printed last. So text that the stream's encoding lacks is written with
backslashes; a reader who went away (`tessel … | head -1`) is no error, and the command ends as it would have;
and what libraries and child processes write to the process's own stdout goes to stderr, so that stdout has
results alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2


def take_over() -> None:
    """Put the process's stdout and stderr in order; once, before anything is printed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for the rest of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return
    make_lenient(sys.stderr)
    with contextlib.suppress(OSError, ValueError):  # where stdout is no file there is nothing to take over
        sys.stdout.flush()
        results = os.dup(sys.stdout.fileno())
        os.dup2(_STDERR, _STDOUT)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_ForWhoeverReads(results)),
            encoding=sys.stdout.encoding,
            line_buffering=os.isatty(results),
        )
    make_lenient(sys.stdout)


def make_lenient(stream: TextIO) -> None:
    """Have a stream write characters that its encoding lacks with backslashes, not refuse them."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class _ForWhoeverReads(io.FileIO):
    """A file descriptor for writing, on which it is no error that nobody reads any more."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w")

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
