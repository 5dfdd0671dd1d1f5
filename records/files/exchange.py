"""Export and import of records as JSON Lines.

Each line is one record that stands alone: ``` {"digest": "…", "measurement": {…}, "schema_version": 1,
"workload": {…}} ``` Keys are sorted, and lines are ordered by the time of measurement, then by digest, so the
same records give the same bytes from any store, and exporting an imported file reproduces it byte for byte.
Record ids belong to a store and are omitted. A file may come from an untrusted source: every line is bounded
in size, decoded into typed values only, and checked against its digest, and `check_records` validates all of
them before the first is imported. A file that begins as gzip does is read through it, so that a published
data file needs no second step; the limit on lines bounds what a small file can unfold to at a time. Checked
in tests/records/files/test_exchange.py and, with changed files, tests/records/test_untrusted.py.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import msgspec

from records.database.salvage import iterate_by_time
from records.database.store import RecordStore
from records.errors import RecordError, RecordFileError
from records.files.lines import read_lines
from records.measurement import Measurement
from records.output import open_output, output_problem
from records.own_files import FileKind, other_files_named
from records.record import Record, measurement_digest, storable
from records.workload import Workload

LINE_SCHEMA_VERSION = 1

_GZIP = b"\x1f\x8b"

_MAX_REASON = 300
"""Characters of the reason in a message; it may quote a key from the file, as long as a line."""


class ExportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an export wrote, and the records that it left out because they are damaged."""

    written: int
    damaged: tuple[str, ...] = ()


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    digest: str
    measurement: Measurement
    schema_version: int
    workload: Workload


def export_records(store: RecordStore, file: BinaryIO, *, skip_damaged: bool = False) -> ExportSummary:
    """Write all records of a store, in an order that depends on nothing but the records.

    Args:
        store: where they are.
        skip_damaged: leave out damaged records and name them, instead of refusing.

    Raises:
        RecordFileError: a record is damaged.
    """
    damaged: list[str] = []
    written = 0
    for record in iterate_by_time(store, on_damage=damaged.append if skip_damaged else None):
        file.write(encode_line(record) + b"\n")
        written += 1
    return ExportSummary(written=written, damaged=tuple(damaged))


def save_records(
    store: RecordStore, path: str | os.PathLike[str], *, skip_damaged: bool = False
) -> ExportSummary:
    """Export to a file that appears whole or not at all.

    Raises:
        RecordFileError: a record is damaged.
        RecordError: the file cannot be written.
    """
    try:
        with open_output(path) as file:
            return export_records(store, file, skip_damaged=skip_damaged)
    except OSError as error:
        raise RecordError(f"records: {output_problem(path, error)}") from error


def check_records(path: str | os.PathLike[str]) -> int:
    """Read a whole file and return the number of its records; do this before importing what a stranger sent.

    Raises:
        RecordFileError: the file cannot be read, or a line is no record; the line is named.
    """
    return sum(1 for _ in read_records(path))


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[Workload, Measurement]]:
    """Yield the records of a JSON Lines file, perhaps gzipped, each checked.

    Memory is bounded by the longest line.

    Raises:
        RecordFileError: the file cannot be read, or a line is no record.
    """
    try:
        with (
            other_files_named(path, "a file of records", RecordFileError, (FileKind.RECORDS,)),
            open(path, "rb") as file,
        ):
            is_packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            lines = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file
            for number, (_, line) in enumerate(read_lines(lines, str(path)), start=1):
                yield decode_line(line, f"{path}, line {number}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RecordFileError(
            f"{path} is gzipped and damaged ({error}); copy it again, or name a file of records"
        ) from error
    except OSError as error:
        raise RecordFileError(f"{path} cannot be read ({error.strerror}); name a file of records") from error


def encode_line(record: Record) -> bytes:
    """Return a record as one line of JSON, without its end."""
    line = _Line(
        digest=record.digest,
        measurement=record.measurement.as_kept(),
        schema_version=LINE_SCHEMA_VERSION,
        workload=record.workload,
    )
    return msgspec.json.encode(line, order="sorted")


def decode_line(line: bytes, place: str) -> tuple[Workload, Measurement]:
    """Return what one line says.

    Args:
        line: the line, without its end.
        place: file and number of the line, for the message.

    Raises:
        RecordFileError: the line is no record, is damaged, or was written by a newer version.
    """
    try:
        version = msgspec.json.decode(line, type=_Version).schema_version
        if version != LINE_SCHEMA_VERSION:
            raise RecordFileError(
                f"{place}: schema version {version} is not the {LINE_SCHEMA_VERSION} that this installation "
                "reads; upgrade tessel-tuner"
            )
        decoded = _line_decoder.decode(line)
        # Read again from its own text: that is where its schema version is looked at.
        workload = Workload.from_json(decoded.workload.to_json())
        measurement = storable(workload, decoded.measurement)
        if measurement != decoded.measurement or measurement_digest(measurement) != decoded.digest:
            raise ValueError("what it says differs from its digest")
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise RecordFileError(
            f"{place}: not a record ({reason}); export the records again, or remove the line"
        ) from error
    return workload, measurement.as_current()


class _Version(msgspec.Struct, frozen=True):
    """The one key of a line that is read before it is known which keys the line may have."""

    schema_version: int


_line_decoder = msgspec.json.Decoder(_Line)
