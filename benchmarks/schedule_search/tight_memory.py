"""Whole schedules of GPT-like stages under tight memory: the search beside every hand-written rule.

    python -m benchmarks.schedule_search.tight_memory --seconds 10

A stage takes F : B : W = 1 : 1.3 : 1, its joint backward 2.2; the one with the embedding takes 12 % more,
the one with the output head 60 % more, and a hop takes 5 % of a forward. A forward holds two units, of which
B and W free one each. Memory is a part of what 1F1B holds on its first device. The rules stand at equal
memory, each with the best of its free parameters (`tessel.handwritten.strongest`); V-half and V-min beside it
as published, with the memory that they need. The limit is one on processor seconds. With `--sail-sg CHECKOUT`
that project's own schedulers run in the same run (`benchmarks.schedule_search.sail_sg`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpsat.makespan import solve_makespan
from benchmarks.schedule_search.sail_sg import SCHEDULERS, ask_sail_sg
from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.strongest import build_strongest
from tessel.handwritten.zero_bubble.v_half import V_HALF
from tessel.handwritten.zero_bubble.v_min import V_MIN
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search import SearchBudget, find_schedule
from tessel.search.budget import processor_clock
from tessel.shapes import make_shape
from tessel.validation import check_schedule

FORWARD_SPAN = 600
"""Steps of a forward of one chunk."""

EMBEDDING, HEAD = 1.12, 1.6
"""What the first and the last stage take, as a multiple of the others."""

MAX_CPSAT_TASKS = 400
"""Tasks up to which CP-SAT is asked as well."""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        name: as printed.
        placement: blocks of one micro-batch.
        micro_batches: how many are run.
        memory: limit a device, in units.
    """

    name: str
    placement: Placement
    micro_batches: int
    memory: tuple[int, ...]


def tight_cases() -> Iterator[Case]:
    """Yield the V of two chunks and the chain, with split backward and with the choice of it."""
    for shape, devices, micro_batches, share, is_choice in (
        ("zbv", 32, 64, 1 / 2, False),
        ("zbv", 8, 32, 1 / 3, False),
        ("zbv", 8, 32, 1 / 3, True),
        ("vshape", 8, 32, 1 / 2, False),
        ("vshape", 16, 64, 1 / 2, False),
        ("vshape", 8, 32, 1 / 2, True),
        ("vshape", 16, 64, 1 / 2, True),
        ("zbv", 3, 6, 1 / 2, False),
    ):
        yield _case(shape, devices, micro_batches, share, is_choice=is_choice)


def _case(shape: str, devices: int, micro_batches: int, share: float, *, is_choice: bool) -> Case:
    chunks = 2 if shape == "zbv" else 1
    num_stages = chunks * devices
    factors = [EMBEDDING] + [1.0] * (num_stages - 2) + [HEAD]
    placement = make_shape(
        shape,
        devices,
        forward_span=[round(FORWARD_SPAN * factor) for factor in factors],
        backward_span=[round(FORWARD_SPAN * factor * 2.2) for factor in factors],
        backward_input_span=[round(FORWARD_SPAN * factor * 1.3) for factor in factors],
        backward_weight_span=[round(FORWARD_SPAN * factor) for factor in factors],
        forward_memory=2,
        backward_memory=-2,
        lag=round(FORWARD_SPAN * 0.05),
        split_backward=not is_choice,
        choose_backward=is_choice,
    )
    kind = "choice" if is_choice else "split"
    memory = int(2 * chunks * devices * share)
    name = f"{shape} {devices} x {micro_batches}, {kind}, {share:.2g} memory"
    return Case(name, placement, micro_batches, (memory,) * devices)


def best_rule(case: Case) -> Schedule | None:
    """Return the shortest hand-written schedule that keeps the limit."""
    built = []
    for rule in HANDWRITTEN:
        try:
            found = build_strongest(
                rule, case.placement, micro_batches=case.micro_batches, memory=case.memory
            )
        except ScheduleError:
            continue
        if all(peak <= limit for peak, limit in zip(found.peak_memory, case.memory, strict=True)):
            built.append(found)
    return min(built, key=lambda schedule: schedule.makespan, default=None)


def as_published(case: Case) -> str:
    """Return the makespans of V-half and V-min, and their memory as a part of the limit."""
    found = []
    for rule in (V_HALF, V_MIN):
        try:
            schedule = rule.build(case.placement, micro_batches=case.micro_batches, memory=None)
        except ScheduleError:
            continue
        share = max(schedule.peak_memory) / case.memory[0]
        found.append(f"{rule.name} {schedule.makespan} ({share:.0%} of the memory)")
    return ", ".join(found) or "-"


def of_sail_sg(case: Case, checkout: Path | None) -> str:
    """Return the makespans of sail-sg's schedulers, and their memory as a part of the limit."""
    if checkout is None or not case.name.startswith("zbv") or case.placement.choices:
        return "-"
    found = []
    for name in SCHEDULERS:
        rival = ask_sail_sg(checkout, name, case.placement, case.micro_batches, case.memory[0])
        if rival.schedule is None:
            found.append(f"{name}: {rival.failure}")
            continue
        share = max(rival.schedule.peak_memory) / case.memory[0]
        found.append(f"{name} {rival.schedule.makespan} ({share:.0%} of the memory)")
    return ", ".join(found)


def run_case(case: Case, *, seconds: float, checkout: Path | None) -> str:
    """Search, check, and return the row."""
    began = time.process_time()
    budget = SearchBudget(None, seconds, clock=processor_clock)
    ours = find_schedule(case.placement, micro_batches=case.micro_batches, memory=case.memory, budget=budget)
    taken = time.process_time() - began
    check_schedule(ours)
    rule = best_rule(case)
    cpsat = "-"
    if len(case.placement.blocks) * case.micro_batches <= MAX_CPSAT_TASKS:
        theirs = solve_makespan(
            case.placement,
            micro_batches=case.micro_batches,
            memory=case.memory,
            time_limit_s=seconds,
            is_processor_time=True,
        )
        cpsat = str(theirs.makespan)
    columns = (
        case.name,
        str(ours.makespan),
        str(ours.lower_bound),
        "proven" if ours.optimal else f"{ours.gap:.1%}",
        ours.found_by,
        f"{taken:.1f}",
        "-"
        if rule is None
        else f"{rule.found_by} {rule.makespan} ({rule.makespan / ours.makespan - 1:+.1%})",
        as_published(case),
        of_sail_sg(case, checkout),
        cpsat,
    )
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="processor seconds of each search")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--sail-sg", type=Path, default=None, help="folder of that project's code")
    arguments = parser.parse_args()
    print(
        "| case | search | bound | gap | found by | taken s | best rule that fits | as published | sail-sg "
        "| CP-SAT |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for case in tight_cases():
        if arguments.only in case.name:
            print(run_case(case, seconds=arguments.seconds, checkout=arguments.sail_sg), flush=True)


if __name__ == "__main__":
    main()
