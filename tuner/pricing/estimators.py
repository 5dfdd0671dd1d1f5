"""Prices from a user's function, in place of measured or predicted ones.

They satisfy `tuner.partition.price.Pricer`, as measured prices and the cost model's predictions do, so that
the search does not know the difference. Checked in tests/tuner/pricing/test_estimators.py.

Source: TVM RFC 62 ("CostEstimator", "CustomCostEstimator").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from records.workload import Workload
from tuner.graph.dataflow import DataflowGraph
from tuner.lowering.outline import extract_function
from tuner.lowering.workload_of import workload_of
from tuner.partition.candidate import CandidatePartition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure


@dataclass(frozen=True, slots=True)
class CustomPricer:
    """Prices candidates by a function of the workload and the backend.

    Attributes:
        graph: the graph that the candidates are of.
        estimate: returns microseconds, or why the backend cannot run the workload; asked once for equal ones.
    """

    graph: DataflowGraph
    estimate: Callable[[Workload, str], float | Invalid]

    def price(self, candidates: Sequence[CandidatePartition]) -> Sequence[Price]:
        """Return one price a candidate, in order.

        Raises:
            ValueError: the function returned what is no latency.
        """
        known: dict[tuple[str, str], Price] = {}
        prices = []
        for candidate in candidates:
            function = extract_function(self.graph, candidate.sub_graph, candidate.backend)
            workload = workload_of(function, module=self.graph.source.module)
            key = workload.fingerprint, candidate.backend
            if key not in known:
                known[key] = _as_price(self.estimate(workload, candidate.backend))
            prices.append(known[key])
        return tuple(prices)


def _as_price(estimate: float | Invalid) -> Price:
    return estimate if isinstance(estimate, Invalid) else Figure(latency_us=estimate, source="given")
