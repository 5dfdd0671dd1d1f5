"""Does a schedule take as long as the simulator says? Real ranks, stages of known duration.

    python -m benchmarks.simulator [--ranks 4] [--ms 5 10 20 50] [--repeats 5] [--shared] [--report FILE.md]

Each rank is a process of the engine; a stage sleeps for as long as it is said to take, so a rank at work
needs hardly any core and more ranks than cores can be run. Small tensors travel over gloo. The forward takes
the given milliseconds on one device, the input and the weight half of the backward as long each, the joint
backward both; a V has two stages of half the time on each device. The searched schedules keep the memory of
1F1B (vshape) or of ZB-V (zbv). Of unequal stages, the factors stand in the table. `--shared` runs the m and
the nn instead, whose blocks on all ranks wait for each other and take half the milliseconds.

Real medians stand beside makespans simulated plainly, and simulated with the overheads of this machine
(`tessel.engine.synthetic.overheads`): measured once for each number of ranks, kept in the records, and used
for every run as they are. On a machine that others use, `nice -n -15` in front shortens the waits for a core;
sleeping stages need little of it. Real-time priority (`chrt -f`) ends those waits, but what reaps a rank then
may spin in the kernel for what a process without it holds, and keep a core from everybody: only on a machine
of one's own.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.simulator.cases import STEPS_PER_MS, Case, make_cases, make_shared_cases
from benchmarks.simulator.report import Row, report
from records import open_store
from tessel.engine.job import Event
from tessel.engine.run import makespan_ms
from tessel.engine.synthetic.overheads import Found, known_overheads, makespan_with_overheads_ms
from tessel.engine.synthetic.run import run_synthetic
from tuner.backends.environment import environment_of
from tuner.targets.resolution import resolve_target

STEP_US = 1000 / STEPS_PER_MS


class Ran(NamedTuple):
    """A case, and for each schedule each step's events by rank."""

    case: Case
    steps: dict[str, list[list[tuple[Event, ...]]]]


def run_case(case: Case, repeats: int) -> Ran:
    """Run a case's schedules in turn on real ranks."""
    results = run_synthetic(case.schedules, step_us=STEP_US, repeats=repeats, timeout_s=900)
    return Ran(
        case,
        {
            name: [[result.events[name][step] for result in results] for step in range(repeats)]
            for name in case.schedules
        },
    )


def find_overheads(records_url: str, num_ranks: int) -> Found:
    """Return this machine's overheads, from the records or measured now."""
    target = resolve_target("cpu", num_threads=1)
    with open_store(records_url) as store:
        return known_overheads(store, num_ranks, target=target.text, machine=environment_of(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--shared", action="store_true", help="the m and the nn: blocks on all ranks")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--ms", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--search-seconds", type=float, default=5.0)
    parser.add_argument("--records", default="sqlite:///out/records.db", help="where overheads are kept")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    load = [_load()]
    found = find_overheads(arguments.records, arguments.ranks)
    runs: list[tuple[int, Ran]] = []
    for ms in arguments.ms:
        make = make_shared_cases if arguments.shared else make_cases
        for case in make(arguments.ranks, ms, arguments.micro_batches, arguments.search_seconds):
            began = time.monotonic()
            runs.append((ms, run_case(case, arguments.repeats)))
            load.append(_load())
            print(f"{case.name}: {time.monotonic() - began:.0f} s, load {load[-1]:.1f}", flush=True)
    rows = [
        Row(
            ran.case.name,
            name,
            schedule.makespan / STEPS_PER_MS,
            makespan_with_overheads_ms(schedule, found.calibration, step_us=STEP_US),
            tuple(makespan_ms(step) for step in ran.steps[name]),
        )
        for _, ran in runs
        for name, schedule in ran.case.schedules.items()
    ]
    text = report(rows, found, arguments, f"{min(load):.1f} to {max(load):.1f}")
    if arguments.report is not None:
        arguments.report.write_text(text)
    print(text)


def _load() -> float:
    return os.getloadavg()[0]


if __name__ == "__main__":
    main()
