"""Sampling of a latency: how many executions it needs, how well they tell the median, and when to stop.

Nothing here runs a program; whoever samples passes what executes it. Checked in
tests/tuner/measuring/test_worker.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tuner.measuring.messages import Timing

_MARGIN_PER_RANGE = 1.96 * math.sqrt(math.pi / 2) / 1.349
"""Half the 95 % interval of a median of n normal samples, times the root of n, over their inter-quartile
range: 1.349 deviations, where the deviation of a median is the root of pi / 2n."""


class Sample(NamedTuple):
    """Mean latency of some executions in a row, and whether another program took the processor meanwhile.

    If one did, and one thread does all the work, the latency is this process's CPU time: on a busy processor,
    a program longer than a scheduler's time slice is always pre-empted.
    """

    latency_us: float
    is_disturbed: bool


def take_samples(run: Callable[[int], Sample], timing: Timing) -> tuple[float, ...]:
    """Return samples in microseconds, until the median is known well enough or the budget ends.

    Samples during which the program lost the processor are left out where enough others are left.

    Args:
        run: executes the program a given number of times and returns the sample.
        timing: when to stop.
    """
    first = run(1)
    number = num_executions(first, timing.sample_s)
    if number > 1:
        run(number)
    samples = [first] if number == 1 else []
    spent_s = sum(sample.latency_us for sample in samples) * 1e-6
    wanted = timing.min_long_samples if first.latency_us >= timing.long_s * 1e6 else timing.min_samples
    while len(samples) < timing.max_samples and not _is_enough(samples, spent_s, timing, wanted):
        sample = run(number)
        samples.append(sample)
        spent_s += sample.latency_us * number * 1e-6
    quiet = _quiet(samples)
    return quiet if len(quiet) >= wanted else tuple(sample.latency_us for sample in samples)


def num_executions(first: Sample, sample_s: float) -> int:
    """Return how often a program is executed in a sample of so many seconds, by its first execution."""
    return max(1, min(1000, int(sample_s * 1e6 / max(first.latency_us, 0.1))))


def _is_enough(samples: Sequence[Sample], spent_s: float, timing: Timing, wanted: int) -> bool:
    """Whether more samples than those that are wanted at least would add little, or take too long."""
    quiet = _quiet(samples)
    if len(quiet) >= wanted:
        return spent_s >= timing.budget_s or _margin(quiet) <= timing.margin
    patience = 3 if len(samples) >= wanted else timing.min_samples
    return spent_s >= timing.budget_s * patience


def _quiet(samples: Sequence[Sample]) -> tuple[float, ...]:
    return tuple(sample.latency_us for sample in samples if not sample.is_disturbed)


def _margin(samples: Sequence[float]) -> float:
    """Return the relative margin of error of the samples' median, were they independent and nearly normal.

    The deviation is estimated from the quartiles, so that outliers do not count (McGill, Tukey and Larsen,
    "Variations of Box Plots", The American Statistician 32, 1978).
    """
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return _MARGIN_PER_RANGE * (third - first) / math.sqrt(len(samples)) / median
