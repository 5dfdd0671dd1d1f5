"""Findings of a job, as lines and tables: a command prints them, a notebook shows them, `str` gives text.

Checked in tests/tessel/jobs/shown/test_sections.py.
"""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tessel.progress.control_characters import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: text left-aligned and folded where there is no room, figures right-aligned.

    Attributes:
        title: above it; nothing if empty.
        rows: a cell a column.
        text_columns: how many columns from the left hold text.
        folded: headings of others that do.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    folded: Collection[str] = ()

    def is_text(self, number: int) -> bool:
        """Whether a column holds text."""
        return number < self.text_columns or self.columns[number] in self.folded

    def shown(self) -> RichTable:
        """Return it as a terminal shows it, without lines."""
        from rich.table import Table as RichTable
        from rich.text import Text

        heading = Text(printable(self.title), style="table.title") if self.title else None
        table = RichTable(title=heading, title_justify="left", box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            table.add_column(
                column,
                justify="left" if self.is_text(number) else "right",
                overflow="fold",
                no_wrap=not self.is_text(number),
                min_width=min(len(column), 12),  # or wide figures would leave no room for names
            )
        for row in self.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        return table


@dataclass(slots=True)
class Sections:
    """Lines and tables, in order."""

    parts: list[str | Table] = field(default_factory=list)

    def line(self, text: str = "") -> None:
        """Add a line, or several; line ends before and after it are empty lines."""
        self.parts.append(text)

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        text_columns: int = 1,
        folded: Collection[str] = (),
    ) -> None:
        """Add a table; see `Table`."""
        self.parts.append(
            Table(title=title, columns=columns, rows=rows, text_columns=text_columns, folded=folded)
        )

    def __iter__(self) -> Iterator[str | Table]:
        return iter(self.parts)

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=100, highlight=False, emoji=False, color_system=None)
        for part in self.parts:
            if isinstance(part, str):
                for line in part.split("\n"):
                    console.print(printable(line), markup=False, soft_wrap=True)
            else:
                console.print(part.shown())
        return out.getvalue()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return lines as paragraphs and tables as such, for a notebook."""
        return "".join(
            f"<p>{html.escape(part.strip())}</p>" if isinstance(part, str) else _table_html(part)
            for part in self.parts
            if not isinstance(part, str) or part.strip()
        )


def _table_html(table: Table) -> str:
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    sides = ["left" if table.is_text(number) else "right" for number in range(len(table.columns))]

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in table.rows)
    return f"<table>{caption}<thead><tr>{row('th', table.columns)}</tr></thead><tbody>{body}</tbody></table>"
