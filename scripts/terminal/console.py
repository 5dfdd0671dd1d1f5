"""Output of the commands: results on stdout, everything else on stderr.

Tables fit 100 columns. Colours, bold and dim text are left out where the output is no terminal or NO_COLOR is
set. Names come from files, and files from strangers: whatever is printed goes through `printable`, so that no
name moves the cursor, colours text, or makes a line that looks like one of ours.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.terminal import output_streams
from tessel.progress import messages
from tessel.progress.control_characters import CONTROLS, printable

if TYPE_CHECKING:
    import msgspec


MAX_WIDTH = 100
MAX_LIST_WIDTH = 24

T = TypeVar("T")


def stdout() -> Console:
    """Return a console on stdout that fits 100 columns."""
    stream = output_streams.results()
    console = Console(file=stream, highlight=False, emoji=False, color_system=messages.color_system())
    if not console.is_terminal or console.width > MAX_WIDTH:
        return Console(
            file=stream, highlight=False, emoji=False, color_system=messages.color_system(), width=MAX_WIDTH
        )
    return console


def print_json(document: msgspec.Struct) -> None:
    """Print one JSON document on stdout, keys sorted, and nothing else.

    In whatever encoding stdout has: characters that it lacks are escaped as JSON does.

    Args:
        document: a value of a type that `docs/schemas/` has a schema of (see scripts/documents).
    """
    stream = output_streams.results()
    stream.write(json_text(document, stream.encoding or "utf-8") + "\n")


def json_text(document: object, encoding: str) -> str:
    """Return a document as indented JSON, keys sorted, that an encoding can write and a terminal shows."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2).decode()
        text.encode(encoding)
    except UnicodeEncodeError:  # also for a file's name that is not UTF-8
        plain = msgspec.to_builtins(document, order="sorted")
        text = json.dumps(plain, indent=2, sort_keys=True, allow_nan=False)
    # JSON escapes the first 32 characters by itself; outside of strings there are line ends alone.
    return CONTROLS.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def print_line(text: str = "") -> None:
    """Print a line on stdout without markup; line ends before and after it are empty lines."""
    line = text.strip("\n")
    before, _, after = text.partition(line) if line else ("", "", text)
    stdout().print(f"{before}{printable(line)}{after}", markup=False, soft_wrap=True)


def print_drawing(drawing: Text) -> None:
    """Print on stdout what was drawn with characters, line by line."""
    lines = drawing.split("\n", allow_blank=True)
    shown = [line if printable(line.plain) == line.plain else Text(printable(line.plain)) for line in lines]
    stdout().print(Text("\n").join(shown), end="")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int = 1,
    folded: Collection[str] = (),
) -> None:
    """Print a table on stdout: text left-aligned and folded where there is no room, figures right-aligned.

    Args:
        title: above the table; nothing if empty.
        columns: their headings.
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
    stdout().print(table)


def format_numbers(numbers: Sequence[int]) -> str:
    """Return a number per device: one where all are equal, only their range where they would fill a line."""
    if len(set(numbers)) == 1:
        return str(numbers[0])
    text = ",".join(map(str, numbers))
    return text if len(text) <= MAX_LIST_WIDTH else f"{min(numbers)} to {max(numbers)}"


def format_bytes(num_bytes: float) -> str:
    """Return a size in the unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"


def format_us(latency_us: float) -> str:
    """Return a latency in microseconds or milliseconds."""
    return f"{latency_us:.1f} us" if latency_us < 1000 else f"{latency_us / 1000:.2f} ms"
