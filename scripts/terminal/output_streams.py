"""stdout and stderr of a one-command process: neither an unencodable character nor a closed pipe stops it.

Results of minutes of work are printed last. So text that the stream's encoding lacks is written with
backslashes; a reader who went away (`tessel … | head -1`) is no error, and the command ends as it would have.
What libraries and child processes write to stdout while a command runs goes to stderr, whether they write to
the process's descriptor (`take_over`) or to `sys.stdout` (`for_results_alone`), so that stdout has results
alone. Checked in tests/scripts/terminal/test_output.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2

_results: list[TextIO] = []
"""The stream of results, where a command runs; the innermost one last."""


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
        # `records.output` asks this for where `--save /dev/stdout` goes.
        sys.__stdout__ = sys.stdout  # type: ignore[misc]  # the process's own stdout is another one from now on
    make_lenient(sys.stdout)


@contextlib.contextmanager
def for_results_alone() -> Iterator[None]:
    """Keep stdout for `results` while the body runs: what others print goes to stderr.

    A library's log handler may have been given `sys.stdout` (MetaSchedule's is), and would write its lines
    before or into a document.
    """
    _results.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def results() -> TextIO:
    """Return the stream that results are written to."""
    return _results[-1] if _results else sys.stdout


def make_lenient(stream: TextIO) -> None:
    """Have a stream write characters that its encoding lacks with backslashes, not refuse them."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class _ForWhoeverReads(io.FileIO):
    """A file descriptor for writing, on which it is no error that nobody reads any more.

    A full disk is an error once: what is written after it, as the process ends, is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w")
        self._has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self._has_failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            self._has_failed = True
            raise OSError(
                f"the results cannot be written to stdout, {error.strerror}; free some space, or write them "
                "elsewhere"
            ) from error
