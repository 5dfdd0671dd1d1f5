"""Kind of a file that may be checked: a layout of Megatron, a document of this project, or a CSV of orders.

Checked in tests/scripts/commands/test_check.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from tessel.documents import read_document
from tessel.errors import DocumentError

FileKind = Literal["layout", "document", "orders", "unreadable"]

_LAYOUT = re.compile(r"\s*\(?E[EtmL|()*,0-9\s]*")


_PRINTED = re.compile(r"\s*\[[\[\s]*(?:None\b|[\"']?[0-9(])")
_ROW = re.compile(r"\[([^\[\]]*)\]")


def csv_of_lists(text: str) -> str:
    """Return orders that Python printed as lists, one a rank, as a CSV; other texts as they are."""
    if not _PRINTED.match(text):
        return text
    rows = ([cell.strip().strip("\"'") for cell in row.split(",")] for row in _ROW.findall(text))
    return "".join(",".join("" if cell == "None" else cell for cell in row) + "\n" for row in rows)


def is_layout(text: str) -> bool:
    """Return whether a text is a layout of Megatron, as a string or as lists of layers."""
    if _PRINTED.match(text):
        return False
    return _LAYOUT.fullmatch(text) is not None or text.lstrip().startswith("[")


def kind_of_file(file: str) -> FileKind:
    """Return what a file is; a layout may stand in the place of a file's name."""
    if not Path(file).exists() and is_layout(file):
        return "layout"
    try:
        text = read_document(file).decode()
    except DocumentError:
        return "unreadable"
    if is_layout(text):
        return "layout"
    return "document" if text.lstrip().startswith("{") else "orders"
