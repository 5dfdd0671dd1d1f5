"""Is a schedule the same whatever else the machine does? Fresh processes, alone and beside busy loops.

    python -m benchmarks.schedule_search.determinism --runs 100 --loads 0 20

Each run is a new `tessel schedule … --save FILE` with the default budget of work. Compared are all bytes of
the file except `search_seconds`, which is a measurement of time. A load is a number of processes that do
nothing but count; with `--at-once`, so many runs are under way together and load each other. With
`--time-limit` the same is done with a limit on time, to see how much the answers vary.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CASES = {
    "nn": ("nnshape", "--devices", "4", "--micro-batches", "8", "--memory", "6"),
    "zbv": (
        "zbv",
        "--devices",
        "4",
        "--micro-batches",
        "8",
        "--split-backward",
        "--lag",
        "1",
        "--memory",
        "4",
    ),
}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let so many processes count while the body runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(arguments: tuple[str, ...]) -> tuple[str, str]:
    """Return a digest of the document that a fresh process writes, and what one reads of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.json"
        command = [sys.executable, "-m", "scripts", "--quiet", "schedule", *arguments, "--save", str(path)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        document = re.sub(rb'"search_seconds":[^,}]*', b'"search_seconds":0', path.read_bytes())
    stopped_by = re.search(r"stopped by +(\w+)", printed)
    makespan = re.search(rb'"makespan":(\d+)', document)
    assert stopped_by is not None
    assert makespan is not None
    return hashlib.sha256(document).hexdigest(), f"{makespan[1].decode()} ({stopped_by[1]})"


def main() -> int:
    """Print the table; return 1 where documents of one case differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="processes of each case under each load")
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 20], help="busy loops beside them")
    parser.add_argument("--at-once", type=int, default=1, help="runs under way together")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--work", help="work of each search; the default of the command if left out")
    parser.add_argument("--time-limit", help="a limit on time in place of work, such as 1s")
    options = parser.parse_args()
    more = [part for name in ("work", "time_limit") for part in _option(name, getattr(options, name))]
    print("| case | busy loops | runs | different documents | answers | s a run |")
    print("|---|---|---|---|---|---|")
    is_same = True
    for case in options.cases:
        known: set[str] = set()
        for load in options.loads:
            began = time.monotonic()
            with busy(load), ThreadPoolExecutor(options.at_once) as pool:
                found = list(pool.map(run, [(*CASES[case], *more)] * options.runs))
            seconds = (time.monotonic() - began) / options.runs
            known |= {digest for digest, _ in found}
            answers = collections.Counter(answer for _, answer in found)
            text = ", ".join(f"{count} x {answer}" for answer, count in answers.most_common())
            print(f"| {case} | {load} | {options.runs} | {len(known)} | {text} | {seconds:.1f} |", flush=True)
        is_same = is_same and len(known) == 1
    return 0 if is_same else 1


def _option(name: str, value: str | None) -> tuple[str, ...]:
    return () if value is None else (f"--{name.replace('_', '-')}", value)


if __name__ == "__main__":
    sys.exit(main())
