"""Variants of a partition, each measured end to end: coarser ones, and ones without some backends.

Prices of parts alone leave out what parts do to each other, so a partition that costs more by their sum can
be faster as a whole. Which partitions are worth a measurement is decided here. Each is measured once, however
it is found; what cannot be built or run is left out with a warning. Because two measurements of one program
differ too, the finalists then race in turn (`tuner.measuring.race`). Checked in
tests/tuner/tuning/test_end_to_end_variants.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from tuner.errors import TunerError, UnpriceableError
from tuner.partition.candidate import FREE
from tuner.plan import Figure
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction, choose_partition, of_parts

logger = logging.getLogger(__name__)

_DEARER_LAUNCHES = (0.002, 0.02, 1.0)
"""Shares of a partition's cost that a part may have to save to be worth a border; the last leaves the fewest
parts there can be."""

_NEARLY_AS_FAST = 1.1
"""Ratio to the fastest whole so far up to which an answer is worth coarser ones; those seldom gain more."""

_CLOSE = 1.25
"""Ratio of undisturbed samples to the fastest whole up to which mixes race; measurements that are minutes
apart differ by about so much on a machine that does other things too."""

_MAX_MIXES = 4
"""Mixes that race: each takes memory for its own copy of the weights."""

_HOPELESS = 10.0
"""The same ratio beyond which not even a single backend races: no load leaves such a gap to the median of
another program, and fifteen rounds of it would take longer than all others together."""

Variant: TypeAlias = tuple[PartitionedFunction, Figure]
"""A partition and the latency of the whole function by it."""

Search: TypeAlias = Callable[[PricedFunction], PartitionedFunction]
"""Searches with the launch penalty that it is given: of all backends, without some, or of one alone."""


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
    def num_parts(self) -> int:
        """Parts of its partition."""
        return len(self.function.partition.chosen)

    @property
    def num_backends(self) -> int:
        """Backends that run some of it."""
        return len({part.backend for part in self.function.partition.chosen} - {FREE})


class MeasureFunction(Protocol):
    """Measures a partitioned function end to end; raises `TunerError` where it cannot be built or run."""

    def __call__(self, function: PartitionedFunction, *, label: str) -> Figure:
        """Return its latency."""
        ...


@dataclass(slots=True)
class EndToEndCache:
    """Whole functions measured so far: equal programs are measured once, however they are found."""

    measure_function: MeasureFunction
    _by_fingerprint: dict[str, Variant] = field(default_factory=dict)

    def measure(self, function: PartitionedFunction, *, label: str) -> Variant:
        """Return the function with its latency, or an equal one that was measured before.

        Raises:
            TunerError: it cannot be built or run; says why.
        """
        if function.fingerprint not in self._by_fingerprint:
            figure = self.measure_function(function, label=label)
            self._by_fingerprint[function.fingerprint] = function, figure
        return self._by_fingerprint[function.fingerprint]

    def known(self, variant: Variant) -> Variant:
        """Return the variant as it was measured here, or itself: one program has one latency."""
        return self._by_fingerprint.get(variant[0].fingerprint, variant)

    def try_measure(self, function: PartitionedFunction, *, label: str) -> Variant | None:
        """Return what `measure` does, or None, with a warning, where that cannot be built or run."""
        try:
            return self.measure(function, label=label)
        except TunerError as error:
            logger.warning("%s; the others are compared without it", error)
            return None


def fastest(first: Variant, *others: Variant | None) -> Variant:
    """Return the variant of least latency; of equal ones the first. None stands for one that there is not."""
    return min((first, *(each for each in others if each is not None)), key=lambda found: found[1].latency_us)


def find_coarser(
    wholes: EndToEndCache, search: Search, first: PartitionedFunction, *, label: str
) -> Variant | None:
    """Search again with higher launch penalties; return the fastest other program, or None if there is none.

    Args:
        wholes: measures.
        search: what found the first answer.
        first: its answer.
        label: what records of these wholes are called.
    """
    priced = first.priced
    functions = {}
    for share in _DEARER_LAUNCHES:
        penalty_us = priced.launch_penalty_us + share * first.partition.cost_us
        chosen = search(replace(priced, launch_penalty_us=penalty_us)).partition.chosen
        function = of_parts(priced, chosen)
        functions[function.fingerprint] = function
    functions.pop(first.fingerprint, None)
    found = [wholes.try_measure(function, label=label) for function in functions.values()]
    measured = [each for each in found if each is not None]
    return fastest(*measured) if measured else None


def leave_backends_out(
    wholes: EndToEndCache, searched: PartitionedFunction, best: Variant
) -> dict[str, Variant]:
    """Leave out one backend after the other, for as long as that makes the fastest whole so far faster.

    Prices of parts alone can favour a backend whose parts cost more among others' than they do alone. Leaving
    out a backend that an answer does not use would only find that answer again, so it is not tried. At most
    one more round is measured than backends are left out, with one whole a backend, and coarser ones of those
    that are nearly as fast as the fastest.

    Args:
        wholes: measures.
        searched: the answer of the search among all backends.
        best: the fastest whole so far, by whatever partition.

    Returns:
        The fastest whole by the names of the backends left out, such as `without blas,torch`.
    """
    variants: dict[str, Variant] = {}
    left_out: tuple[str, ...] = ()
    answer = searched
    while True:
        answers: dict[str, PartitionedFunction] = {}
        found: dict[str, Variant] = {}
        for backend in sorted({part.backend for part in answer.partition.chosen} - {FREE}):
            search = partial(choose_partition, without={*left_out, backend})
            try:
                answers[backend] = search(answer.priced)
            except UnpriceableError:
                continue  # Nobody else can run what it runs.
            variant = wholes.try_measure(answers[backend], label="mix")
            if variant is None:
                continue
            near = variant[1].latency_us <= _NEARLY_AS_FAST * best[1].latency_us
            coarser = find_coarser(wholes, search, answers[backend], label="mix") if near else None
            found[backend] = fastest(variant, coarser)
        variants |= {f"without {','.join([*left_out, name])}": each for name, each in found.items()}
        helpful = min(found, key=lambda name: found[name][1].latency_us, default=None)
        if helpful is None or found[helpful][1].latency_us >= best[1].latency_us:
            return variants
        left_out, answer, best = (*left_out, helpful), answers[helpful], found[helpful]


def find_finalists(ours: Mapping[str, Variant], alone: Sequence[Variant]) -> tuple[Finalist, ...]:
    """Return the distinct programs that are to race: every single backend, and the fastest of the mixes.

    Comparisons of separately measured programs are noisy: background load affects them unequally.
    It only ever makes them slower, so a program is judged by its faster samples here.

    Args:
        ours: what the search, coarser partitions and the second level found, by name, the search's first.
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
    """Return who wins a tie: a single backend before a mix, then fewest backends, then fewest parts."""
    return min(finalists, key=lambda each: (not each.is_single, each.num_backends, each.num_parts))


def _undisturbed_us(figure: Figure) -> float:
    """Return the first quartile of a measured latency's samples."""
    return figure.latency_us if figure.interval_us is None else figure.interval_us[0]
