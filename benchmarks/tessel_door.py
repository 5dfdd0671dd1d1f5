"""Tessel's own case driver on this package, and Tessel's own loader on what it saves.

    python -m benchmarks.tessel_door TESSEL --python PYTHON

TESSEL is a checkout of Tessel's public code, which this repository does not contain; PYTHON an interpreter
that can import it (with more_itertools, numpy and z3-solver); without one, only the driver runs. Each case
runs the driver unchanged with this repository first on the path, then Tessel's loader unrolls the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "vshape": (4, 4),
    "xshape": (3, 4),
    "mshape": (6, 6),
    "nnshape": (6, 6),
    "kshape": (3, 6),
    "nnshape_eager": (4, 6),
    "mllm": (4, 6),
    "finetune": (4, 4),
    "alphafold": (4, 4),
}
"""Micro-batches and memory by placement; those of Tessel's own evaluation where it has them."""

MORE_MICRO_BATCHES = (0, 1, 20)

UNROLL = f"""
import json, sys
from tessel.schedule.schedplan import SchedPlan
plan = SchedPlan.load(sys.argv[1])
present = 1 + max(block.mid for block in plan.all_blocks())
steps = {{}}
for more in {MORE_MICRO_BATCHES}:
    try:
        steps[present + more] = plan.unroll(present + more).nsteps
    except AssertionError:
        steps[present + more] = "refused"
print(json.dumps(steps))
"""


def drive(tessel: Path, shape: str, file: Path) -> str:
    """Return the driver's last line: the steps of warm-up, repetend and cool-down."""
    micro_batches, memory = CASES[shape]
    driver = tessel / "examples" / "simulator" / "cases_tessel.py"
    arguments = ["--placement", shape, "--ndevs", "4", "--nmicros", str(micro_batches)]
    done = subprocess.run(
        [sys.executable, str(driver), *arguments, "--memory", str(memory), "--save", str(file)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def unroll(tessel: Path, python: str, file: Path) -> str:
    """Return the steps by micro-batches that Tessel's own loader and `unroll` give."""
    done = subprocess.run(
        [python, "-c", UNROLL, str(file)],
        cwd=tessel,  # where it runs is first on the path, and this repository has a package of that name
        env={**os.environ, "PYTHONPATH": str(tessel)},
        capture_output=True,
        text=True,
        check=True,
    )
    steps: dict[str, object] = json.loads(done.stdout)
    return ", ".join(f"{number}: {each}" for number, each in steps.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tessel", type=Path, help="a checkout of Tessel's public code")
    parser.add_argument("--python", help="an interpreter that can import it")
    arguments = parser.parse_args()
    print("| placement | driver | unrolled by Tessel, steps by micro-batches |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shape in CASES:
            file = Path(folder) / f"{shape}.json"
            line = drive(arguments.tessel, shape, file)
            read = "-" if arguments.python is None else unroll(arguments.tessel, arguments.python, file)
            print(f"| {shape} | {line} | {read} |", flush=True)


if __name__ == "__main__":
    main()
