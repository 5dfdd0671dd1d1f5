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
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from records import open_store
from tessel.engine.job import Event
from tessel.engine.run import makespan_ms
from tessel.engine.synthetic.overheads import Found, known_overheads, makespan_with_overheads_ms
from tessel.engine.synthetic.run import run_synthetic
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search import find_schedule
from tessel.shapes import make_shape
from tuner.backends.environment import environment_of
from tuner.targets.resolution import resolve_target

STEPS_PER_MS = 4
STEP_US = 1000 / STEPS_PER_MS
FACTORS = (1.0, 1.5, 0.75, 1.25)
MARGIN = 0.05
"""Schedules whose simulated makespans differ by less are not told apart."""


class Row(NamedTuple):
    """One schedule at one duration."""

    case: str
    schedule: str
    plain_ms: float
    calibrated_ms: float
    real_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.real_ms)


class Case(NamedTuple):
    """Schedules of one placement, run in turn."""

    name: str
    schedules: dict[str, Schedule]


class Ran(NamedTuple):
    """A case, and for each schedule each step's events by rank."""

    case: Case
    steps: dict[str, list[list[tuple[Event, ...]]]]


def make_cases(num_ranks: int, ms: int, num_micro_batches: int, search_s: float) -> Iterator[Case]:
    """Yield the equal stages of a chain, of a V, and unequal stages of a chain."""
    whole = ms * STEPS_PER_MS
    chain = make_shape("vshape", num_ranks, choose_backward=True, **_spans([whole] * num_ranks))
    yield Case(
        f"{ms} ms, chain",
        {
            **{name: _built(name, chain, num_micro_batches) for name in ("1f1b", "zb-h1")},
            "searched": _searched(chain, num_micro_batches, "1f1b", search_s),
        },
    )
    v = make_shape("zbv", num_ranks, split_backward=True, **_spans([whole // 2] * 2 * num_ranks))
    yield Case(
        f"{ms} ms, V",
        {
            "zb-v": _built("zb-v", v, num_micro_batches),
            "searched-v": _searched(v, num_micro_batches, "zb-v", search_s),
        },
    )
    factors = [FACTORS[rank % len(FACTORS)] for rank in range(num_ranks)]
    unequal = make_shape(
        "vshape", num_ranks, choose_backward=True, **_spans([round(whole * factor) for factor in factors])
    )
    yield Case(
        f"{ms} ms × {'/'.join(map(str, FACTORS))}, chain",
        {
            **{name: _built(name, unequal, num_micro_batches) for name in ("1f1b", "zb-h1")},
            "searched": _searched(unequal, num_micro_batches, "1f1b", search_s),
        },
    )


def make_shared_cases(num_ranks: int, ms: int, num_micro_batches: int, search_s: float) -> Iterator[Case]:
    """Yield the m and the nn, whose blocks on all ranks take half as long as the others' forward."""
    whole = ms * STEPS_PER_MS
    for shape in ("mshape", "nnshape"):
        placement = make_shape(
            shape,
            num_ranks,
            choose_backward=True,
            tensor_parallel_span=whole // 2,
            forward_span=whole,
            backward_span=2 * whole,
            backward_input_span=whole,
            backward_weight_span=whole,
        )
        yield Case(
            f"{ms} ms, {shape.removesuffix('shape')}",
            {
                "1f1b": _built("1f1b", placement, num_micro_batches),
                "searched": _searched(placement, num_micro_batches, "1f1b", search_s),
            },
        )


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


def order_errors(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the pairs of schedules of one duration whose real order is not the simulated one."""
    for a, b in combinations(rows, 2):
        if a.case.split(",")[0] != b.case.split(",")[0]:
            continue
        faster, slower = sorted((a, b), key=lambda row: row.calibrated_ms)
        is_apart = slower.calibrated_ms > (1 + MARGIN) * faster.calibrated_ms
        if is_apart and faster.median_ms >= slower.median_ms:
            yield f"{faster.case}: {faster.schedule} before {slower.schedule}"


def report(rows: Sequence[Row], found: Found, arguments: argparse.Namespace, load: str) -> str:
    """Return the report as Markdown."""
    overheads = "; ".join(
        f"{own.action_us / 1000:.2f} ms an action, {own.gap_us / 1000:.2f} ms between actions, "
        f"{own.hop_us / 1000:.2f} ms a hop, {own.collective_us / 1000:.2f} ms a block on all ranks, "
        f"where stages take {duration_us / 1000:.0f} ms"
        for duration_us, own in zip(*found.calibration, strict=True)
    )
    plain = [row.median_ms / row.plain_ms - 1 for row in rows]
    calibrated = [row.median_ms / row.calibrated_ms - 1 for row in rows]
    wrong = list(order_errors(rows))
    ratios = [
        f"- {case}: {_ratio(rows, case)}"
        for case in dict.fromkeys(row.case for row in rows if row.schedule == "searched")
    ]
    table = [
        "| stages | schedule | simulated (ms) | with overheads (ms) | real median (ms) | range (ms) "
        "| real/simulated | real/with overheads |",
        "|---|---|--:|--:|--:|---|--:|--:|",
        *(
            f"| {row.case} | {row.schedule} | {row.plain_ms:.1f} | {row.calibrated_ms:.1f} "
            f"| {row.median_ms:.1f} | {min(row.real_ms):.1f} to {max(row.real_ms):.1f} "
            f"| {row.median_ms / row.plain_ms:.3f} | {row.median_ms / row.calibrated_ms:.3f} |"
            for row in rows
        ),
    ]
    lines = [
        "# Simulated and real makespans",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {processor()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, load average {load} "
        f"from other work, niceness {os.nice(0)}.",
        "",
        "```",
        f"python -m benchmarks.simulator --ranks {arguments.ranks} --ms {' '.join(map(str, arguments.ms))} "
        f"--micro-batches {arguments.micro_batches} --repeats {arguments.repeats}"
        f"{' --shared' if arguments.shared else ''}",
        "```",
        "",
        f"{arguments.ranks} ranks, {arguments.micro_batches} micro-batches, {arguments.repeats} counted "
        "steps of each schedule, the schedules of the same stages in turn. Stages sleep; see the benchmark's "
        "docstring.",
        "",
        *table,
        "",
        f"Plain simulation is {_spread(plain)} off; with overheads {_spread(calibrated)} "
        f"({sum(abs(error) <= 0.05 for error in calibrated)} of {len(rows)} within 5 %). The overheads were "
        f"{'measured before it by runs of their own' if found.is_new else 'found in the records'} and used "
        f"everywhere: {overheads}.",
        "",
        "Order of schedules that differ by over 5 %: "
        + ("always as predicted." if not wrong else "not as predicted for " + "; ".join(wrong) + "."),
        "",
        "Real makespan of the searched schedule over 1F1B's, median of step by step ratios (range):",
        "",
        *ratios,
        "",
        "Real makespans of every counted step, in ms:",
        "",
        *(f"- {row.case}, {row.schedule}: {', '.join(f'{ms:.1f}' for ms in row.real_ms)}" for row in rows),
        "",
    ]
    return "\n".join(lines)


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


def _spans(whole: Sequence[int]) -> dict[str, list[int]]:
    return {
        "forward_span": list(whole),
        "backward_span": [2 * span for span in whole],
        "backward_input_span": list(whole),
        "backward_weight_span": list(whole),
    }


def _built(name: str, placement: Placement, num_micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == name)
    return rule.build(placement, micro_batches=num_micro_batches)


def _searched(placement: Placement, num_micro_batches: int, like: str, search_s: float) -> Schedule:
    limits = _built(like, placement, num_micro_batches).peak_memory
    return find_schedule(
        placement, micro_batches=num_micro_batches, memory=max(limits), time_limit_s=search_s
    )


def _ratio(rows: Sequence[Row], case: str) -> str:
    by_name: Mapping[str, Row] = {row.schedule: row for row in rows if row.case == case}
    searched, baseline = by_name["searched"], by_name["1f1b"]
    ratios = [mine / theirs for mine, theirs in zip(searched.real_ms, baseline.real_ms, strict=True)]
    return (
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"simulated {searched.plain_ms / baseline.plain_ms:.3f}"
    )


def _spread(errors: Sequence[float]) -> str:
    return f"{100 * min(errors):+.1f} to {100 * max(errors):+.1f} %"


def _load() -> float:
    return os.getloadavg()[0]


def commit() -> str:
    """Return the commit that is checked out, shortened."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
