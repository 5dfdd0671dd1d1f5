"""How the commands speak: results on stdout, everything else on stderr.

Tables fit 100 columns. Colours, bold and dim text are left out where the output is no terminal or NO_COLOR is
set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import msgspec

    from scripts.progress import Reporter

MAX_WIDTH = 100
MAX_LIST_WIDTH = 24

T = TypeVar("T")

_state = {"quiet": False, "verbose": False}


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Choose how much is said on stderr for the rest of the process."""
    _state.update(quiet=quiet, verbose=verbose)


def is_verbose() -> bool:
    """Whether errors show their traceback."""
    return _state["verbose"]


def stderr() -> Console:
    """Return a console on stderr; silent with --quiet."""
    return Console(stderr=True, quiet=_state["quiet"], highlight=False, color_system=_color_system())


def stdout() -> Console:
    """Return a console on stdout that fits 100 columns."""
    console = Console(highlight=False, color_system=_color_system())
    if not console.is_terminal or console.width > MAX_WIDTH:
        console = Console(highlight=False, color_system=_color_system(), width=MAX_WIDTH)
    return console


def wants_color() -> bool:
    """Whether the user has not asked for output without colours (see no-color.org)."""
    return not os.environ.get("NO_COLOR")


def print_json(document: msgspec.Struct) -> None:
    """Print one JSON document on stdout, keys sorted, and nothing else.

    Args:
        document: a value of a type that `docs/schemas/` has a schema of (see scripts/documents).
    """
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_line(text: str = "") -> None:
    """Print a line on stdout as it is, without markup."""
    stdout().print(text, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a line on stderr as it is, without markup; nothing with --quiet."""
    stderr().print(text, markup=False, soft_wrap=True)


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
        rows: a cell a column.
        text_columns: how many columns from the left hold text.
        folded: headings of others that do.
    """
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
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
        table.add_row(*(_escaped(cell) for cell in row))
    stdout().print(table)


@contextmanager
def progress_bar(description: str, *, limit_s: float | None = None) -> Iterator[Reporter]:
    """Show on stderr, while the body runs, what is done and how long the rest takes.

    A bar on a terminal, else a plain line now and then; nothing with --quiet.

    Args:
        description: what is being done.
        limit_s: where the body ends after so many seconds at the latest, these.

    Yields:
        `update(description, completed, total)`.
    """
    from scripts.progress import show_progress

    console = stderr()
    # A forced colour does not make a file a terminal, and on a dumb one a bar cannot move.
    bar = sys.stderr.isatty() and not (console.is_dumb_terminal or console.quiet or is_verbose())
    with show_progress(console, description, limit_s=limit_s, bar=bar) as update:
        yield update


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show on stderr how many there were and how long the rest takes."""
    with progress_bar(description) as update:
        for number, item in enumerate(items):
            update(description, number, total)
            yield item


def format_numbers(numbers: Sequence[int]) -> str:
    """Return a number a device: one where all are equal, only their range where they would fill a line."""
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


def _color_system() -> Literal["auto"] | None:
    return "auto" if wants_color() else None


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
