"""How long the first search takes in a fresh process, with the compiled code of earlier processes kept.

    python -m benchmarks.schedule_search.first_call --repeats 5

Each call is a process of its own: it imports the search, builds a placement, and searches once. The first
process of each case is not counted: it compiles what the machine has not compiled before. Wall-clock seconds
hold everything from the start of the process to its end; processor seconds are those of the process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    "repetend of vshape, 4 devices": "find_repetend(shape('vshape', 4), memory=4)",
    "repetend of nnshape, 4 devices": "find_repetend(shape('nnshape', 4), memory=6)",
    "repetend of nnshape, 64 devices": "find_repetend(shape('nnshape', 64), memory=64, max_copies=1)",
    "repetend of xshape, 16 devices": "find_repetend(shape('xshape', 16), memory=16, max_copies=1)",
    "1f1b is best: vshape, 4 devices, M=64": "find_schedule(shape('vshape', 4), micro_batches=64, memory=4)",
    "listing: kshape, 4 devices, M=64": "find_schedule(shape('kshape', 4), micro_batches=64, memory=6)",
    "neighbourhood: zbv, 3 devices, M=6": (
        "find_schedule(shape('zbv', 3, split_backward=True, lag=1), micro_batches=6, time_limit_s=1)"
    ),
}
"""The searches; all but the last end with a proof, the last one after its second."""


def seconds_of(call: str) -> tuple[float, float]:
    """Return the wall-clock and processor seconds of a process that makes one call."""
    imports = "from tessel.search import *; from tessel.shapes import make_shape as shape"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", f"{imports}; {call}"], check=True)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| first call | wall s (min-max) | processor s (min-max) |")
    print("|---|---|---|")
    for name, call in CASES.items():
        seconds_of(call)
        walls, processors = zip(*(seconds_of(call) for _ in range(arguments.repeats)), strict=True)
        columns = (
            f"{statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f})"
            for times in (walls, processors)
        )
        print(f"| {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
