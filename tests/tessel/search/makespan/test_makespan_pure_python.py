"""The uncompiled search gives the same schedules as the compiled one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM = """
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import make_shape

for options in ({"split_backward": True}, {"choose_backward": True, "lag": 1}):
    placement = make_shape("zbv", 2, forward_span=2, **options)
    budget = SearchBudget(0.02)
    found = find_schedule(placement, micro_batches=3, memory=5, budget=budget, seed=5)
    print(budget.operations, found.makespan, found.found_by, [start.start for start in found.starts])
"""


def run(*, is_compiled: bool) -> str:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if is_compiled else "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def test_uncompiled_search_gives_the_same_schedules() -> None:
    assert run(is_compiled=False) == run(is_compiled=True)
