"""Prices that decrease with the size of a candidate, so that fusing pays; nothing is measured.

Source: TVM RFC 62 ("MockCostEstimator").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.partition.candidate import CandidatePartition
from tuner.partition.price import Price, Unknown
from tuner.plan import Figure

MOCK_DISCOUNT = 0.9
"""Upstream's: each further operator in a sub-graph costs a tenth less than the one before, so fusing pays."""


@dataclass(frozen=True, slots=True)
class MockPricer:
    """Prices a candidate of n operators at c + 0.9 c + … + 0.9ⁿ⁻¹ c, with c its backend's cost.

    Attributes:
        cost_us_by_backend: c of each backend; others are `Unknown`.
    """

    cost_us_by_backend: Mapping[str, float]

    def price(self, candidates: Sequence[CandidatePartition]) -> Sequence[Price]:
        """Return one price a candidate, in order."""
        return tuple(self._price(candidate) for candidate in candidates)

    def _price(self, candidate: CandidatePartition) -> Price:
        cost_us = self.cost_us_by_backend.get(candidate.backend)
        if cost_us is None:
            return Unknown()
        num_operators = len(candidate.sub_graph.inside)
        return Figure(
            latency_us=sum(cost_us * MOCK_DISCOUNT**position for position in range(num_operators)),
            source="given",
        )
