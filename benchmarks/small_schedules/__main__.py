"""Small whole schedules of 13 families: which are proven, how far apart bound and answer are, beside CP-SAT.

    python -m benchmarks.small_schedules --count 104 --file out/small_schedules.jsonl

Every problem runs at most 120 tasks, or a few more where it takes longer options, on 2 to 5 devices, with
spans of a few steps or of thousands. Families come in turn: chains with ample and with tight memory, x, m, nn
and k shapes, two chunks a device, V with split backward, chains and V with the choice between joint and split
backward, blocks that may run on one of two devices, DAGs of blocks that share devices, and those with tight
memory and choices. The first n of a seed are the same whatever the count.

Each answer is appended to the file as it comes, and the same command goes on where it was stopped. Solvers:
`search` as installed, `own` without CP-SAT's help, `cp-sat` alone. All have one thread, and their limits are
processor seconds. A proof is *wrong* where another solver has a shorter schedule than a bound allows; every
schedule is validated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.cpsat.makespan import solve_makespan
from benchmarks.random_placements.cases import Case
from benchmarks.random_placements.rows import Row, read_rows
from benchmarks.small_schedules.cases import FAMILIES, small_cases
from tessel.search import MakespanParams, Phase, SearchBudget, find_schedule
from tessel.shapes import make_shape
from tessel.validation import check_schedule

CHOICES = ("choice", "v-choice", "device-choice", "dag-choice")
"""Families with choices."""


SOLVERS = ("search", "own", "cp-sat")


def search_row(case: Case, seconds: float, *, has_cpsat: bool) -> Row:
    """Search and check the answer independently."""
    left_out = frozenset() if has_cpsat else frozenset({Phase.CP_SAT})
    budget = SearchBudget(None, seconds, clock=time.process_time)
    began = time.process_time()
    found = find_schedule(
        case.placement,
        micro_batches=case.micro_batches,
        memory=case.memory,
        budget=budget,
        params=MakespanParams(left_out=left_out),
    )
    used = time.process_time() - began
    check_schedule(found)
    return {
        "makespan": found.makespan,
        "lower_bound": found.lower_bound,
        "seconds": round(used, 3),
        "units": round(budget.operations / 1e9, 3),
        "found_by": found.found_by,
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
        "seconds": round(found.seconds, 3),
    }


def run(count: int, *, seed: int, path: Path, seconds_by_solver: Mapping[str, float]) -> None:
    """Append what is missing of the first cases, case by case."""
    known = read_rows(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in small_cases(count, seed):
        for solver, seconds in seconds_by_solver.items():
            if (case.name, solver) in known:
                continue
            row: Row = {"case": case.name, "solver": solver, "seed": seed, "limit_s": seconds}
            if solver == "cp-sat":
                row |= cpsat_row(case, seconds)
            else:
                row |= search_row(case, seconds, has_cpsat=solver == "search")
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def gap_of(row: Row) -> float:
    """Return how much longer the answer is than its bound, as a part of it; infinite without an answer."""
    makespan, bound = row["makespan"], int(row["lower_bound"] or 0)
    return int(makespan) / bound - 1 if makespan and bound else float("inf")


def wrong_proofs(name: str, rows: Mapping[tuple[str, str], Row]) -> list[str]:
    """Return the solvers whose bound another one's schedule, or an earlier run's, goes below."""
    here = {solver: rows[name, solver] for solver in SOLVERS if (name, solver) in rows}
    least = min((int(row["makespan"]) for row in here.values() if row["makespan"]), default=None)
    return [
        solver for solver, row in here.items() if least is not None and int(row["lower_bound"] or 0) > least
    ]


def summary(names: Iterable[str], rows: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Yield a row a family, and what is wrong."""
    names = list(names)
    wrong = {name: found for name in names if (found := wrong_proofs(name, rows))}
    for solver in SOLVERS:
        answered = [name for name in names if (name, solver) in rows]
        if not answered:
            continue
        seconds = sum(float(rows[name, solver]["seconds"] or 0) for name in answered)
        yield f"**{solver}**: {len(answered)} problems, {seconds:.0f} s"
        yield ""
        yield "| family | problems | unproven | largest gap | mean gap | answers above the best known |"
        yield "|---|---|---|---|---|---|"
        for family in (*FAMILIES, "all"):
            here = [name for name in answered if family in ("all", name.rstrip("0123456789"))]
            gaps = [gap_of(rows[name, solver]) for name in here]
            longer = sum(_is_longer(name, solver, rows) for name in here)
            unproven = sum(gap > 0 for gap in gaps)
            yield (
                f"| {family} | {len(here)} | {unproven} | {max(gaps, default=0):.1%} | "
                f"{sum(gaps) / max(1, len(gaps)):.1%} | {longer} |"
            )
        yield ""
        yield f"wrong proofs: {sum(solver in found for found in wrong.values())}"
        yield ""
    for name, found in wrong.items():
        yield f"{name}: bound above a known schedule by {', '.join(found)}"


def _is_longer(name: str, solver: str, rows: Mapping[tuple[str, str], Row]) -> bool:
    known = [rows[name, other]["makespan"] for other in SOLVERS if (name, other) in rows]
    least = min((int(each) for each in known if each), default=0)
    found = rows[name, solver]["makespan"]
    return found is None or int(found) > least


def main() -> None:
    """Run what is missing and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=39, help="problems")
    parser.add_argument("--seconds", type=float, default=2.0, help="processor seconds of each search")
    parser.add_argument("--cpsat-seconds", type=float, default=10.0, help="the same for CP-SAT")
    parser.add_argument("--solvers", default=",".join(SOLVERS), help="which of them, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, default=Path("out/small_schedules.jsonl"))
    parser.add_argument("--also", type=Path, default=None, help="answers of another file, for the summary")
    parser.add_argument("--list", action="store_true", help="print every unproven answer, too")
    arguments = parser.parse_args()
    seconds = {
        solver: arguments.cpsat_seconds if solver == "cp-sat" else arguments.seconds
        for solver in arguments.solvers.split(",")
    }
    if seconds.keys() - {"cp-sat"}:
        _warm_up()
    run(arguments.count, seed=arguments.seed, path=arguments.file, seconds_by_solver=seconds)
    rows = ({} if arguments.also is None else read_rows(arguments.also)) | read_rows(arguments.file)
    names = [case.name for case in small_cases(arguments.count, arguments.seed)]
    for line in summary(names, rows):
        print(line)
    for (name, solver), row in rows.items():
        if arguments.list and name in names and gap_of(row) > 0:
            print(f"{name} {solver}: {row['makespan']} bound {row['lower_bound']} ({gap_of(row):.1%})")


def _warm_up() -> None:
    """Compile, so that the first case is not charged for it."""
    for options in ({"split_backward": True}, {"choose_backward": True}):
        find_schedule(make_shape("zbv", 3, **options), micro_batches=4, memory=12, budget=SearchBudget(0.6))


if __name__ == "__main__":
    main()
