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

import numpy as np

from benchmarks.cpsat.makespan import solve_makespan
from benchmarks.random_placements import Case, Row, read_rows
from tessel.errors import InfeasibleError
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.placement_builder import ShapeOptions
from tessel.search import MakespanParams, Phase, SearchBudget, find_schedule
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape
from tessel.validation import check_schedule

FAMILIES = (
    "chain", "tight", "x", "m", "nn", "k", "chunks", "v", "choice", "v-choice", "device-choice", "dag",
    "dag-choice",
)  # fmt: skip

SHAPE_OF_FAMILY = {
    "chain": "vshape", "tight": "vshape", "x": "xshape", "m": "mshape", "nn": "nnshape", "k": "kshape",
    "chunks": "interleaved", "v": "zbv", "choice": "vshape", "v-choice": "zbv",
}  # fmt: skip

CHOICES = ("choice", "v-choice", "device-choice", "dag-choice")
"""Families with choices."""

MAX_TASKS = 120

SOLVERS = ("search", "own", "cp-sat")


def small_cases(count: int, seed: int) -> Iterator[Case]:
    """Yield so many problems, the families in turn; each has a schedule."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        yield _case_of(family, number, rng)


def _case_of(family: str, number: int, rng: np.random.Generator) -> Case:
    while True:
        placement = _placement_of(family, rng)
        num_tasks = sum(1 for block in placement.blocks) - sum(
            len(names) for choice in placement.choices for names in choice.options[1:]
        )
        most = MAX_TASKS // num_tasks
        if most < 3:
            continue
        micro_batches = int(rng.integers(3, min(most, 12) + 1))
        is_tight = family in ("tight", "dag-choice") or rng.random() < 0.5
        memory = _limits(placement, micro_batches, rng, is_tight=is_tight)
        try:
            build_instance(placement, micro_batches=micro_batches, memory=memory)
        except InfeasibleError:
            continue
        return Case(f"{family}{number}", placement, micro_batches, memory)


def _placement_of(family: str, rng: np.random.Generator) -> Placement:
    if family in ("dag", "dag-choice"):
        return _dag(rng, is_split=family == "dag-choice")
    if family == "device-choice":
        return _device_choice(rng)
    devices = int(rng.integers(2, 6))
    if family in ("x", "k", "chunks", "v", "v-choice"):
        devices = int(rng.integers(2, 5))
    chunks = {"x": 2, "chunks": 2, "v": 2, "v-choice": 2}.get(family, 1)
    return make_shape(SHAPE_OF_FAMILY[family], devices, **_options(family, devices * chunks, rng))


def _options(family: str, num_stages: int, rng: np.random.Generator) -> ShapeOptions:
    """Spans of a few steps in half of the problems, of thousands in the others."""
    unit = 1 if rng.random() < 0.5 else 1000
    forward = rng.integers(unit, 4 * unit + 1, num_stages)
    joint = (forward * rng.uniform(1.5, 2.5, num_stages)).astype(int) + 1
    first = np.maximum(1, (joint * rng.uniform(0.45, 0.65, num_stages)).astype(int))
    second = np.maximum(1, (joint * rng.uniform(1.0, 1.15, num_stages)).astype(int) - first)
    return ShapeOptions(
        forward_span=forward.tolist(),
        backward_span=joint.tolist(),
        backward_input_span=first.tolist(),
        backward_weight_span=second.tolist(),
        forward_memory=2,
        backward_memory=-2,
        tensor_parallel_span=int(rng.integers(unit, 3 * unit + 1)),
        lag=int(rng.integers(0, unit + 1)),
        split_backward=family == "v",
        choose_backward=family in ("choice", "v-choice"),
    )


def _dag(rng: np.random.Generator, *, is_split: bool) -> Placement:
    """Forward blocks with backward ones, some on several devices; with choices, some may run split."""
    devices, num_blocks = int(rng.integers(2, 5)), int(rng.integers(3, 8))
    blocks: list[Block] = []
    edges: list[Edge] = []
    choices: list[Choice] = []
    unit = 1 if rng.random() < 0.5 else 1000
    for index in range(num_blocks):
        size = 1 + int(rng.random() < 0.3) + int(rng.random() < 0.1)
        held = tuple(sorted(rng.choice(devices, size=min(size, devices), replace=False).tolist()))
        span, saved = int(rng.integers(unit, 5 * unit + 1)), int(rng.integers(1, 4))
        back = int(span * rng.uniform(1.2, 2.2)) + 1
        blocks.append(_block(f"f{index}", BlockKind.FORWARD, held, span, saved))
        blocks.append(_block(f"b{index}", BlockKind.BACKWARD, held, back, -saved))
        edges.append(Edge(f"f{index}", f"b{index}"))
        fed_by = rng.choice(index, size=min(index, int(rng.integers(0, 3))), replace=False).tolist()
        for source in fed_by:
            lag = int(rng.integers(0, unit + 1))
            edges += [Edge(f"f{source}", f"f{index}", lag), Edge(f"b{index}", f"b{source}", lag)]
        if is_split and rng.random() < 0.5:
            half = max(1, back // 2)
            blocks.append(_block(f"i{index}", BlockKind.BACKWARD_INPUT, held, half, 0))
            blocks.append(_block(f"w{index}", BlockKind.BACKWARD_WEIGHT, held, back - half + 1, -saved))
            edges += [Edge(f"f{index}", f"i{index}"), Edge(f"i{index}", f"w{index}")]
            edges += [Edge(f"i{index}", f"b{source}") for source in fed_by]
            choices.append(Choice(f"b{index}", ((f"b{index}",), (f"i{index}", f"w{index}"))))
    return Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices))


def _device_choice(rng: np.random.Generator) -> Placement:
    """Blocks in layers, half of which may run on one of two devices, at different spans."""
    devices, num_blocks = int(rng.integers(2, 5)), int(rng.integers(4, 9))
    unit = 1 if rng.random() < 0.5 else 1000
    blocks: list[Block] = []
    choices: list[Choice] = []
    names: list[list[str]] = []
    for index in range(num_blocks):
        is_free = rng.random() < 0.5
        held = rng.choice(devices, size=2 if is_free else 1, replace=False).tolist()
        row = [f"x{index}_{device}" if is_free else f"x{index}" for device in held]
        for name, device in zip(row, held, strict=True):
            span = int(rng.integers(unit, 5 * unit + 1))
            blocks.append(_block(name, BlockKind.OTHER, (device,), span, 0))
        if is_free:
            choices.append(Choice(f"x{index}", tuple((name,) for name in row)))
        names.append(row)
    edges = [
        Edge(source, target)
        for index in range(1, num_blocks)
        for before in rng.choice(index, size=min(index, int(rng.integers(1, 3))), replace=False).tolist()
        for source in names[before]
        for target in names[index]
    ]
    return Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices))


def _block(name: str, kind: BlockKind, held: tuple[int, ...], span: int, memory: int) -> Block:
    return Block(name=name, kind=kind, devices=held, span=span, memory=memory)


def _limits(
    placement: Placement, micro_batches: int, rng: np.random.Generator, *, is_tight: bool
) -> tuple[int, ...]:
    """Room for one to two micro-batches in flight where it is tight, else for up to all."""
    in_flight = rng.uniform(1, 2.2) if is_tight else rng.uniform(2, micro_batches + 1)
    saved = [
        sum(max(0, block.memory) for block in placement.blocks if device in block.devices)
        for device in range(placement.devices)
    ]
    return tuple(max(1, int(in_flight * each)) for each in saved)


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
