"""Seconds that commands take from their start: help, an export, a picture; and the first answer of a search.

    python -m benchmarks.start_up --repeats 5             some seconds
    python -m benchmarks.start_up --first-search          and a plan with nothing compiled, minutes

Each call is a process of its own. Byte code is kept in a folder of the benchmark's, and the first call of
each is not counted, as it writes that. The first search has an empty folder for machine code: counted are
the seconds to the first answer on stderr, and to the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tessel
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B

TABLE = Path(__file__).parent.parent / "examples" / "profiles" / "eight_layers.csv"

COMMANDS = {
    "--help": (0.3, "--help"),
    "export of a plan": (1.0, "export {folder}/plan.json --to torch --out {folder}/orders.csv"),
    "draw of 200 blocks, SVG": (1.5, "draw {folder}/schedule.json --out {folder}/schedule.svg"),
    "draw of 200 blocks, page": (1.5, "draw {folder}/schedule.json --out {folder}/schedule.html"),
}
"""Each with the seconds that it may take on an idle machine."""

FIRST_SEARCH = f"plan {TABLE} --devices 4 --memory 16GiB --global-batch 16 --work 2"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--first-search", action="store_true", help="also a plan with nothing compiled")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # compiled into in the background
        _write_documents(Path(folder))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/bytes"
        print("| command | may take | wall s, median (min-max) | processor s, median (min-max) |")
        print("|---|--:|--:|--:|")
        for name, (limit_s, command) in COMMANDS.items():
            words = command.format(folder=folder).split()
            found = [_seconds_of(words, environment) for _ in range(given.repeats + 1)][1:]
            walls, processors = zip(*found, strict=True)
            print(f"| {name} | {limit_s} | {_spread(walls)} | {_spread(processors)} |", flush=True)
        if given.first_search:
            first_s, end_s = _first_search({**environment, "NUMBA_CACHE_DIR": f"{folder}/machine-code"})
            print(f"first search: an answer after {first_s:.1f} s, its end after {end_s:.0f} s")


def _write_documents(folder: Path) -> None:
    schedule = ONE_F_ONE_B.build(tessel.shapes.vshape(4), micro_batches=25)
    assert len(schedule.starts) == 200
    tessel.save(schedule, folder / "schedule.json")
    tessel.plan(TABLE, devices=4, global_batch=16, work=0.1, progress=False).save(folder / "plan.json")


def _seconds_of(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tessel", *words], check=True, capture_output=True, env=environment)
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _first_search(environment: dict[str, str]) -> tuple[float, float]:
    began = time.monotonic()
    words = [sys.executable, "-m", "tessel", *FIRST_SEARCH.split()]
    first_s = None
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if first_s is None and line.startswith("best so far"):
                first_s = time.monotonic() - began
    end_s = time.monotonic() - began
    return end_s if first_s is None else first_s, end_s


def _spread(seconds: tuple[float, ...]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


if __name__ == "__main__":
    main()
