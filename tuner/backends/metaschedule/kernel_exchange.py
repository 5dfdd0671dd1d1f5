"""Tuned kernels as lines of text: out of one machine's MetaSchedule database, into another's.

A machine of a fleet tunes a kernel where it measures; the others, and the tuner, then need what it found. Of
each kernel only the fastest schedule travels, since a database that has one is never tuned for it again. The
lines are TVM's own, two files of them in a folder: kernels, each `["hash", "module"]`, and trials, each
`[number of the kernel, [trace, seconds, target, arguments]]`. Nothing here reads what they contain beyond
that. Checked in tests/tuner/backends/metaschedule/test_kernel_exchange.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

_FAILED_S = 1e9
"""TVM writes 1e10 seconds for a trial that failed."""


class TunedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, and its fastest schedule.

    Attributes:
        kernel: a line of the file of kernels.
        trial: what the file of trials has beside the kernel's number, as JSON.
        seconds: the mean of its latencies.
    """

    kernel: str
    trial: str
    seconds: float

    @property
    def name(self) -> str:
        """The kernel's hash, and the target that it was tuned for."""
        return f"{json.loads(self.kernel)[0]} {json.dumps(json.loads(self.trial)[2], sort_keys=True)}"


def read_kernels(folder: Path) -> dict[str, TunedKernel]:
    """Return the tuned kernels of a database, by name; none where there is no database."""
    kernels = list(_lines(folder / WORKLOAD_FILE))
    found: dict[str, TunedKernel] = {}
    for line in _lines(folder / RECORD_FILE):
        number, trial = json.loads(line)
        seconds = statistics.fmean(map(float, trial[1])) if trial[1] else _FAILED_S
        if seconds >= _FAILED_S or number >= len(kernels):
            continue
        each = TunedKernel(
            kernel=kernels[number], trial=json.dumps(trial, separators=(",", ":")), seconds=seconds
        )
        if each.name not in found or seconds < found[each.name].seconds:
            found[each.name] = each
    return found


def add_kernels(folder: Path, kernels: Iterable[TunedKernel]) -> int:
    """Add kernels to a database that has none of them yet; return how many were added.

    Nobody else may write to the database at the same time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = read_kernels(folder)
    numbers = {json.loads(line)[0]: number for number, line in enumerate(_lines(folder / WORKLOAD_FILE))}
    added = 0
    with (folder / WORKLOAD_FILE).open("a") as named, (folder / RECORD_FILE).open("a") as tried:
        for each in kernels:
            if each.name in known:
                continue
            hashed = json.loads(each.kernel)[0]
            if hashed not in numbers:
                numbers[hashed] = len(numbers)
                named.write(each.kernel + "\n")
            tried.write(f"[{numbers[hashed]},{each.trial}]\n")
            known[each.name] = each
            added += 1
    return added


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip():
                yield line
