"""Errors of the scheduler."""


class ScheduleError(Exception):
    """Say that a placement, a schedule or a plan is invalid or cannot be carried out."""


class InfeasibleError(ScheduleError):
    """Say that no schedule exists under the limits; the message names the device and what it needs."""


class DocumentError(ScheduleError):
    """Say that a file is not the document it should be; the message names the key."""
