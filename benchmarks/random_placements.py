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
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cpsat.makespan import solve_makespan
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.search import SearchBudget, find_schedule
from tessel.shapes import make_shape
from tessel.validation import check_schedule

FAMILIES = ("chain", "choice", "v", "dag")


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        name: family and number.
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit a device.
    """

    name: str
    placement: Placement
    micro_batches: int
    memory: tuple[int, ...]


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield so many cases, the families in turn."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        devices = int(rng.integers(3, 7))
        micro_batches = int(rng.integers(4, 13))
        placement = _dag(devices, rng) if family == "dag" else _chain(family, devices, rng)
        yield Case(f"{family}{number}", placement, micro_batches, _limits(placement, micro_batches, rng))


def _chain(family: str, devices: int, rng: np.random.Generator) -> Placement:
    stages = devices * (2 if family == "v" else 1)
    forward = np.exp(rng.uniform(np.log(2_000), np.log(40_000), stages)).astype(int)
    ratio = rng.uniform(1.6, 2.4, stages)
    share = rng.uniform(0.4, 0.65, stages)
    joint = (forward * ratio).astype(int)
    overhead = rng.uniform(1.0, 1.2, stages)
    saved = rng.integers(50, 200, stages)
    return make_shape(
        "zbv" if family == "v" else "vshape",
        devices,
        forward_span=forward.tolist(),
        backward_span=joint.tolist(),
        backward_input_span=(joint * share * overhead).astype(int).tolist(),
        backward_weight_span=(joint * (1 - share) * overhead).astype(int).tolist(),
        forward_memory=saved.tolist(),
        backward_memory=(-saved).tolist(),
        lag=rng.integers(0, 3_000, stages - 1).tolist(),
        split_backward=family == "v",
        choose_backward=family == "choice",
    )


def _dag(devices: int, rng: np.random.Generator) -> Placement:
    """Layers of one to three blocks, fed by one or two of the layer before, with backward blocks."""
    forward: list[Block] = []
    backward: list[Block] = []
    edges: list[Edge] = []
    layer: list[int] = []
    for _ in range(int(rng.integers(3, 6))):
        above, layer = layer, []
        for _ in range(int(rng.integers(1, 4))):
            index = len(forward)
            held = sorted(rng.choice(devices, size=1 + int(rng.random() < 0.2), replace=False).tolist())
            span = int(np.exp(rng.uniform(np.log(1_000), np.log(100_000))))
            saved = int(rng.integers(10, 200))
            forward.append(
                Block(name=f"f{index}", kind=BlockKind.FORWARD, devices=tuple(held), span=span, memory=saved)
            )
            backward.append(
                Block(
                    name=f"b{index}",
                    kind=BlockKind.BACKWARD,
                    devices=tuple(held),
                    span=int(span * rng.uniform(1.5, 2.5)),
                    memory=-saved,
                )
            )
            edges.append(Edge(f"f{index}", f"b{index}"))
            fed_by = (
                rng.choice(above, size=min(len(above), int(rng.integers(1, 3))), replace=False)
                if above
                else []
            )
            for source in map(int, fed_by):
                lag = int(rng.integers(0, 3_000))
                edges += [Edge(f"f{source}", f"f{index}", lag), Edge(f"b{index}", f"b{source}", lag)]
            layer.append(index)
    return Placement(devices=devices, blocks=(*forward, *reversed(backward)), edges=tuple(edges))


def _limits(placement: Placement, micro_batches: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Room for a random number of micro-batches in flight, at least two."""
    in_flight = rng.uniform(2, max(3, min(micro_batches, placement.devices + 1)))
    saved = [
        sum(max(0, block.memory) for block in placement.blocks if device in block.devices)
        for device in range(placement.devices)
    ]
    return tuple(int(in_flight * each) for each in saved)


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
