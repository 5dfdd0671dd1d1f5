"""What tests ask about processes that they did not start themselves."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Say whether a process runs no longer; where nothing reaps orphans, one that ended stays as a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def has_ended_by_id(pid: int) -> bool:
    """Say the same of a process known by its number alone."""
    try:
        return has_ended(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True
