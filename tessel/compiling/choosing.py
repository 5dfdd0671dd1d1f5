"""The choice between calls of a whole file, on more or fewer threads, and a mix, by calls of all in turn.

What is taken instead of the first has to be surely ahead: a tie goes to the file on all threads, which is
what a user would run without a mix. Another load does not cancel out of a ratio where calls have several
threads, whose libraries wait for each other in different ways: a mix of 1.6 times the file's time has looked
like 0.6 of it. So rounds are left out in which threads waited for a processor, as Linux tells of each; where
none is left, nothing is sure. Calls of one thread are compared in processor time, in which a load takes no
part. Checked in tests/tessel/compiling/test_choosing.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tessel.compiling.racing import Run, TimedRun
from tuner.measuring.race import FEWEST_ROUNDS, race

_PATIENCE_S = 2.0
"""Seconds of processor time after which a race has no more rounds than `FEWEST_ROUNDS`."""

_PATIENCE_WITH_OTHERS_S = 20.0
"""The same until so many rounds were undisturbed."""

_WAITED = 0.05
"""Share of a sample's time that threads may have waited: a wake-up takes some 10 us."""

_THREADS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Sample:
    """What a call took, and the share of that time that threads of the process waited for a processor."""

    latency_us: float
    waited: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who is called from now on.

    Attributes:
        best: its position among the programs.
        latency_us: of its calls, the median.
        ratios: its latency over each program's, medians of rounds; None if no round was undisturbed.
    """

    best: int
    latency_us: float
    ratios: tuple[float, ...] | None


class UndisturbedRounds:
    """Rounds of a race in which nobody waited, in an order of each round's own.

    Args:
        samplers: take a sample of a program, by number.
        clock: gives seconds.
        rng: draws the orders.
    """

    def __init__(
        self,
        samplers: Sequence[Callable[[], Sample]],
        *,
        clock: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:
        self._samplers, self._clock, self._rng = samplers, clock, rng
        self._began_s, self._num_undisturbed = clock(), 0
        self.taken: list[list[float]] = [[] for _ in samplers]

    def run(self, programs: Sequence[int], num_rounds: int) -> list[list[float]]:
        """Return the next samples of programs, fewer than asked where patience ends."""
        kept: list[list[float]] = [[] for _ in programs]
        while len(kept[0]) < num_rounds and self._has_time():
            found = {int(at): self._samplers[at]() for at in self._rng.permutation(programs)}
            for at, sample in found.items():
                self.taken[at].append(sample.latency_us)
            if all(sample.waited <= _WAITED for sample in found.values()):
                self._num_undisturbed += 1
                for program, latencies in zip(programs, kept, strict=True):
                    latencies.append(found[program].latency_us)
        return kept

    def _has_time(self) -> bool:
        patience_s = _PATIENCE_S if self._num_undisturbed >= FEWEST_ROUNDS else _PATIENCE_WITH_OTHERS_S
        return max(map(len, self.taken)) < FEWEST_ROUNDS or self._clock() < self._began_s + patience_s


def choose(
    samplers: Sequence[Callable[[], Sample]], *, clock: Callable[[], float], rng: np.random.Generator
) -> Choice:
    """Return the first program that no other is ahead of beyond the interval of their ratio."""
    rounds = UndisturbedRounds(samplers, clock=clock, rng=rng)
    try:
        found = race(rounds, num_programs=len(samplers))
    except ValueError:  # no round was undisturbed
        return Choice(best=0, latency_us=statistics.median(rounds.taken[0]), ratios=None)
    best = min(found.survivors)
    return Choice(
        best=best,
        latency_us=statistics.median(found.samples[best]),
        ratios=tuple(found.ratio(other, best).ratio for other in range(len(samplers))),
    )


def sampler(run: Run, num_threads: int) -> Callable[[], Sample]:
    """Return what takes a sample of calls with so many threads."""
    clock = time.process_time if num_threads == 1 else time.perf_counter
    timed = TimedRun(run, clock, num_threads)

    def sample() -> Sample:
        timed.warm_up()
        if num_threads == 1:
            return Sample(timed.sample_us(), 0.0)
        waited_s, began_s = waited_for_processor_s(), clock()
        latency_us = timed.sample_us()
        took_s = clock() - began_s
        return Sample(latency_us, (waited_for_processor_s() - waited_s) / took_s)

    return sample


def waited_for_processor_s() -> float:
    """Return how long threads of this process have been ready and not running; 0 where no system tells."""
    waited_ns = 0
    for thread in _THREADS.glob("*/schedstat"):
        try:
            waited_ns += int(thread.read_text().split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return waited_ns / 1e9
