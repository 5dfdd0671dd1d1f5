"""Notes and progress on stderr, with control characters of names from files escaped.

A bar on a terminal, else a plain line now and then; nothing where the caller wants quiet. Checked in
tests/tessel/progress/test_messages.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

from tessel.progress.control_characters import printable

if TYPE_CHECKING:
    from rich.console import Console

    from tessel.progress.bars import Reporter

T = TypeVar("T")

_state = {"quiet": False, "verbose": False}


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Choose how much is said on stderr for the rest of the process."""
    _state.update(quiet=quiet, verbose=verbose)


@contextmanager
def verbosity(*, quiet: bool) -> Iterator[None]:
    """Say nothing on stderr while the body runs, if it is to be quiet."""
    before = _state["quiet"]
    _state["quiet"] = before or quiet
    try:
        yield
    finally:
        _state["quiet"] = before


def is_verbose() -> bool:
    """Whether errors show their traceback."""
    return _state["verbose"]


def wants_color() -> bool:
    """Whether the user has not asked for output without colours (see no-color.org)."""
    return not os.environ.get("NO_COLOR")


def color_system() -> Literal["auto"] | None:
    """Return what rich is told of colours."""
    return "auto" if wants_color() else None


def stderr() -> Console:
    """Return a console on stderr; silent where nothing is to be said."""
    from rich.console import Console

    return Console(
        stderr=True,
        quiet=_state["quiet"],
        highlight=False,
        emoji=False,
        color_system=color_system(),
        force_jupyter=False,
    )


def note(text: str) -> None:
    """Print a line on stderr without markup; nothing where it is to be quiet."""
    stderr().print(printable(text), markup=False, soft_wrap=True)


@contextmanager
def bar(description: str, *, limit_s: float | None = None) -> Iterator[Reporter]:
    """Show on stderr, while the body runs, what is done and how long the rest takes.

    A bar on a terminal, else a plain line now and then; nothing where it is to be quiet.

    Args:
        limit_s: upper limit of the body's duration, where there is one.

    Yields:
        `update(description, completed, total)`.
    """
    from tessel.progress.bars import show_progress

    console = stderr()
    # A forced colour does not make a file a terminal, and on a dumb one a bar cannot move.
    is_terminal = sys.stderr.isatty() and not (console.is_dumb_terminal or console.quiet or is_verbose())
    with show_progress(console, description, limit_s=limit_s, bar=is_terminal) as update:
        yield update


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show on stderr how many there were and how long the rest takes."""
    with bar(description) as update:
        for number, item in enumerate(items):
            update(description, number, total)
            yield item
