"""Errors of running a schedule."""

from __future__ import annotations

from tessel.errors import ScheduleError


class EngineError(ScheduleError):
    """The schedule cannot run, or a rank failed; says which and why."""
