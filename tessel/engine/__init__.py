"""Execute a schedule: the actions of each rank, and their communication over torch.distributed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tessel.engine.actions import (
    Action,
    ActionKind,
    RankActions,
    actions_from_csv,
    actions_of,
    actions_to_csv,
    renumbered,
    schedule_of_actions,
)
from tessel.engine.errors import EngineError

if TYPE_CHECKING:
    from tessel.engine.pipelining.schedule import build_schedule

__all__ = [
    "Action",
    "ActionKind",
    "EngineError",
    "RankActions",
    "actions_from_csv",
    "actions_of",
    "actions_to_csv",
    "build_schedule",
    "renumbered",
    "schedule_of_actions",
]


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for: orders are read and written without it."""
    if name == "build_schedule":
        return importlib.import_module("tessel.engine.pipelining.schedule").build_schedule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
