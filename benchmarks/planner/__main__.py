"""Plans for eight profiles on 4, 8 and 16 devices under two memory limits, beside hand-written schedules.

    python -m benchmarks.planner --work 8 --out rows.jsonl     eight measured profiles, of benchmarks/data
    python -m benchmarks.planner --made-up --devices 4 8       eight profiles of a transformer's proportions
    python -m benchmarks.planner --large                       64 devices, 200 layers: time and memory
    python -m benchmarks.planner --planning-time --work 30     8 devices and 100 layers, 64 and 500: time
    python -m benchmarks.planner --clones sailor NeuSight      make the profiles again, of full collections

Each case is a pipeline over all devices, `--micro-batches` a device, and a memory limit: parts of what 1F1B
with its best cut takes when nothing is recomputed. Baselines have their own best cut under the same limit,
and may recompute. Ratios are to the searched step (above 1: the plan is faster); geometric means follow.
Rows are kept in `--out`, one a line, and a run that was stopped goes on where it was. The budget of a plan is
in units of work, so that load changes no answer.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.planner import tables
from benchmarks.planner.cases import Row, cluster_of, run_cases
from benchmarks.planner.measured import measured_profiles
from benchmarks.planner.shapes import SHAPES, Shape, synthetic_profile
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.plan_result import PlanProgress
from tessel.profiles.load import load_profile
from tessel.profiles.profile import Profile
from tessel.profiles.table import save_table
from tessel.search import SearchBudget

PROFILES = Path(__file__).resolve().parent.parent / "data" / "profiles"

SHARES = (1.02, 0.5)
"""Memory limits by default: what 1F1B takes, and half of it."""

UNLIMITED = "none"

BATCH_A_DEVICE = 8
"""Samples of a step for each device where planning is timed."""


@dataclass(frozen=True, slots=True)
class TimedCase:
    """A plan whose time of planning is of interest.

    Attributes:
        devices: all are used.
        layers: of the model.
        memory_gib: of a device.
        limit_s: seconds that planning may take on an idle machine; None where none is set.
    """

    devices: int
    layers: int
    memory_gib: int
    limit_s: float | None = None


LARGE = TimedCase(64, 200, 16)

TIMED = (TimedCase(8, 100, 64, 60.0), TimedCase(64, 500, 16, 300.0))
"""Operator groups of published sizes of models, and how long planning for them may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; keep rows where asked. Returns 1 if a hand-written schedule is faster than a plan."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="folder of profiles")
    parser.add_argument("--made-up", action="store_true", help="profiles of proportions in their place")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--memory", type=_share, nargs="+", default=SHARES, help="parts of 1F1B's, or none")
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step, for each device")
    parser.add_argument("--work", type=float, default=8.0, help="units of work of each plan")
    parser.add_argument("--out", type=Path, help="file of rows, read first and added to")
    parser.add_argument("--large", action="store_true", help="64 devices and 200 layers, nothing else")
    parser.add_argument("--planning-time", action="store_true", help="8 devices, 100 layers; 64 and 500")
    parser.add_argument("--clones", type=Path, nargs=2, help="make the profiles of Sailor's and NeuSight's")
    options = parser.parse_args(arguments)
    if options.large:
        print(time_plan(LARGE, options.work))
        return 0
    if options.planning_time:
        for case in TIMED:
            print(time_plan(case, options.work), flush=True)
        return 0
    if options.clones:
        for profile in measured_profiles(*options.clones):
            save_table(profile, PROFILES / f"{profile.name}_{profile.device}.csv".lower())
        return 0
    rows = read_rows(options.out)
    for row in run_cases(
        map(synthetic_profile, SHAPES) if options.made_up else profiles_of(options.profiles),
        devices=options.devices,
        shares=options.memory,
        micro_batches=options.micro_batches,
        work=options.work,
        known=rows,
    ):
        rows.append(row)
        print(msgspec.json.encode(row).decode(), file=sys.stderr, flush=True)
        if options.out is not None:
            with options.out.open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
    for line in (*tables.means(rows), "", *tables.every_row(rows)):
        print(line)
    worse = tables.slower(rows)
    print(f"\ncases in which a hand-written schedule is faster than the plan: {len(worse)} of {len(rows)}")
    return 1 if worse else 0


def _share(text: str) -> float | None:
    return None if text == UNLIMITED else float(text)


def read_rows(path: Path | None) -> list[Row]:
    """Return the rows of an earlier run; a last line that was cut off is left out."""
    if path is None or not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]


def profiles_of(folder: Path) -> Iterator[Profile]:
    """Yield the profiles of a folder, named by model and device."""
    for path in sorted(folder.glob("*.csv")):
        profile = load_profile(path)
        yield msgspec.structs.replace(profile, name=f"{profile.name}, {profile.device}")


def time_plan(case: TimedCase, work: float) -> str:
    """Return how long a plan takes, when its first answer comes, and the peak memory of this process."""
    shape = Shape(f"{case.layers} layers", case.layers - 2, 2000.0, 3.6, 80, 50, 300)
    told: list[tuple[PlanProgress, float]] = []
    began, processor = time.monotonic(), time.process_time()
    found = find_plan(
        synthetic_profile(shape),
        Job(
            cluster=cluster_of(case.devices, case.memory_gib * 2**30),
            global_batch=BATCH_A_DEVICE * case.devices,
        ),
        budget=SearchBudget(work_limit=work),
        on_progress=lambda progress: told.append((progress, time.process_time() - processor)),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    limit = "" if case.limit_s is None else f" (limit {case.limit_s:.0f} s)"
    return (
        f"{case.devices} devices, {case.layers} layers: {found.best.name}: "
        f"{found.best.estimate.step_us / 1e3:.1f} ms, gap {found.gap:.1%}; "
        f"{time.monotonic() - began:.1f} s in all{limit}, {time.process_time() - processor:.1f} s of the "
        f"processor; first answer after {told[0][0].elapsed_s:.1f} s, {told[0][1]:.1f} s of the processor; "
        f"{peak:.2f} GiB at most; {found.counts}"
    )


if __name__ == "__main__":
    sys.exit(main())
