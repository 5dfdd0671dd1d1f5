"""Random placements with unequal spans: the makespan search beside hand-written schedules and CP-SAT.

    python -m benchmarks.random_placements --count 20 --seconds 3 --cpsat-seconds 30

Placements come in four families, in turn: chains of stages with real-looking spans (joint backward), the same
with the choice between joint and split backward, V placements of two chunks a device with split backward, and
branching DAGs whose blocks may hold two devices. Spans are 10³ to 10⁵ steps, 3 to 6 devices, limits are loose
or tight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.cpsat_makespan import solve_makespan
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.search import find_schedule
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


def main() -> None:
    """Print one line a case and the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cpsat-seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=1, help="threads of CP-SAT; ours uses one")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    _warm_up()
    ratios, worse_than_rules = [], 0
    print("case | P | M | ours | by | s | bound | hand-written | CP-SAT | its bound | ours / CP-SAT")
    for case in random_cases(arguments.count, arguments.seed):
        began = time.monotonic()
        ours = find_schedule(
            case.placement,
            micro_batches=case.micro_batches,
            memory=case.memory,
            time_limit_s=arguments.seconds,
        )
        seconds = time.monotonic() - began
        check_schedule(ours)
        rule = best_handwritten(case)
        worse_than_rules += rule is not None and rule[0] < ours.makespan
        theirs = solve_makespan(
            case.placement,
            micro_batches=case.micro_batches,
            memory=case.memory,
            time_limit_s=arguments.cpsat_seconds,
            num_workers=arguments.workers,
        )
        ratio = None if theirs.makespan is None else ours.makespan / theirs.makespan
        ratios.append(0.0 if ratio is None else ratio)
        columns = (
            *(case.name, case.placement.devices, case.micro_batches),
            *(ours.makespan, ours.found_by, f"{seconds:.2f}", ours.lower_bound),
            *(rule, theirs.makespan, theirs.lower_bound, "none" if ratio is None else f"{ratio:.4f}"),
        )
        print(*columns, sep=" | ", flush=True)
    within = sum(ratio <= 1.01 for ratio in ratios) / len(ratios)
    print(f"worse than a hand-written one that fits: {worse_than_rules}")
    print(
        f"within 1 % of CP-SAT: {within:.1%}; ratio median {np.median(ratios):.4f}, worst {max(ratios):.4f}"
    )


def _warm_up() -> None:
    """Compile, so that the first case is not charged for it."""
    find_schedule(make_shape("zbv", 3, split_backward=True), micro_batches=4, memory=12, time_limit_s=0.5)


if __name__ == "__main__":
    main()
