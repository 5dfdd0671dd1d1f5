"""How the commands speak: results on stdout, everything else on stderr.

Tables fit 100 columns; colours obey NO_COLOR and are left out where the output is no terminal.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

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
    return Console(stderr=True, quiet=_state["quiet"], highlight=False)


def stdout() -> Console:
    """Return a console on stdout that fits 100 columns."""
    console = Console(highlight=False)
    if not console.is_terminal or console.width > MAX_WIDTH:
        console = Console(highlight=False, width=MAX_WIDTH)
    return console


def print_json(document: object) -> None:
    """Print one JSON document on stdout, keys sorted, and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_line(text: str = "") -> None:
    """Print a line on stdout as it is, without markup."""
    stdout().print(text, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a line on stderr as it is, without markup; nothing with --quiet."""
    stderr().print(text, markup=False, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1
) -> None:
    """Print a table on stdout: the first `text_columns` columns left-aligned, figures right-aligned."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_text = index < text_columns
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
def progress_bar(description: str, *, limit_s: float | None = None) -> Iterator[Any]:
    """Show on stderr, while the body runs, what is done and how long the rest takes.

    Args:
        description: what is being done.
        limit_s: where the body ends after so many seconds at the latest, these.

    Yields:
        `update(description, completed, total)`.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), _DoneColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=None, limit_s=limit_s)

        def update(text: str, completed: int | None = None, total: int | None = None) -> None:
            progress.update(task, description=text, completed=completed, total=total)

        yield update


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show on stderr how many there were and how long the rest takes."""
    with progress_bar(description) as update:
        for number, item in enumerate(items):
            update(description, number, total)
            yield item


class _DoneColumn(ProgressColumn):
    """What is done, the time it took, and the time that is left where that can be known."""

    def render(self, task: Task) -> Text:
        return Text(describe_rest(task.completed, task.total, task.elapsed, task.time_remaining, task.fields))


def describe_rest(
    completed: float,
    total: float | None,
    elapsed_s: float | None,
    remaining_s: float | None,
    fields: dict[str, Any],
) -> str:
    """Return what is done and left, such as `12/40, 0:09, about 0:21 left`."""
    elapsed_s = elapsed_s or 0.0
    limit_s = fields.get("limit_s")
    counts = [] if not completed and total is None else [f"{completed:.0f}"]
    if total is not None:
        counts = [f"{completed:.0f}/{total:.0f}"]
    left = []
    if total is not None and remaining_s is not None:
        left = [f"about {_clock(remaining_s)} left"]
    elif limit_s is not None:
        left = [f"at most {_clock(max(limit_s - elapsed_s, 0))} left"]
    return ", ".join([*counts, _clock(elapsed_s), *left])


def _clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{minutes:0>5}"


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


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
