"""Untrusted files of JSON Lines, read line by line, with a limit on the length of a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from records.errors import RecordFileError
from records.limits import MAX_LINE_BYTES


def read_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield each line from the file's position on, with its offset and without its end.

    Args:
        file: opened for reading bytes; may be moved elsewhere between two lines only by who reads no further.
        name: the file's name for messages.

    Raises:
        RecordFileError: a line is too long, or the last one has no end, so that the file was cut short.
    """
    offset = file.tell()
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise RecordFileError(
                f"{name} has a line of more than {MAX_LINE_BYTES // 2**20} MiB, which no record needs; name "
                "a file of records"
            )
        if not line.endswith(b"\n"):
            raise RecordFileError(
                f"{name} ends within a line, so it was cut short; copy it again, or remove its last line"
            )
        yield offset, line[:-1]
        offset += len(line)
