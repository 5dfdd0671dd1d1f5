"""Medians of executions in turn: warmed up, caches flushed before each, the device's state beside them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_report.device import Device, Run

WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A program that uses up what it runs on, so that each execution needs it made anew.

    Attributes:
        prepare: makes it; its time is not counted.
        run: takes what was made.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]

    def ready(self) -> Run:
        """Make what one execution takes, and return that execution."""
        made = self.prepare()
        return lambda: self.run(made)


def time_in_turn(
    device: Device, programs: Mapping[str, Run | Prepared], *, rounds: int, seconds: float
) -> dict[str, Any]:
    """Return each program's median and quartiles in microseconds, and the device's state before and after.

    Args:
        device: what they run on.
        programs: by label.
        rounds: executions of each at most.
        seconds: after so long no round begins; three are made anyway.
    """
    for run in programs.values():
        for _ in range(WARM_UP):
            _ready(run)()
    device.synchronize()
    before = device.state()
    samples: dict[str, list[float]] = {label: [] for label in programs}
    order = list(programs.items())
    rng = random.Random(0)
    started = time.monotonic()
    for number in range(rounds):
        if number >= 3 and time.monotonic() - started > seconds:
            break
        rng.shuffle(order)
        for label, run in order:
            ready = _ready(run)
            device.flush()
            samples[label].append(device.time_us(ready))
    return {
        "latency_us": {label: summary(values) for label, values in samples.items()},
        "state": {"before": before, "after": device.state()},
    }


def _ready(program: Run | Prepared) -> Run:
    return program.ready() if isinstance(program, Prepared) else program


def summary(values: list[float]) -> dict[str, float]:
    """Return the median and quartiles of at least two samples, and how many there are."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "samples": float(len(values))}
