"""Run a schedule for real: each rank's actions, and their exchange over torch.distributed."""

from tessel.engine.actions import (
    Action,
    ActionKind,
    RankActions,
    actions_from_csv,
    actions_of,
    actions_to_csv,
    schedule_of_actions,
)
from tessel.engine.errors import EngineError

__all__ = [
    "Action",
    "ActionKind",
    "EngineError",
    "RankActions",
    "actions_from_csv",
    "actions_of",
    "actions_to_csv",
    "schedule_of_actions",
]
