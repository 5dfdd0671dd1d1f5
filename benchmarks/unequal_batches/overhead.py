"""Does a batch of one class take longer than equal micro-batches do?

    python -m benchmarks.unequal_batches.overhead [--pairs 20] [--against CHECKOUT]

Both run in turn in one process, each first in every other pair; a pair's ratio is of their processor times
(the fastest of as many runs of each as take 50 ms), and the interval is the bootstrap's of the median
ratio (95 %, 2000 draws, seed 0). Parts and searches are those of `uniform`; plans are of a table of one
length and of the same table without that column. With `--against`, equal micro-batches of this checkout and
of one without classes (`git archive 8bcaa7f8^ | tar -xC FOLDER`) are timed in processes in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tessel
from benchmarks.unequal_batches import uniform
from benchmarks.unequal_batches.uniform import MICRO_BATCHES, SEARCHED, uniform_parts, uniform_searches
from tessel.batches import Batch, scaled_class
from tessel.handwritten import HANDWRITTEN
from tessel.orders import device_orders, earliest_starts
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search.batches.find_batch_schedule import find_batch_schedule
from tessel.search.budget import SearchBudget, processor_clock
from tessel.shapes import SHAPES, ShapeFunction, vshape
from tessel.validation import check_schedule

QUICK_S = 0.05
"""What takes less counts as the fastest of as many runs: others share the machine, and its caches."""

FloatArray = npt.NDArray[np.float64]
Pair = tuple[Callable[[], object], Callable[[], object]]


def pairs_of_parts() -> dict[str, Pair]:
    placement = vshape(4, forward_span=100, backward_span=200)
    batch = one_class(placement, MICRO_BATCHES)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    orders = rule.orders(placement, micro_batches=MICRO_BATCHES)
    starts = earliest_starts(placement, orders)
    schedule = Schedule.of(placement, starts, micro_batches=MICRO_BATCHES, batch=batch)
    classed: dict[str, Callable[[], object]] = {
        "earliest starts": lambda: earliest_starts(placement, orders, batch),
        "Schedule.of": lambda: Schedule.of(placement, starts, micro_batches=MICRO_BATCHES, batch=batch),
        "device orders": lambda: device_orders(placement, starts, batch),
        "validation": lambda: check_schedule(schedule),
    }
    return {name: (plain, classed[name]) for name, plain in uniform_parts().items()}


def pairs_of_searches() -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    for (name, plain), shape in zip(uniform_searches().items(), SHAPES.values(), strict=True):

        def classed(shape: ShapeFunction = shape) -> object:
            placement = shape(4)
            batch = one_class(placement, SEARCHED)
            return find_batch_schedule(placement, batch, budget=SearchBudget(0.05))

        found[name] = plain, classed
    return found


def pair_of_plans() -> dict[str, Pair]:
    row = {"forward_ms": 1, "backward_ms": 2, "weights_mib": 9, "saved_mib": 1, "boundary_mib": 1}
    rows = [{"layer": f"h{index}", **row} for index in range(12)]
    classed = [{**each, "length": 4096} for each in rows]
    options = {"devices": 4, "work": 0.1, "memory": "1GiB", "progress": False}
    return {
        "plan": (
            lambda: tessel.plan(rows, micro_batches=16, **options),
            lambda: tessel.plan(classed, batch="4096x16", **options),
        )
    }


def one_class(placement: Placement, micro_batches: int) -> Batch:
    return Batch(classes=(scaled_class(placement, "1", 1.0),), sequence=(0,) * micro_batches)


def compared(pair: Pair, count: int) -> tuple[float, float, float, float]:
    """Return the uniform path's median milliseconds, and the median ratio with its interval."""
    took = np.zeros((count, 2))
    for each in pair:
        each()  # compiled, and caches warm
    began = processor_clock()
    pair[0]()
    runs = max(1, round(QUICK_S / (processor_clock() - began)))
    for number in range(count):
        for which in (0, 1) if number % 2 else (1, 0):
            own = []
            for _ in range(runs):
                began = processor_clock()
                pair[which]()
                own.append((processor_clock() - began) * 1e3)
            took[number, which] = min(own)
    return median_and_interval(took)


def median_and_interval(took: FloatArray) -> tuple[float, float, float, float]:
    """Return the first column's median, and the median ratio of the second to it with its interval."""
    count = len(took)
    ratio = took[:, 1] / took[:, 0]
    drawn = np.random.default_rng(0).integers(count, size=(2000, count))
    low, high = np.percentile(np.median(ratio[drawn], axis=1), (2.5, 97.5))
    return float(np.median(took[:, 0])), float(np.median(ratio)), float(low), float(high)


def against(checkout: Path, count: int) -> dict[str, tuple[float, float, float, float]]:
    """Return the same of equal micro-batches, of another checkout and this one, in processes of their own."""
    took: dict[str, FloatArray] = {}
    for number in range(count):
        for which in (0, 1) if number % 2 else (1, 0):
            folder = str((checkout, Path.cwd())[which].resolve())
            command = (sys.executable, str(Path(uniform.__file__).resolve()))
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": folder},
                stdout=subprocess.PIPE,
                check=True,
            )
            for name, each in json.loads(done.stdout).items():
                took.setdefault(name, np.full((count, 2), np.nan))[number, which] = each
    return {name: median_and_interval(each) for name, each in took.items() if np.isfinite(each).all()}


def main() -> None:
    """Print a row for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--against", type=Path, help="a checkout without classes of micro-batches")
    arguments = parser.parse_args()
    count = arguments.pairs
    if arguments.against is not None:
        print("| equal micro-batches | before, ms | now / before | interval |\n|---|---|---|---|")
        for name, (own, ratio, low, high) in against(arguments.against, count).items():
            print(f"| {name} | {own:.1f} | {ratio:.3f} | {low:.3f} to {high:.3f} |")
        return
    print("| what | equal, ms | one class / equal | interval |\n|---|---|---|---|")
    for name, pair in {**pairs_of_parts(), **pairs_of_searches(), **pair_of_plans()}.items():
        own, ratio, low, high = compared(pair, count)
        print(f"| {name} | {own:.1f} | {ratio:.3f} | {low:.3f} to {high:.3f} |", flush=True)


if __name__ == "__main__":
    main()
