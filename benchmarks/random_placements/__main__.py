"""Random placements with unequal spans: the makespan search beside hand-written schedules and CP-SAT.

    python -m benchmarks.random_placements --count 200 --file out/random_placements.jsonl

Placements come in four families, in turn: chains of stages with real-looking spans (joint backward), the same
with the choice between joint and split backward, V placements of two chunks a device with split backward, and
branching DAGs whose blocks may hold two devices. Spans are 10³ to 10⁵ steps, 3 to 6 devices, limits are loose
or tight. The first n of a seed are the same whatever the count.

Each answer is appended to the file as it comes. The same command goes on where it was stopped; `--solver
search` or `cp-sat` runs one side only, so that a changed search is measured again (in a new file) without the
hours of CP-SAT. Both sides have one thread, and their limits are processor seconds of the process, which
other work on the machine does not use up. The summary counts the placements that both sides have answered.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.random_placements.cases import random_cases
from benchmarks.random_placements.rows import Row, cpsat_row, read_rows, search_row
from tessel.search import find_schedule
from tessel.shapes import make_shape


def run(count: int, *, seed: int, path: Path, seconds_by_solver: Mapping[str, float]) -> None:
    """Append what is missing of the first cases, case by case."""
    known = read_rows(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in random_cases(count, seed):
        for solver, seconds in seconds_by_solver.items():
            if (case.name, solver) in known:
                continue
            row = {"case": case.name, "solver": solver, "seed": seed, "limit_s": seconds}
            row |= {"devices": case.placement.devices, "micro_batches": case.micro_batches}
            row |= search_row(case, seconds) if solver == "search" else cpsat_row(case, seconds)
            with path.open("a") as file:
                # a line begins afresh, should the last one have been cut off
                file.write(("\n" if _is_cut_off(path) else "") + json.dumps(row) + "\n")


def _is_cut_off(path: Path) -> bool:
    text = path.read_bytes()
    return bool(text) and not text.endswith(b"\n")


def summary(names: Iterable[str], rows: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Yield a table of the cases that both sides have answered, and what follows from it."""
    yield "| case | P | M | ours | bound | by | s | hand-written | CP-SAT | its bound | s | ours / CP-SAT |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    ratios: list[float] = []
    none = worse = 0
    for name in names:
        ours, theirs = rows.get((name, "search")), rows.get((name, "cp-sat"))
        if ours is None or theirs is None:
            continue
        worse += ours["handwritten"] is not None and int(ours["makespan"] or 0) > int(ours["handwritten"])
        ratio = "none"
        if theirs["makespan"] is None:
            none += 1
        else:
            ratios.append(int(ours["makespan"] or 0) / int(theirs["makespan"]))
            ratio = f"{ratios[-1]:.4f}"
        rule = "-" if ours["handwritten"] is None else f"{ours['handwritten']} {ours['handwritten_by']}"
        columns = (
            *(name, ours["devices"], ours["micro_batches"], ours["makespan"], ours["lower_bound"]),
            *(ours["found_by"], ours["seconds"], rule),
            *(theirs["makespan"] or "none", theirs["lower_bound"], theirs["seconds"], ratio),
        )
        yield f"| {' | '.join(map(str, columns))} |"
    if not ratios:
        return
    within = sum(ratio <= 1.01 for ratio in ratios) + none
    total = len(ratios) + none
    yield ""
    yield f"placements answered by both: {total}"
    yield f"longer than a hand-written schedule that fits: {worse}"
    yield f"within 1 % of CP-SAT, or better: {within} ({within / total:.1%}); CP-SAT found none: {none}"
    yield f"ours / CP-SAT where it found one: median {np.median(ratios):.4f}, worst {max(ratios):.4f}"
    yield (
        f"shorter than CP-SAT: {sum(ratio < 1 for ratio in ratios)}, equal: "
        f"{sum(ratio == 1 for ratio in ratios)}, longer: {sum(ratio > 1 for ratio in ratios)}"
    )


def main() -> None:
    """Run what is missing and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="placements; 200 take hours of CP-SAT")
    parser.add_argument("--seconds", type=float, default=3.0, help="processor seconds of each search")
    parser.add_argument("--cpsat-seconds", type=float, default=30.0, help="the same for CP-SAT")
    parser.add_argument("--solver", choices=("both", "search", "cp-sat"), default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, default=Path("out/random_placements.jsonl"))
    parser.add_argument("--also", type=Path, default=None, help="answers of another file, for the summary")
    arguments = parser.parse_args()
    seconds = {"search": arguments.seconds, "cp-sat": arguments.cpsat_seconds}
    if arguments.solver != "both":
        seconds = {arguments.solver: seconds[arguments.solver]}
    if "search" in seconds:
        _warm_up()
    run(arguments.count, seed=arguments.seed, path=arguments.file, seconds_by_solver=seconds)
    rows = ({} if arguments.also is None else read_rows(arguments.also)) | read_rows(arguments.file)
    for line in summary((case.name for case in random_cases(arguments.count, arguments.seed)), rows):
        print(line)


def _warm_up() -> None:
    """Compile, so that the first case is not charged for it."""
    find_schedule(make_shape("zbv", 3, split_backward=True), micro_batches=4, memory=12, time_limit_s=2)


if __name__ == "__main__":
    main()
