"""Text and tables in Markdown, in which names from files are text and nothing else.

Every character that Markdown, HTML or a page that renders Markdown (links without brackets, formulas between
dollars) gives a meaning is escaped; whoever reads the rendered page sees the name as it is. Checked against a
renderer in tests/tessel/exports/test_markdown.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!&~$@])|:(?=//)|(?<=www)\.", re.IGNORECASE)


def escaped(text: str) -> str:
    """Return text as Markdown that shows it; what cannot be printed is a blank."""
    printable = "".join(each if each.isprintable() else " " for each in text)
    return _SPECIAL.sub(lambda found: f"\\{found.group()}", printable)


def table_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; all cells are text."""
    lines = [_line(map(escaped, each)) for each in (titles, *rows)]
    return [lines[0], _line(["---"] * len(titles)), *lines[1:]]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
