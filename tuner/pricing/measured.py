"""Price candidates by measuring each distinct one once.

Candidates that are the same program (one fingerprint) for the same backend have one price: a layer that the
model repeats is built and timed once. What a backend refuses is not built at all; what fails has the failure
as its reason. Checked in tests/tuner/pricing/test_measured.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from records import Record, Status, Workload
from tuner.backends.protocol import Backend, refusal_of, settings_for
from tuner.errors import UnknownNameError
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.structure import Structure
from tuner.lowering.outline import extract_function, extract_module
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.measuring.request import MeasureRequest
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.price import Invalid
from tuner.plan import Figure


class MeasuredPricer:
    """Prices the candidates of one graph by measurement, through the records.

    Args:
        graph: what the candidates' sub-graphs are sets of nodes of.
    """

    def __init__(self, graph: DataflowGraph, measurer: Measurer) -> None:
        self._graph = graph
        self._measurer = measurer
        self._backends = {backend.name: backend for backend in measurer.backends}
        self._prices: dict[tuple[str, str, str], Figure | Invalid] = {}

    def price(self, candidates: Sequence[CandidatePartition]) -> tuple[Figure | Invalid, ...]:
        """Return one price per candidate, in order: a measured latency, or why there is none.

        Raises:
            UnknownNameError: a candidate names a backend that the measurer does not have.
            TunerError: the worker process cannot be started.
        """
        requests: dict[tuple[str, str, str], MeasureRequest] = {}
        keys: list[tuple[str, str, str] | None] = []
        for candidate in candidates:
            if candidate.backend == FREE:
                keys.append(None)
                continue
            backend = self._backend(candidate)
            function = extract_function(self._graph, candidate.sub_graph, backend.name)
            workload = _workload_of(Structure(function))
            key = workload.fingerprint, backend.name, settings_for(backend, function)
            keys.append(key)
            if key in self._prices or key in requests:
                continue
            reason = refusal_of(backend, function, self._measurer.target)
            if reason is not None:
                self._prices[key] = Invalid(reason)
                continue
            requests[key] = MeasureRequest(
                workload=workload,
                module=extract_module(self._graph, candidate.sub_graph, backend.name),
                backend=backend.name,
                settings=key[2],
                check=True,
            )
        records = self._measurer.measure_many(tuple(requests.values()))
        self._prices.update(zip(requests, map(price_of, records), strict=True))
        return tuple(_FREE if key is None else self._prices[key] for key in keys)

    def _backend(self, candidate: CandidatePartition) -> Backend:
        if candidate.backend not in self._backends:
            raise UnknownNameError(
                f"candidate of rule {candidate.rule!r} names backend {candidate.backend!r}, the measurer has "
                f"{', '.join(self._backends)}; give the measurer the same backends as the rules"
            )
        return self._backends[candidate.backend]


@functools.lru_cache(maxsize=16384)
def _workload_of(structure: Structure) -> Workload:
    """Describe each structure once: a repeated layer proposes the same sub-graphs over and over."""
    return workload_of(structure.value)


def workload_of_candidate(graph: DataflowGraph, candidate: CandidatePartition) -> Workload:
    """Return what records call a candidate's sub-graph."""
    return _workload_of(Structure(extract_function(graph, candidate.sub_graph, candidate.backend)))


def price_of(record: Record) -> Figure | Invalid:
    """Return a record's median latency with its quartiles, or its failure as the reason."""
    measurement = record.measurement
    if measurement.status is not Status.OK:
        return Invalid(f"{measurement.status}: {measurement.message}")
    return Figure(
        latency_us=measurement.latency_us,
        source="measured",
        record_ids=(record.record_id,),
        interval_us=measurement.quartiles_us,
    )


_FREE = Figure(latency_us=0.0, source="derived")
"""What the host's partitions cost: they are views and constants, which no kernel computes."""
