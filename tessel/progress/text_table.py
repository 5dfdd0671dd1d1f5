"""A table for a terminal: text left-aligned and folded where there is no room, figures right-aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.table import Table
from rich.text import Text

from tessel.progress.control_characters import printable


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int = 1,
    folded: Collection[str] = (),
) -> Table:
    """Return a table without lines.

    Args:
        title: above the table; nothing if empty.
        rows: a cell per column.
        text_columns: how many columns from the left hold text.
        folded: headings of others that do.
    """
    heading = Text(printable(title), style="table.title") if title else None
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_text = index < text_columns or column in folded
        table.add_column(
            column,
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=not is_text,
            min_width=min(len(column), 12),  # or wide figures would leave no room for names
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
