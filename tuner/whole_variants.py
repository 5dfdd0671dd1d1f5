"""Other partitions of a function, each measured as a whole: coarser ones, and ones that leave backends out.

Prices of parts alone leave out what parts do to each other, so a partition that costs more by their sum can
be faster as a whole. Which partitions are worth a measurement is decided here. Each is measured once, however
it is found; what cannot be built or run is left out with a warning. The fastest are then measured again, in
turn, because two measurements of one program differ too. Checked in tests/tuner/test_whole_variants.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from tuner.candidate import HOST
from tuner.errors import TunerError, UnpriceableError
from tuner.partitioned_function import PartitionedFunction, PricedFunction, choose_partition, of_parts
from tuner.plan import Figure

logger = logging.getLogger(__name__)

_DEARER_LAUNCHES = (0.002, 0.02, 1.0)
"""Shares of a partition's cost that a part may have to save to be worth a border; the last leaves the fewest
parts there can be."""

_NEARLY_AS_FAST = 1.1
"""Ratio to the fastest whole so far up to which an answer is worth coarser ones; those seldom gain more."""

_CLOSE = 1.06
"""Ratio to the fastest whole up to which others are measured again; measurements differ by about so much on a
machine that does other things too."""

_MAX_CLOSE = 4
"""Wholes that are measured again: each takes seconds to build."""

_AGAIN = 2
"""How often they are, which with the first time makes a median of three."""

Variant: TypeAlias = tuple[PartitionedFunction, Figure]
"""A partition and the latency of the whole function by it."""

Search: TypeAlias = Callable[[PricedFunction], PartitionedFunction]
"""Searches with the launch penalty that it is given: of all backends, without some, or of one alone."""


class MeasureFunction(Protocol):
    """Measures a partitioned function end to end; raises `TunerError` where it cannot be built or run."""

    def __call__(self, function: PartitionedFunction, *, label: str, repetition: int) -> Figure:
        """Return its latency, measured anew for each repetition."""
        ...


@dataclass(slots=True)
class Wholes:
    """Whole functions measured so far: equal programs are measured once, however they are found."""

    measure_function: MeasureFunction
    _by_fingerprint: dict[str, Variant] = field(default_factory=dict)

    def measure(self, function: PartitionedFunction, *, label: str) -> Variant:
        """Return the function with its latency, or an equal one that was measured before.

        Raises:
            TunerError: it cannot be built or run; says why.
        """
        if function.fingerprint not in self._by_fingerprint:
            figure = self.measure_function(function, label=label, repetition=0)
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


def find_coarser(wholes: Wholes, search: Search, first: PartitionedFunction, *, label: str) -> Variant | None:
    """Search again with dearer launches, and return the fastest other whole; None where there is no other.

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


def find_without(wholes: Wholes, searched: PartitionedFunction, best: Variant) -> dict[str, Variant]:
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
        for backend in sorted({part.backend for part in answer.partition.chosen} - {HOST}):
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


def compare_again(measure: MeasureFunction, variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Measure the fastest wholes again, in turn, and return all variants, those with their medians.

    The least of many measurements is mostly one that was lucky: whatever else the machine does meets programs
    that are measured minutes apart unequally. It only ever makes them slower, so one that was disturbed is
    judged by its faster samples: it is measured again if its first quartile is close to the fastest median.

    Args:
        measure: measures a whole.
        variants: what was measured so far, by name.
    """
    best = fastest(*variants.values())
    limit_us = _CLOSE * best[1].latency_us
    close: dict[str, Variant] = {}
    for function, figure in (best, *sorted(variants.values(), key=lambda each: _undisturbed_us(each[1]))):
        if _undisturbed_us(figure) <= limit_us:
            close.setdefault(function.fingerprint, (function, figure))
    contenders = [function for function, _ in close.values()][:_MAX_CLOSE]
    if len(contenders) == 1:
        return dict(variants)
    figures = {function.fingerprint: [close[function.fingerprint][1]] for function in contenders}
    for repetition in range(1, _AGAIN + 1):
        for function in contenders:
            try:
                figure = measure(function, label="mix", repetition=repetition)
            except TunerError as error:
                logger.warning("%s; what was measured before counts", error)
            else:
                figures[function.fingerprint].append(figure)
    medians = {
        fingerprint: sorted(found, key=lambda figure: figure.latency_us)[len(found) // 2]
        for fingerprint, found in figures.items()
    }
    return {
        name: (function, medians.get(function.fingerprint, figure))
        for name, (function, figure) in variants.items()
    }


def _undisturbed_us(figure: Figure) -> float:
    """Return the first quartile of a measured latency's samples."""
    return figure.latency_us if figure.interval_us is None else figure.interval_us[0]
