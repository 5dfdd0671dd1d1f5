"""The race finds the truly fastest or says that it cannot, whatever else the machine does meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tuner.measuring.race import (
    CONFIDENCE,
    EARLY_ERROR,
    EARLY_LOOKS,
    FEWEST_ROUNDS,
    LOOKS,
    RaceResult,
    paired_ratio,
    race,
)

Disturb = Callable[[np.random.Generator, int, int], np.ndarray]
"""Factors of at least about 1 by which load slows programs down, by program and by round."""


def quiet(rng: np.random.Generator, programs: int, rounds: int) -> np.ndarray:
    return np.exp(rng.normal(0.0, 0.01, (programs, rounds)))


def drifting_load(rng: np.random.Generator, programs: int, rounds: int) -> np.ndarray:
    """Another process comes and goes: all programs are up to three times as slow for a while."""
    moments = np.linspace(0.0, rng.uniform(1.0, 12.0), rounds) + rng.uniform(0.0, 6.0)
    return (2.0 + np.sin(moments)) * quiet(rng, programs, rounds)


def heavy_tails(rng: np.random.Generator, programs: int, rounds: int) -> np.ndarray:
    """Each sample has a tail without a variance."""
    return 1.0 + 0.02 * rng.pareto(1.2, (programs, rounds))


def one_sided(rng: np.random.Generator, programs: int, rounds: int) -> np.ndarray:
    """Some samples, of one program more than of another, lose the processor in their midst."""
    shares = rng.uniform(0.0, 0.3, (programs, 1))
    hit = rng.random((programs, rounds)) < shares
    return quiet(rng, programs, rounds) * np.where(hit, rng.uniform(1.2, 6.0, (programs, rounds)), 1.0)


LOADS: dict[str, Disturb] = {
    "quiet": quiet,
    "drifting": drifting_load,
    "heavy tails": heavy_tails,
    "one-sided": one_sided,
}


@dataclass
class Programs:
    """Programs of known latencies under a load."""

    samples: np.ndarray
    next_round: int = 0
    asked: list[tuple[tuple[int, ...], int]] = field(default_factory=list)

    def run(self, programs: Sequence[int], num_rounds: int) -> list[list[float]]:
        self.asked.append((tuple(programs), num_rounds))
        begin, self.next_round = self.next_round, self.next_round + num_rounds
        return [list(self.samples[program, begin : self.next_round]) for program in programs]


def draw(disturb: Disturb, seed: int, *, rounds: int = LOOKS[-1]) -> tuple[np.ndarray, np.ndarray]:
    """Return true latencies of some programs, two of them close, and their samples."""
    rng = np.random.default_rng(seed)
    latencies_us = 1000.0 * np.sort(rng.uniform(1.0, 2.0, rng.integers(2, 7)))
    latencies_us[1] = latencies_us[0] * rng.choice([1.0, 1.005, 1.02, 1.05, 1.15])
    latencies_us = rng.permutation(latencies_us)
    return latencies_us, latencies_us[:, None] * disturb(rng, len(latencies_us), rounds)


@pytest.mark.parametrize("load", LOADS)
def test_the_fastest_wins_or_is_among_those_tied(load: str) -> None:
    settled = 0
    for seed in range(80):
        latencies_us, samples = draw(LOADS[load], seed)
        result = race(Programs(samples), num_programs=len(latencies_us))
        assert latencies_us[list(result.survivors)].min() == latencies_us.min(), f"seed {seed}"
        # Nobody who is far behind is tied, and most races have a winner or end early.
        assert (latencies_us[list(result.survivors)] <= 1.1 * latencies_us.min()).all(), f"seed {seed}"
        settled += not result.is_tie or result.num_rounds < LOOKS[-1]
    assert settled > 48


def test_the_least_median_of_measurements_apart_follows_luck() -> None:
    """What the race replaced: three short measurements of each, seconds apart, and the least median."""
    wrong = 0
    for seed in range(80):
        latencies_us, samples = draw(drifting_load, seed, rounds=21 * 6 * 3)
        medians = []
        for program in range(len(latencies_us)):
            starts = [(repetition * 6 + program) * 21 for repetition in range(3)]
            medians.append(
                statistics.median(np.median(samples[program, begin : begin + 21]) for begin in starts)
            )
        wrong += latencies_us[int(np.argmin(medians))] > 1.06 * latencies_us.min()
    assert wrong >= 8


@pytest.mark.parametrize(
    ("rounds", "error"),
    [
        ((30, 30), (1 - CONFIDENCE) / len(LOOKS)),
        ((30, 8), EARLY_ERROR / len(EARLY_LOOKS)),
        ((8, 30, 30), EARLY_ERROR / (3 * len(EARLY_LOOKS))),
        ((30, 30, 30, 30), (1 - CONFIDENCE) / (6 * len(LOOKS))),
    ],
)
def test_all_pairs_and_looks_share_the_error(rounds: tuple[int, ...], error: float) -> None:
    rng = np.random.default_rng(0)
    samples = tuple(tuple(rng.uniform(1.0, 1.2, number)) for number in rounds)
    expected = paired_ratio(samples[0], samples[1], error=error)
    assert RaceResult(samples=samples, survivors=(0,)).ratio(0, 1) == expected


def test_intervals_hold_the_true_ratio() -> None:
    missed = 0
    for seed in range(80):
        latencies_us, samples = draw(list(LOADS.values())[seed % 4], seed)
        result = race(Programs(samples), num_programs=len(latencies_us))
        winner = result.survivors[0]
        for other, latency_us in enumerate(latencies_us):
            found, true = result.ratio(winner, other), latency_us / latencies_us[winner]
            # A program that is disturbed more often than the other has a median of ratios of its own.
            slack = 1.05 if seed % 4 == 3 else 1.0
            missed += not found.low / slack <= true <= (found.high or np.inf) * slack
    assert missed <= 4


def test_one_far_behind_runs_no_further_than_the_first_look() -> None:
    samples = np.array([[10.0], [50.0], [10.001]]) * quiet(np.random.default_rng(0), 3, LOOKS[-1])
    programs = Programs(samples)
    result = race(programs, num_programs=3)
    assert programs.asked[0] == ((0, 1, 2), EARLY_LOOKS[0])
    assert all(set(asked) == {0, 2} for asked, _ in programs.asked[1:])
    assert len(result.samples[1]) == EARLY_LOOKS[0]
    assert result.is_tie
    assert set(result.survivors) == {0, 2}
    assert result.num_rounds < LOOKS[-1], "equal programs are known to be equal long before the last round"


def test_the_leader_is_found_by_rounds() -> None:
    """The second is slower in two rounds of three, and the first in the one of a load between the others."""
    load = np.tile([1.0, 100.0, 10_000.0], 5)
    first, second = load * np.tile([1.0, 1.3, 1.0], 5), load * 1.1
    result = race(Programs(np.tile([first, second], (1, 7))), num_programs=2)
    assert result.survivors[0] == 0


def test_one_program_left_still_runs_the_fewest_rounds_and_is_no_tie() -> None:
    samples = np.array([[10.0], [50.0]]) * quiet(np.random.default_rng(0), 2, LOOKS[-1])
    result = race(Programs(samples), num_programs=2)
    assert result.survivors == (0,)
    assert not result.is_tie
    assert (result.num_rounds, len(result.samples[1])) == (FEWEST_ROUNDS, EARLY_LOOKS[0])


@pytest.mark.parametrize(("rounds", "quantile"), [(5, 8.6103), (8, 5.4079)])
def test_the_interval_of_few_rounds_is_students(rounds: int, quantile: float) -> None:
    ratios = np.log(np.linspace(1.0, 2.0, rounds))
    found = paired_ratio([1.0] * rounds, np.exp(ratios), error=0.001)
    half = quantile * ratios.std(ddof=1) / rounds**0.5
    assert np.log([found.low, found.high]) == pytest.approx(
        ratios.mean() + half * np.array([-1, 1]), rel=1e-3
    )


def test_the_chance_of_error_is_divided_among_pairs_and_looks() -> None:
    samples = tuple(tuple(each) for each in quiet(np.random.default_rng(1), 4, 240))
    for rounds, share in ((5, 0.01 / (6 * 2)), (8, 0.01 / (6 * 2)), (240, 0.05 / (6 * 5))):
        cut = RaceResult(samples=tuple(each[:rounds] for each in samples), survivors=(0,))
        expected = paired_ratio(cut.samples[1], cut.samples[2], error=share)
        assert cut.ratio(1, 2) == expected


def test_one_that_is_behind_but_not_far_runs_until_order_statistics_tell() -> None:
    samples = np.array([[10.0], [12.0]]) * quiet(np.random.default_rng(0), 2, LOOKS[-1])
    assert paired_ratio(samples[0][:5], samples[1][:5], error=0.01).low > 1.1
    assert len(race(Programs(samples), num_programs=2).samples[1]) == FEWEST_ROUNDS


def test_a_disturbed_program_is_not_taken_for_one_far_behind() -> None:
    """Of the first rounds of the faster program one, two or three lose the processor in their midst."""
    for hit in range(1, 4):
        samples = np.array([[10.0], [13.0]]) * quiet(np.random.default_rng(hit), 2, LOOKS[-1])
        samples[0, :hit] *= 4.0
        assert race(Programs(samples), num_programs=2).survivors == (0,)


def test_the_interval_of_five_rounds_holds_the_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(1000):
        first, second = np.exp(rng.normal(0.0, 0.1, (2, 5)))
        found = paired_ratio(first, second, error=0.05)
        missed += not found.low <= 1.0 <= (found.high or np.inf)
    assert 30 < missed < 70


def test_what_was_run_gives_the_same_result_again() -> None:
    latencies_us, samples = draw(one_sided, 3)
    result = race(Programs(samples), num_programs=len(latencies_us))

    class Recorded(Programs):
        def run(self, programs: Sequence[int], num_rounds: int) -> list[list[float]]:
            begin, self.next_round = self.next_round, self.next_round + num_rounds
            return [list(result.samples[program][begin : self.next_round]) for program in programs]

    assert race(Recorded(samples), num_programs=len(latencies_us)) == result


def test_one_program_wins_alone_and_equal_ones_are_tied_to_the_end() -> None:
    _, samples = draw(quiet, 0)
    assert race(Programs(samples), num_programs=1).survivors == (0,)
    assert race(Programs(np.stack([samples[0]] * 3)), num_programs=3).survivors == (0, 1, 2)


def test_a_race_that_is_cut_short_is_a_tie() -> None:
    latencies_us, samples = draw(quiet, 1, rounds=3)
    result = race(Programs(samples), num_programs=len(latencies_us))
    assert len(result.survivors) == len(latencies_us)
    assert result.ratio(0, 1).low == 0.0
    assert result.ratio(0, 1).high is None
    with pytest.raises(ValueError, match="first round"):
        race(Programs(np.zeros((2, 0))), num_programs=2)
    with pytest.raises(ValueError, match="no programs"):
        race(Programs(samples), num_programs=0)


def test_a_ratio_is_paired_by_rounds() -> None:
    """Both programs get slower and slower; only within a round is the second always twice as slow."""
    first = [float(2**number) for number in range(15)]
    found = paired_ratio(first, [2.0 * latency for latency in first], error=0.001)
    assert (found.ratio, found.low, found.high, found.num_rounds) == pytest.approx((2.0, 2.0, 2.0, 15))
    with pytest.raises(ValueError, match="no common round"):
        paired_ratio(first, [], error=0.001)
