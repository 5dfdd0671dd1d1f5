"""Kinds of this project's own files, told by how they begin: for messages where another kind is wanted.

A file is looked at only once whoever wanted another kind has failed on it. Checked in
tests/records/test_own_files.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

_MAX_BYTES = 16 << 20
"""Bytes that are read at most: of a larger document it is not told what it is."""


class FileKind(Enum):
    """Files that commands write or read: what each is called, and what takes it."""

    PROGRAM = ("a compiled program", 'tessel.load("{}") calls it, from Python')
    DATABASE = ("a database", '"tessel records list --records {}" shows what records it holds')
    RECORDS = ("a file of records", 'import it with "tessel records import {}"')
    TABLE = (
        "a table",
        'plan a table of layer timings with "tessel plan {} --devices N --save plan.json" first',
    )
    MODEL = ("a model", 'tune it with "tessel tune {} --devices N --out FOLDER" first')
    CONFIG = (
        "a model's config",
        'plan it with "tessel plan {} --gpu GPU --devices N --save plan.json" first',
    )
    PLAN = ("a plan", '"tessel draw {}" shows it')
    SCHEDULE = ("a schedule", '"tessel draw {}" shows it')
    PLACEMENT = ("a placement", 'make a schedule of it with "tessel schedule {} --save FILE" first')
    TRACE = ("a trace", "what --save wrote, and not --out, is the plan or schedule itself")


@contextmanager
def other_files_named(
    path: str | os.PathLike[str], wanted: str, error_type: type[Exception], taken: Container[FileKind] = ()
) -> Iterator[None]:
    """Have an error about a file of another kind say which kind it is, and what takes it.

    Args:
        path: the file that is read within.
        wanted: what it should be, for the message.
        error_type: of the errors that say that it is not; its constructor takes a message.
        taken: kinds that are read, whose errors stay as they are.
    """
    try:
        yield
    except error_type as error:
        kind = kind_of_file(path)
        if kind is None or kind in taken:
            raise
        what, remedy = kind.value
        raise error_type(f"{path} is {what}, and {wanted} is wanted; {remedy.format(path)}") from error


def kind_of_file(path: str | os.PathLike[str]) -> FileKind | None:
    """Return what a file is; None where that is not known, or it cannot be read."""
    if not os.path.isfile(path):  # a pipe would be waited for
        return None
    try:
        with open(path, "rb") as file:
            content = file.read(min(os.fstat(file.fileno()).st_size, _MAX_BYTES))
    except OSError:
        return None
    by_content = (kind for begin, kind in _KIND_BY_BEGIN.items() if content.startswith(begin))
    return next(by_content, None) or _kind_of_json(content) or _KIND_BY_SUFFIX.get(Path(path).suffix.lower())


def _kind_of_json(content: bytes) -> FileKind | None:
    """Return what an object with these keys is, or a file with such an object in each line."""
    keys = _keys(content) or _keys(content.partition(b"\n")[0])
    if "layers" in keys and keys <= _TABLE_KEYS:
        return FileKind.TABLE
    return next((kind for key, kind in _KIND_BY_KEY.items() if key in keys), None)


def _keys(text: bytes) -> frozenset[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(found) if isinstance(found, dict) else frozenset()


_KIND_BY_BEGIN = {b"tessel program\r\n": FileKind.PROGRAM, b"SQLite format 3\x00": FileKind.DATABASE}

_KIND_BY_KEY = {
    "measurement": FileKind.RECORDS,
    "starts": FileKind.SCHEDULE,
    "schedule": FileKind.PLAN,
    "blocks": FileKind.PLACEMENT,
    "model_type": FileKind.CONFIG,
    "traceEvents": FileKind.TRACE,
}
"""The first of these keys that a JSON object has says what it is."""

_TABLE_KEYS = frozenset({"layers", "model", "device", "schema_version"})

_KIND_BY_SUFFIX = {
    ".csv": FileKind.TABLE,
    ".tsv": FileKind.TABLE,
    ".onnx": FileKind.MODEL,
    ".pt2": FileKind.MODEL,
}
"""Of what does not say it by its content."""
