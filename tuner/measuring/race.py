"""A paired sequential race: the fastest of several programs, and by how much, with confidence intervals.

Programs run in rounds, each once per round, in an order of the round's own, so that whatever else the machine
does affects all of them alike: two programs are compared by the ratio of their latencies round by round. Of
these ratios the median is estimated, with an interval by order statistics, which assumes nothing of how
latencies are distributed: a load that drifts cancels within a round, and a rare disturbance of either program
moves no median. What the model leaves out is that disturbances of neighbouring rounds may be correlated.

After 15, 30, 60, … rounds a program is eliminated if the leader is ahead of it beyond the interval. One that
is far behind is eliminated after five or eight, which are too few for order statistics: their interval is
Student's t of the logarithms of the ratios, which a disturbance only widens, and it has to clear `FAR`. The
race ends, after fifteen rounds at least, when one is left, when the leader is known to within `INDIFFERENCE`
of all that are left, or when rounds or time are spent; what is left then is tied, and the simplest of it
wins. All intervals of a race hold together with probability `CONFIDENCE`: the chance of error is divided
among all pairs and all looks (Bonferroni; early looks have `EARLY_ERROR` of their own), so that neither
stopping early nor choosing the leader from the data biases them. A function of the samples alone. Checked in
tests/tuner/measuring/test_race.py.

Source: sequential elimination in the manner of Maron and Moore, "Hoeffding Races" (NIPS 1993), here with
intervals of the median by order statistics (Conover, "Practical Nonparametric Statistics", 3.2).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from scipy import stats

from tuner.plan import PairedRatio

CONFIDENCE = 0.95
"""Probability with which all intervals of a race hold together."""

FEWEST_ROUNDS = 15
"""The fewest whose extremes are an interval for the median among a dozen programs, and which the winner's own
latency comes from; a race that has no time left ends no earlier."""

LOOKS = (FEWEST_ROUNDS, 30, 60, 120, 240)
"""Rounds after which programs may be eliminated; each look after the first halves the variance."""

EARLY_LOOKS = (5, 8)
"""Rounds after which one that is far behind may be eliminated."""

EARLY_ERROR = 0.01
"""Probability with which any interval of an early look may miss, were the ratios' logarithms normal."""

FAR = 1.25
"""Ratio to the leader beyond which a program may be eliminated before `FEWEST_ROUNDS`."""

INDIFFERENCE = 0.01
"""Share by which two programs may differ and be called equal: other layouts of the same code in memory differ
by so much."""

Samples: TypeAlias = Sequence[Sequence[float]]
"""Latencies by program and round; a program's end with the round after which it was eliminated."""


