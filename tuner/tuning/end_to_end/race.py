"""The race between a model's end-to-end programs: its entrants, and the choice of its winner.

Checked in tests/tuner/tuning/end_to_end/test_finalists.py and, on this machine, in
tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import TunerError
from tuner.measuring.race import INDIFFERENCE, RaceResult
from tuner.plan import Figure, PairedRatio
from tuner.pricing.measured import price_of
from tuner.tuning.end_to_end.cache import Variant, fastest
from tuner.tuning.end_to_end.finalists import find_finalists, simplest
from tuner.tuning.end_to_end.measurement import request_of
from tuner.tuning.session import Session, TuningProgress
from tuner.tuning.strategies.proposed import Proposed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Who won, by fingerprints.

    Attributes:
        winner: the program that was chosen.
        figures: latencies of those that raced, medians over the rounds that each ran.
        ratios: latency of each that raced over the winner's.
        is_tie: whether several were left; the winner is the simplest of those that were as fast.
    """

    winner: str
    figures: dict[str, Figure]
    ratios: dict[str, PairedRatio]
    is_tie: bool

    def of(self, variant: Variant) -> Variant:
        """Return a variant with its latency in the race, or as it was where it did not race."""
        function, figure = variant
        return function, self.figures.get(function.fingerprint, figure)

    def better(self, variants: Sequence[Variant]) -> Variant:
        """Return the fastest of variants by its ratio to the winner, or by its latency where one has none."""
        ratios = [self.ratios.get(function.fingerprint) for function, _ in variants]
        if any(each is None for each in ratios):
            return fastest(*map(self.of, variants))
        order = sorted(range(len(variants)), key=lambda index: [each.ratio for each in ratios if each][index])
        return self.of(variants[order[0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The program that was chosen, and what it was chosen from; see `PartitionedModel`."""

    winner: Variant
    chosen_by: str
    alone: dict[str, Variant]
    ratio_to_mix: dict[str, PairedRatio]
    is_tie: bool


def choose(session: Session, proposed: Proposed) -> Choice:
    """Let the fastest of the programs that were proposed race, and return the winner."""
    ours, alone = proposed.mixes, proposed.alone
    outcome = race_wholes(session, ours, [each for versions in alone.values() for each in versions])
    # Where programs are equal, the search has found it: its answer is the one that is explained.
    found_by = {
        function.fingerprint: (name, (function, figure))
        for name, versions in reversed([*((name, (each,)) for name, each in ours.items()), *alone.items()])
        for function, figure in versions
    }
    chosen_by, winner = found_by[outcome.winner]
    single = {name: outcome.better(versions) for name, versions in alone.items()}
    return Choice(
        winner=outcome.of(winner),
        chosen_by=chosen_by,
        alone=single,
        ratio_to_mix={
            name: outcome.ratios[function.fingerprint]
            for name, (function, _) in single.items()
            if function.fingerprint in outcome.ratios
        },
        is_tie=outcome.is_tie,
    )


def race_wholes(session: Session, ours: Mapping[str, Variant], alone: Sequence[Variant]) -> Outcome:
    """Let the finalists run in turn; where they cannot, those that were measured apart are compared."""
    finalists = find_finalists(ours, alone)
    if session.pricing.mode == "model" or len(finalists) == 1:
        return _fastest_apart(ours, alone)
    session.on_progress(TuningProgress(text=f"{len(finalists)} whole programs run in turn"))
    requests = [request_of(each.function, "mix", session.target) for each in finalists]
    try:
        result, records = session.measurer.race(requests)
    except TunerError as error:
        logger.warning("%s; they are compared by measurements apart, which other load can turn around", error)
        return _fastest_apart(ours, alone)
    winner = simplest([finalists[position] for position in equally_fast(result)])
    fingerprints = [each.function.fingerprint for each in finalists]
    first = fingerprints.index(winner.function.fingerprint)
    figures = {
        fingerprint: price
        for fingerprint, record in zip(fingerprints, records, strict=True)
        if isinstance(price := price_of(record), Figure)
    }
    return Outcome(
        winner=winner.function.fingerprint,
        figures=figures,
        ratios={name: result.ratio(first, other) for other, name in enumerate(fingerprints)},
        is_tie=result.is_tie,
    )


def fastest_first(result: RaceResult) -> list[int]:
    """Return those that are left, by their ratios to the leader."""
    leader, *_ = result.survivors
    return sorted(
        result.survivors, key=lambda each: 1.0 if each == leader else result.ratio(leader, each).ratio
    )


def equally_fast(result: RaceResult) -> list[int]:
    """Return those of `fastest_first` that are no slower than the first by more than is called equal.

    A race that was short or disturbed leaves programs that nobody is known to be ahead of, though one of them
    was 5 % faster in it: the simpler one is not worth that.
    """
    leader, *others = fastest_first(result)
    return [leader, *(each for each in others if result.ratio(leader, each).ratio <= 1 + INDIFFERENCE)]


def _fastest_apart(ours: Mapping[str, Variant], alone: Sequence[Variant]) -> Outcome:
    winner = fastest(*ours.values(), *alone)[0].fingerprint
    return Outcome(winner=winner, figures={}, ratios={}, is_tie=False)
