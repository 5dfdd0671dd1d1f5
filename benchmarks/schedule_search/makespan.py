"""Whole schedules: the search, hand-written schedules under the same memory, and CP-SAT in the same time.

    python -m benchmarks.schedule_search.makespan --seconds 10 --cpsat

The first table has the shapes of Tessel with F = 1, B = 3 and their totals known beforehand; the second the
split backward (F, B, W, hop) on one chunk and on the V of two chunks a device, counted in half-steps of a
full stage and printed in steps. Memory is in full-stage activations, B and W free half each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.cpsat.makespan import solve_makespan
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search import Progress, SearchBudget, find_schedule
from tessel.shapes import make_shape, vshape, zbv
from tessel.validation import check_schedule

KNOWN_TOTALS = {
    ("vshape", 4): (44, 76, 268),
    ("xshape", 4): (70, 134, 518),
    ("mshape", 6): (60, 108, 396),
    ("nnshape", 6): (76, 140, 524),
    ("kshape", 6): (52, 100, 388),
}
"""By shape of 4 devices and memory: the best known makespans of 8, 16 and 64 micro-batches."""

SPLIT_CASES = (
    (1, 1, 1, 0, 4, 8),
    (1, 1, 1, 0, 8, 16),
    (10, 11, 9, 1, 4, 8),
    (10, 11, 9, 1, 8, 16),
    (10, 11, 9, 1, 16, 64),
)
"""Spans F, B, W of one stage, hop latency, devices, micro-batches."""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        name: as printed.
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit a device.
        steps: how many of the placement's steps are one printed step.
        known: best known makespan, where there is one.
    """

    name: str
    placement: Placement
    micro_batches: int
    memory: tuple[int, ...]
    steps: int = 1
    known: int | None = None


def joint_cases() -> Iterator[Case]:
    """Yield Tessel's shapes with joint backward."""
    for (shape, memory), totals in KNOWN_TOTALS.items():
        for micro_batches, total in zip((8, 16, 64), totals, strict=True):
            name = f"{shape} P=4 M={micro_batches} memory {memory}"
            yield Case(name, make_shape(shape, 4), micro_batches, (memory,) * 4, known=total)


def split_cases() -> Iterator[Case]:
    """Yield the split backward at 1x and 2x memory on a chain, and at 1x, 1/2x and 0.34x on a V."""
    for forward, backward, weight, hop, devices, micro_batches in SPLIT_CASES:
        for shape, chunks, shares in ((vshape, 1, (1.0, 2.0)), (zbv, 2, (1.0, 0.5, 0.34))):
            # A stage's numbers are doubled, so that a chunk, half a stage, has whole ones.
            size = 2 // chunks
            placement = shape(
                devices,
                split_backward=True,
                forward_span=forward * size,
                backward_input_span=backward * size,
                backward_weight_span=weight * size,
                lag=2 * hop,
                forward_memory=2 * size,
                backward_memory=-2 * size,
            )
            for share in shares:
                costs = f"{forward},{backward},{weight},{hop}"
                name = f"{costs} P={devices} M={micro_batches} {shape.__name__} {share}x"
                memory = (int(4 * devices * share),) * devices
                yield Case(name, placement, micro_batches, memory, steps=2)


def best_handwritten(case: Case) -> Schedule | None:
    """Return the shortest hand-written schedule that fits the limit."""
    built = []
    for rule in HANDWRITTEN:
        try:
            built.append(rule.build(case.placement, micro_batches=case.micro_batches, memory=case.memory))
        except ScheduleError:
            continue
    return min(built, key=lambda schedule: schedule.makespan, default=None)


def run_case(case: Case, *, seconds: float, with_cpsat: bool, clock: Callable[[], float]) -> str:
    """Search, check, and return the row."""
    told: list[Progress] = []
    began = clock()
    ours = find_schedule(
        case.placement,
        micro_batches=case.micro_batches,
        memory=case.memory,
        budget=SearchBudget(None, seconds, clock=clock, on_progress=told.append),
    )
    wall = clock() - began
    check_schedule(ours)
    rule = best_handwritten(case)
    theirs = None
    if with_cpsat:
        theirs = solve_makespan(
            case.placement,
            micro_batches=case.micro_batches,
            memory=case.memory,
            time_limit_s=seconds,
            is_processor_time=clock is time.process_time,
        ).makespan
    columns = (
        case.name,
        _steps(ours.makespan, case),
        _steps(ours.lower_bound, case),
        "proven" if ours.optimal else f"{ours.gap:.1%}",
        ours.found_by,
        f"{told[-1].elapsed_s:.2f}",
        f"{wall:.2f}",
        "-" if rule is None else f"{_steps(rule.makespan, case)} {rule.found_by}",
        "-" if case.known is None else _steps(case.known, case),
        "-" if theirs is None else _steps(theirs, case),
    )
    return f"| {' | '.join(columns)} |"


def _steps(makespan: int, case: Case) -> str:
    return f"{float(Fraction(makespan, case.steps)):g}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of each search")
    parser.add_argument("--cpsat", action="store_true", help="run CP-SAT beside, one thread, as long")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count seconds of the processor, which other work on the machine does not use up",
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    arguments = parser.parse_args()
    # The first search of all compiles; it is not measured.
    find_schedule(zbv(3, split_backward=True), micro_batches=4, memory=12, time_limit_s=1)
    print(
        "| case | makespan | bound | gap | found by | best after s | end s | hand-written | known | CP-SAT |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    clock = time.process_time if arguments.processor_time else time.monotonic
    for case in (*joint_cases(), *split_cases()):
        if arguments.only in case.name:
            row = run_case(case, seconds=arguments.seconds, with_cpsat=arguments.cpsat, clock=clock)
            print(row, flush=True)


if __name__ == "__main__":
    main()
