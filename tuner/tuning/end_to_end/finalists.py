"""Finalists: the programs measured apart that race in turn, and who wins a tie.

Two measurements of one program differ, the more the further they are apart, so the finalists race
(`tuner.measuring.race`). Checked in tests/tuner/tuning/end_to_end/test_finalists.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.partition.candidate import FREE
from tuner.plan import Figure
from tuner.tuning.end_to_end.cache import Variant
from tuner.tuning.partitioned_function import PartitionedFunction

_CLOSE = 1.25
"""Ratio of undisturbed samples to the fastest whole up to which mixes race; measurements that are minutes
apart differ by about so much on a machine that does other things too."""

_MAX_MIXES = 4
"""Mixes that race: each takes memory for its own copy of the weights."""

_HOPELESS = 2.0
"""The same ratio beyond which not even a single backend races: a neighbour on the other hyper-thread and a
full memory bus slow a program to about half its speed, so that such a one would still be behind alone. Even a
few of its rounds take as long as many of all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A program that races.

    Attributes:
        function: the partitioned function.
        figure: its latency, measured apart from the others.
        is_single: whether it is a single backend's answer, whoever else found it.
    """

    function: PartitionedFunction
    figure: Figure
    is_single: bool

    @property
    def num_backends(self) -> int:
        """Backends that run some of it."""
        return len({part.backend for part in self.function.partition.chosen} - {FREE})


def find_finalists(ours: Mapping[str, Variant], alone: Sequence[Variant]) -> tuple[Finalist, ...]:
    """Return the distinct programs that are to race: every single backend, and the fastest of the mixes.

    Comparisons of separately measured programs are noisy: background load affects them unequally.
    It only ever makes them slower, so a program is judged by its faster samples here.

    Args:
        ours: what the search, coarser partitions and the graph-level search found, by name; the
            search's first.
        alone: the single backends' programs.
    """
    variants = [*ours.values(), *alone]
    best_us = min(figure.latency_us for _, figure in variants)
    singles = {function.fingerprint for function, _ in alone}
    finalists = {
        function.fingerprint: Finalist(function=function, figure=figure, is_single=True)
        for function, figure in alone
        if _undisturbed_us(figure) <= _HOPELESS * best_us
    }
    mixes: dict[str, Finalist] = {}
    for function, figure in sorted(ours.values(), key=lambda each: _undisturbed_us(each[1])):
        if function.fingerprint not in singles and _undisturbed_us(figure) <= _CLOSE * best_us:
            mixes.setdefault(
                function.fingerprint, Finalist(function=function, figure=figure, is_single=False)
            )
    return (*list(mixes.values())[:_MAX_MIXES], *finalists.values())


def simplest(finalists: Sequence[Finalist]) -> Finalist:
    """Return who wins a tie: a single backend before a mix, then fewest backends, then the fastest.

    Args:
        finalists: those that are tied, fastest first.
    """
    return min(finalists, key=lambda each: (not each.is_single, each.num_backends))


def _undisturbed_us(figure: Figure) -> float:
    """Return the first quartile of a measured latency's samples."""
    return figure.latency_us if figure.interval_us is None else figure.interval_us[0]
