"""Search for schedules: bounds, repetends, their warm-up and cool-down, whole schedules.

Names are imported when they are first asked for: the compiled searches import numba, which takes longer than
answering `--help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.lazy_names import names_on_demand

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

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these
    __getattr__ = names_on_demand(
        __name__,
        {
            "tessel.search.budget": "Progress SearchBudget",
            "tessel.search.frontier.makespan": "MakespanPoint find_makespan_frontier",
            "tessel.search.frontier.open_ranges": "Frontier OpenRange",
            "tessel.search.frontier.period": "FrontierPoint find_frontier",
            "tessel.search.makespan.find_schedule": "find_schedule",
            "tessel.search.makespan.params": "MakespanParams Phase",
            "tessel.search.makespan.warmup_cooldown": "unroll_repetend",
            "tessel.search.overlap.find_overlapped": "find_overlapped",
            "tessel.search.repetend.find_repetend": "RepetendResult find_repetend",
            "tessel.search.repetend.params": "RepetendParams RepetendPhase",
        },
    )
