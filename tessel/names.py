"""The one rule for names that are read from files: they are drawn, printed, quoted and exported.

A name is printable, so that it is what it shows: no line end that begins a row or a statement elsewhere, no
control or direction mark that hides what stands behind it. And it is short. Whoever makes a placement, a
schedule or a profile is held to it; what is written for other programs is escaped by its writer besides.
Checked in tests/tessel/test_names.py.
"""

from __future__ import annotations

from tessel.errors import ScheduleError, shown

MAX_NAME = 200
"""Longest name of a block, a choice, a search method, a layer, a tie, a model or a device."""


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be printed, or that is too long.

    Args:
        what: it is the name of, such as `block`.
        name: as it was found.

    Raises:
        ScheduleError: it is one.
    """
    if len(name) > MAX_NAME or not name.isprintable():
        raise ScheduleError(
            f"{what} name {shown(name[:40])!r} has {len(name)} characters, or some that cannot be printed; "
            f"give it a printable name of at most {MAX_NAME}"
        )


def name_of_path(text: str) -> str:
    """Return a part of a path as a name: what cannot be printed is escaped, and what is too long is cut."""
    return shown(text)[:MAX_NAME]
