"""Kind of a file that may be checked: a layout of Megatron, a document, orders, or a table of Megatron's.

Checked in tests/scripts/commands/test_check.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from tessel.checking.printed_orders import is_printed, is_table
from tessel.documents import read_document
from tessel.errors import DocumentError

FileKind = Literal["layout", "document", "orders", "table", "unreadable"]

_LAYOUT = re.compile(r"\s*\(?E[EtmL|()*,0-9\s]*")


def is_layout(text: str) -> bool:
    """Return whether a text is a layout of Megatron, as a string or as lists of layers."""
    if is_printed(text):
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
    if is_table(text):
        return "table"
    return "document" if text.lstrip().startswith("{") else "orders"
