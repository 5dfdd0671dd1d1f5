"""Search for schedules: bounds, repetends, their warm-up and cool-down, whole schedules.

Names are imported when they are first asked for: the compiled searches import numba, which takes longer than
answering `--help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessel.search.budget import Progress, SearchBudget
    from tessel.search.frontier.makespan import MakespanPoint, find_makespan_frontier
    from tessel.search.frontier.open_ranges import Frontier, OpenRange
    from tessel.search.frontier.period import FrontierPoint, find_frontier
    from tessel.search.makespan.find_schedule import find_schedule
    from tessel.search.makespan.params import MakespanParams, Phase
    from tessel.search.makespan.warmup_cooldown import unroll_repetend
    from tessel.search.overlap.find_overlapped import find_overlapped
    from tessel.search.repetend.find_repetend import RepetendResult, find_repetend
    from tessel.search.repetend.params import RepetendParams, RepetendPhase

__all__ = [
    "Frontier",
    "FrontierPoint",
    "MakespanParams",
    "MakespanPoint",
    "OpenRange",
    "Phase",
    "Progress",
    "RepetendParams",
    "RepetendPhase",
    "RepetendResult",
    "SearchBudget",
    "find_frontier",
    "find_makespan_frontier",
    "find_overlapped",
    "find_repetend",
    "find_schedule",
    "unroll_repetend",
]

_MODULE_BY_NAME = {
    "Frontier": "tessel.search.frontier.open_ranges",
    "OpenRange": "tessel.search.frontier.open_ranges",
    "SearchBudget": "tessel.search.budget",
    "FrontierPoint": "tessel.search.frontier.period",
    "MakespanParams": "tessel.search.makespan.params",
    "Phase": "tessel.search.makespan.params",
    "MakespanPoint": "tessel.search.frontier.makespan",
    "Progress": "tessel.search.budget",
    "RepetendParams": "tessel.search.repetend.params",
    "RepetendPhase": "tessel.search.repetend.params",
    "RepetendResult": "tessel.search.repetend.find_repetend",
    "find_frontier": "tessel.search.frontier.period",
    "find_makespan_frontier": "tessel.search.frontier.makespan",
    "find_overlapped": "tessel.search.overlap.find_overlapped",
    "find_repetend": "tessel.search.repetend.find_repetend",
    "find_schedule": "tessel.search.makespan.find_schedule",
    "unroll_repetend": "tessel.search.makespan.warmup_cooldown",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
