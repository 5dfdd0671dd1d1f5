"""The price of a candidate and its uncertainty: the protocol of measured, predicted and mock prices.

A price is a latency in microseconds with its source, or a reason why there is none. *Invalid* (the backend
cannot) and *unknown* (nobody has looked) are states, not numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tuner.plan import Figure

if TYPE_CHECKING:
    from tuner.partition.candidate import CandidatePartition


@dataclass(frozen=True, slots=True)
class Invalid:
    """The backend cannot run the candidate; the reason is one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody has priced the candidate yet."""


Price: TypeAlias = Figure | Invalid | Unknown


class Pricer(Protocol):
    """Prices candidates: measured, predicted by the cost model, mock, or one's own."""

    def price(self, candidates: Sequence[CandidatePartition]) -> Sequence[Price]:
        """Return one price per candidate, in order; equal candidates are priced once."""
        ...
