"""Search for schedules: bounds, repetends, ramps and whole schedules.

Names are imported when they are first asked for: the compiled searches import numba, which takes longer than
answering `--help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessel.search.budget import SearchBudget
    from tessel.search.frontier import FrontierPoint, find_frontier
    from tessel.search.makespan import find_schedule
    from tessel.search.makespan_frontier import MakespanPoint, find_makespan_frontier
    from tessel.search.makespan_params import MakespanParams
    from tessel.search.open_ranges import Frontier, OpenRange
    from tessel.search.period import RepetendResult, find_repetend
    from tessel.search.progress import Progress
    from tessel.search.ramps import unroll_repetend
    from tessel.search.repetend_params import RepetendParams

__all__ = [
    "Frontier",
    "FrontierPoint",
    "MakespanParams",
    "MakespanPoint",
    "OpenRange",
    "Progress",
    "RepetendParams",
    "RepetendResult",
    "SearchBudget",
    "find_frontier",
    "find_makespan_frontier",
    "find_repetend",
    "find_schedule",
    "unroll_repetend",
]

_MODULE_BY_NAME = {
    "Frontier": "tessel.search.open_ranges",
    "OpenRange": "tessel.search.open_ranges",
    "SearchBudget": "tessel.search.budget",
    "FrontierPoint": "tessel.search.frontier",
    "MakespanParams": "tessel.search.makespan_params",
    "MakespanPoint": "tessel.search.makespan_frontier",
    "Progress": "tessel.search.progress",
    "RepetendParams": "tessel.search.repetend_params",
    "RepetendResult": "tessel.search.period",
    "find_frontier": "tessel.search.frontier",
    "find_makespan_frontier": "tessel.search.makespan_frontier",
    "find_repetend": "tessel.search.period",
    "find_schedule": "tessel.search.makespan",
    "unroll_repetend": "tessel.search.ramps",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
