"""Place stages on devices, find the order of all blocks, compare it with hand-written ones, and run it.

These are the public names; what is not among them is private to its own package and may change.

    >>> import tessel
    >>> schedule = tessel.find_schedule(tessel.shapes.vshape(2), micro_batches=4, memory=2)
    >>> schedule.makespan, schedule.optimal
    (20, True)
    >>> tessel.compare_schedules(schedule).rows[0].schedule
    'searched'

A name is imported when it is first asked for (PEP 562), the one exception to the rule that no code runs on
import: the search needs numba and pictures need matplotlib, and a program that only loads a schedule waits
for neither. In IPython, the import also says how schedules and placements are shown as pictures;
`%load_ext tessel` says so where IPython came later. Type checkers and the API reference see the ordinary
imports below. Checked in tests/tessel/test_public_surface.py.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tessel import shapes
    from tessel.comparison import Comparison, compare_schedules
    from tessel.compiling.partitioning import compile, partition
    from tessel.compiling.program import Program
    from tessel.documents import load_placement, load_schedule, save
    from tessel.errors import ScheduleError
    from tessel.jobs.checking import check
    from tessel.jobs.chunking import chunk
    from tessel.jobs.loading import load
    from tessel.jobs.plan import Plan, load_plan
    from tessel.jobs.planning import plan
    from tessel.jobs.tuning import tune
    from tessel.picture.files import draw
    from tessel.placement import Block, Edge, Placement
    from tessel.schedule import Schedule
    from tessel.search import SearchBudget, find_frontier, find_repetend, find_schedule
    from tessel.validation import check_schedule

__all__ = [
    "Block",
    "Comparison",
    "Edge",
    "Placement",
    "Plan",
    "Program",
    "Schedule",
    "ScheduleError",
    "SearchBudget",
    "check",
    "check_schedule",
    "chunk",
    "compare_schedules",
    "compile",
    "draw",
    "find_frontier",
    "find_repetend",
    "find_schedule",
    "load",
    "load_placement",
    "load_plan",
    "load_schedule",
    "partition",
    "plan",
    "save",
    "shapes",
    "tune",
]

_MODULE_BY_NAME = {
    "Block": "tessel.placement",
    "Comparison": "tessel.comparison",
    "Edge": "tessel.placement",
    "Placement": "tessel.placement",
    "Plan": "tessel.jobs.plan",
    "Program": "tessel.compiling.program",
    "Schedule": "tessel.schedule",
    "ScheduleError": "tessel.errors",
    "SearchBudget": "tessel.search",
    "check": "tessel.jobs.checking",
    "check_schedule": "tessel.validation",
    "chunk": "tessel.jobs.chunking",
    "compare_schedules": "tessel.comparison",
    "compile": "tessel.compiling.partitioning",
    "draw": "tessel.picture.files",
    "find_frontier": "tessel.search",
    "find_repetend": "tessel.search",
    "find_schedule": "tessel.search",
    "load": "tessel.jobs.loading",
    "load_placement": "tessel.documents",
    "load_plan": "tessel.jobs.plan",
    "load_schedule": "tessel.documents",
    "partition": "tessel.compiling.partitioning",
    "plan": "tessel.jobs.planning",
    "save": "tessel.documents",
    "tune": "tessel.jobs.tuning",
}

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name == "shapes":
            return importlib.import_module("tessel.shapes")
        if name not in _MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        problem = importlib.import_module("tessel.entry.own_packages").hidden_package()
        if problem is not None:
            raise ImportError(problem)
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Have IPython show schedules and placements as pictures, drawn once the first is shown."""
    pictures = shell.display_formatter.formatters["image/svg+xml"]
    pictures.for_type_by_name("tessel.placement", "Placement", lambda shown: _picture("placement_svg", shown))
    pictures.for_type_by_name(
        "tessel.schedule.schedule", "Schedule", lambda shown: _picture("schedule_svg", shown)
    )


def _picture(function: str, shown: object) -> str | None:
    svg: str | None = getattr(importlib.import_module("tessel.picture.notebook"), function)(shown)
    return svg


if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
