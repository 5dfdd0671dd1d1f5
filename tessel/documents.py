"""Placements and schedules on disk: files are validated when read and written atomically.

Documents are recognised by their keys, so that a document of the wrong kind is named in the error. Derived
figures in a file are not trusted: a schedule is validated when it is loaded. Every error is one line that
names the file and, if applicable, the key. Checked in tests/tessel/test_documents.py.
"""

from __future__ import annotations

import enum
import os
from typing import Protocol, TypeVar

import msgspec

from records.output import io_reason, io_remedy, output_problem, write_output
from records.own_files import FileKind, other_files_named
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.placement import Placement
from tessel.progress.manual import manual
from tessel.schedule.schedule import Schedule, decode_schedule
from tessel.validation import check_schedule

MAX_DOCUMENT_BYTES = 256 * 2**20
"""Largest document that is read: a schedule of a million blocks has about 60 MiB."""


class DocumentKind(enum.StrEnum):
    """What a JSON document is."""

    PLACEMENT = "placement"
    SCHEDULE = "schedule"
    PLAN = "plan"
    LAYOUT = "layout"


class Document(Protocol):
    """A value that is kept as a document: a `Placement`, a `Schedule` or a `Plan`."""

    def to_json(self) -> bytes:
        """Return the document's bytes."""
        ...


def load_placement(path: str | os.PathLike[str]) -> Placement:
    """Read a placement from a placement document, or the one inside a schedule or plan.

    Raises:
        DocumentError: the file cannot be read or is no such document; the message names the key.
    """
    with other_files_named(path, "a placement", DocumentError):
        text = read_document(path)
        kind = _kind(text, path)
    if kind is DocumentKind.PLACEMENT:
        return _decode(text, Placement, path)
    return _load_schedule(text, path).placement


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a schedule document or from a plan, and validate it.

    Raises:
        DocumentError: the file cannot be read, is no such document, or claims what its starts do not show.
    """
    return _load_schedule(read_document(path), path)


def save(document: Document, path: str | os.PathLike[str]) -> None:
    """Write a placement, a schedule or a plan; the file appears whole or stays as it was.

    Raises:
        DocumentError: the folder is missing or cannot be written, or the disk is full.
    """
    save_document(path, document.to_json())


def save_document(path: str | os.PathLike[str], document: bytes) -> None:
    """Write a document so that the file appears whole or stays as it was.

    Raises:
        DocumentError: the folder is missing or cannot be written, or the disk is full.
    """
    try:
        write_output(path, document)
    except IsADirectoryError as error:
        raise DocumentError(f"{path} is a folder, and a document is a file; name a file in it") from error
    except OSError as error:
        raise DocumentError(output_problem(path, error)) from error


def detect_kind(path: str | os.PathLike[str]) -> DocumentKind:
    """Return what a file is, told by its keys.

    Raises:
        DocumentError: it cannot be read, is no JSON object, or has the keys of no known document.
    """
    return _kind(read_document(path), path)


def read_document(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a document, not yet decoded.

    Raises:
        DocumentError: the file is missing, unreadable, empty, too large or not UTF-8.
    """
    text = read_bytes(path)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        with other_files_named(path, "a document", DocumentError, (FileKind.TABLE,)):
            raise DocumentError(
                f"{path} has byte {text[error.start]:#04x} at {error.start}, which is not UTF-8; "
                "save the document as UTF-8 JSON"
            ) from error
    return text


def read_bytes(path: str | os.PathLike[str], *, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the bytes of a file.

    Args:
        most: bytes that it may have.

    Raises:
        DocumentError: the file is missing, unreadable, empty or too large.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise DocumentError(f"{path} cannot be read, {io_reason(error)}; {io_remedy(error)}") from error
    if not text.strip():
        raise DocumentError(f"{path} is empty, and a document is a JSON object; write it again")
    if len(text) > most:
        raise DocumentError(
            f"{path} is larger than {most // 2**20} MiB, more than any schedule needs; "
            "check that it is the right file"
        )
    return text


_Document = TypeVar("_Document")


def _kind(text: bytes, path: str | os.PathLike[str]) -> DocumentKind:
    keys = _decode(text, dict[str, msgspec.Raw], path).keys()
    if "starts" in keys:
        return DocumentKind.SCHEDULE
    if "layout" in keys and "schedule" in keys:
        return DocumentKind.LAYOUT
    if "schedule" in keys:
        return DocumentKind.PLAN
    if "blocks" in keys:
        return DocumentKind.PLACEMENT
    found = shown(", ".join(sorted(keys)[:5])) or "no keys"
    raise DocumentError(
        f"{path} has {found}, which is no placement, schedule or plan; "
        'a placement has "blocks", a schedule "starts", a plan "schedule" (' + manual("formats.md") + ")"
    )


def _load_schedule(text: bytes, path: str | os.PathLike[str]) -> Schedule:
    kind = _kind(text, path)
    if kind is DocumentKind.PLACEMENT:
        raise DocumentError(
            f"{path} is a placement, and a schedule is wanted; "
            f'make one with "tessel schedule {path} --save FILE"'
        )
    if kind in (DocumentKind.PLAN, DocumentKind.LAYOUT):
        text = bytes(_decode(text, dict[str, msgspec.Raw], path)["schedule"])
    try:
        schedule = decode_schedule(text)
        check_schedule(schedule)
    except ScheduleError as error:
        raise DocumentError(f"{path}: {error}") from error
    except RecursionError as error:
        raise _too_deep(path) from error
    return schedule


def _decode(text: bytes, wanted: type[_Document], path: str | os.PathLike[str]) -> _Document:
    try:
        return msgspec.json.decode(text, type=wanted)
    except msgspec.ValidationError as error:
        raise DocumentError(
            f"{path}: {shown(error)}; see {manual('formats.md')} for what stands where"
        ) from error
    except msgspec.DecodeError as error:
        raise DocumentError(
            f"{path} is not whole JSON, {shown(error)}; name a plan or a schedule (.json), or write it again"
        ) from error
    except RecursionError as error:
        raise _too_deep(path) from error
    except ScheduleError as error:
        raise DocumentError(f"{path}: {error}") from error


def _too_deep(path: str | os.PathLike[str]) -> DocumentError:
    return DocumentError(f"{path} is nested deeper than any document; check that it is the right file")