class Source(Protocol):
    """Where samples come from: programs that run, or records of a race that was run."""

    def run(self, programs: Sequence[int], num_rounds: int) -> Sequence[Sequence[float]]:
        """Return the next samples of the given programs; fewer rounds than asked, or none, end the race."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """How a race ended.

    Attributes:
        samples: latencies in microseconds, by program and round.
        survivors: the programs that nobody is ahead of beyond the interval, the leader first.
    """

    samples: tuple[tuple[float, ...], ...]
    survivors: tuple[int, ...]

    @property
    def num_rounds(self) -> int:
        """Rounds that the survivors ran."""
        return len(self.samples[self.survivors[0]])

    @property
    def is_tie(self) -> bool:
        """Whether nobody is ahead of all others."""
        return len(self.survivors) > 1

    def ratio(self, program: int, other: int) -> PairedRatio:
        """Return the latency of another program over that of the program, over the rounds that both ran."""
        first, second = self.samples[program], self.samples[other]
        error = _error_share(len(self.samples), min(len(first), len(second)))
        return paired_ratio(first, second, error=error)


def race(source: Source, *, num_programs: int) -> RaceResult:
    """Run programs in turn until one is ahead, all that are left are equal, or the source ends.

    Args:
        source: runs the programs, which have numbers from 0.

    Raises:
        ValueError: there is no program, or the source gives no first round.
    """
    if num_programs < 1:
        raise ValueError("a race has no programs; give one or more")
    samples: list[list[float]] = [[] for _ in range(num_programs)]
    survivors = tuple(range(num_programs))
    for look in (*EARLY_LOOKS, *LOOKS):
        wanted = look - len(samples[survivors[0]])
        found = source.run(survivors, wanted)
        for program, latencies in zip(survivors, found, strict=True):
            samples[program].extend(latencies)
        if not samples[survivors[0]]:
            raise ValueError("a race ended before its first round; run every program once")
        survivors = _survivors(samples, survivors)
        if len(found[0]) < wanted:
            break
        if look >= FEWEST_ROUNDS and (len(survivors) == 1 or _are_equal(samples, survivors)):
            break
    return RaceResult(samples=tuple(map(tuple, samples)), survivors=survivors)


def paired_ratio(first: Sequence[float], second: Sequence[float], *, error: float) -> PairedRatio:
    """Return the median of the second's samples over the first's, round by round, with its interval.

    Args:
        first: positive samples, one per round.
        second: the same of another program; rounds that only one of them ran are left out.
        error: probability with which the interval may miss the median. Before `FEWEST_ROUNDS` that holds
            where logarithms of the ratios are normally distributed.

    Raises:
        ValueError: there is no round that both ran.
    """
    num_rounds = min(len(first), len(second))
    if not num_rounds:
        raise ValueError("two programs ran in no common round; run each once")
    logarithms = np.sort(np.log(second[:num_rounds]) - np.log(first[:num_rounds]))
    low, high = -math.inf, math.inf
    rank = _interval_rank(num_rounds, error)
    if rank:
        low, high = logarithms[rank - 1], logarithms[-rank]
    elif EARLY_LOOKS[0] <= num_rounds < FEWEST_ROUNDS:
        half = stats.t.isf(error / 2, num_rounds - 1) * stats.sem(logarithms)
        low, high = logarithms.mean() - half, logarithms.mean() + half
    return PairedRatio(
        ratio=float(np.exp(np.median(logarithms))),
        low=float(np.exp(low)),
        high=None if math.isinf(high) else float(np.exp(high)),
        num_rounds=num_rounds,
    )


@functools.cache
def _interval_rank(num_samples: int, error: float) -> int:
    """Return which of the samples, from either end, bounds the median's interval; 0 if there are too few.

    As many samples lie below the median as tosses of a coin fall heads.
    """
    return int(stats.binom.ppf(error / 2, num_samples, 0.5))


def _error_share(num_programs: int, num_rounds: int) -> float:
    """Return the probability of error that one pair has at the look after so many rounds."""
    pairs = max(1, num_programs * (num_programs - 1) // 2)
    if num_rounds < FEWEST_ROUNDS:
        return EARLY_ERROR / (pairs * len(EARLY_LOOKS))
    return (1 - CONFIDENCE) / (pairs * len(LOOKS))


def _survivors(samples: Samples, programs: Sequence[int]) -> tuple[int, ...]:
    """Return the programs that the leader is not ahead of beyond the interval, by their estimates."""
    latencies = np.log([samples[program] for program in programs])
    estimates = np.median(latencies - latencies.mean(axis=0), axis=1)
    order = [programs[position] for position in np.argsort(estimates, kind="stable")]
    leader = order[0]
    share = _error_share(len(samples), len(samples[leader]))
    limit = 1.0 if len(samples[leader]) >= FEWEST_ROUNDS else FAR
    behind = [
        program
        for program in order[1:]
        if paired_ratio(samples[leader], samples[program], error=share).low > limit
    ]
    return tuple(program for program in order if program not in behind)


def _are_equal(samples: Samples, survivors: Sequence[int]) -> bool:
    """Say whether the leader and all others are known to differ by no more than `INDIFFERENCE`."""
    leader = survivors[0]
    share = _error_share(len(samples), len(samples[leader]))
    limit = 1 + INDIFFERENCE
    for program in survivors[1:]:
        found = paired_ratio(samples[leader], samples[program], error=share)
        if found.high is None or found.high > limit or found.low < 1 / limit:
            return False
    return True
