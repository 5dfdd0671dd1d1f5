"""Errors of the scheduler, and how text from a file stands in their messages."""

from __future__ import annotations

MAX_SHOWN = 200
"""Characters of a file's own text that a message quotes."""


def shown(text: object) -> str:
    """Return text from a file as a message may quote it: escaped, on one line, and not too long."""
    found = str(text)
    escaped = "".join(each if each.isprintable() else repr(each)[1:-1] for each in found[: MAX_SHOWN + 1])
    return escaped if len(escaped) <= MAX_SHOWN else escaped[:MAX_SHOWN] + "…"


class ScheduleError(Exception):
    """Say that a placement, a schedule or a plan is invalid or cannot be carried out."""


class InfeasibleError(ScheduleError):
    """Say that no schedule exists under the limits; the message names the device and what it needs."""


class DocumentError(ScheduleError):
    """Say that a file is not the document it should be; the message names the key."""


class UsageError(ScheduleError, ValueError):
    """Say that an option or an argument has a value that is none, or that two contradict each other."""
