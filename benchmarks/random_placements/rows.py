"""What the search, CP-SAT and hand-written schedules find for a case, as lines of a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.cpsat.makespan import solve_makespan
from benchmarks.random_placements.cases import Case
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.search import SearchBudget, find_schedule
from tessel.validation import check_schedule


def best_handwritten(case: Case) -> tuple[int, str] | None:
    """Return the shortest hand-written schedule that applies and fits."""
    built = []
    for rule in HANDWRITTEN:
        try:
            schedule = rule.build(case.placement, micro_batches=case.micro_batches, memory=case.memory)
        except ScheduleError:
            continue
        built.append((schedule.makespan, rule.name))
    return min(built, default=None)


Row = dict[str, int | float | str | bool | None]
"""One answer, as it stands in the file."""


def search_row(case: Case, seconds: float) -> Row:
    """Search, check the answer independently, and return it beside the shortest hand-written schedule."""
    began = time.process_time()
    found = find_schedule(
        case.placement,
        micro_batches=case.micro_batches,
        memory=case.memory,
        budget=SearchBudget(None, seconds, clock=time.process_time),
    )
    used = time.process_time() - began
    check_schedule(found)
    rule = best_handwritten(case)
    return {
        "makespan": found.makespan,
        "lower_bound": found.lower_bound,
        "is_optimal": found.optimal,
        "seconds": round(used, 3),
        "found_by": found.found_by,
        "handwritten": None if rule is None else rule[0],
        "handwritten_by": None if rule is None else rule[1],
    }


def cpsat_row(case: Case, seconds: float) -> Row:
    """Return CP-SAT's answer."""
    found = solve_makespan(
        case.placement,
        micro_batches=case.micro_batches,
        memory=case.memory,
        time_limit_s=seconds,
        is_processor_time=True,
    )
    return {
        "makespan": found.makespan,
        "lower_bound": found.lower_bound,
        "is_optimal": found.is_optimal,
        "seconds": round(found.seconds, 3),
    }


def read_rows(path: Path) -> dict[tuple[str, str], Row]:
    """Return the answers of a file by case and solver; a last line that was cut off is left out."""
    rows: dict[tuple[str, str], Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["case"], row["solver"]] = row
    return rows
