"""Partitioned functions measured end to end: equal programs are measured once, however they are found.

What cannot be built or run is left out with a warning. Checked in
tests/tuner/tuning/end_to_end/test_cache.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tuner.errors import TunerError
from tuner.plan import Figure
from tuner.tuning.partitioned_function import PartitionedFunction

logger = logging.getLogger(__name__)

Variant: TypeAlias = tuple[PartitionedFunction, Figure]
"""A partition and the latency of the whole function by it."""


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
