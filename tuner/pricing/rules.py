"""Prices without a measurement: what the records know, and rules of thumb for the rest.

A rule bounds a program's time by its work and traffic, at the share of a core's speed that its backend
reaches on such work, plus what a call of that backend costs. The shares are rounded from this project's
reports of CPUs; they order backends, and say nothing of how long a program takes. A price from the records
weighs more: unknown programs are taken to be slower than their rule by a margin. Checked in
tests/tuner/pricing/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_model.roofline import DeviceSpeed, roofline_us
from records import Workload
from tuner.backends.protocol import refusal_of, settings_for
from tuner.graph import DataflowGraph
from tuner.lowering.outline import extract_function
from tuner.measuring.measurer import Measurer
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure
from tuner.pricing.measured import price_of, workload_of_candidate

CORE_GFLOPS = 100.0
"""Of one core with AVX2 or AVX-512, float32."""

BANDWIDTH_GB_S = 20.0

SHARES: dict[str, tuple[float, float]] = {
    "packed_matmul": (0.8, 0.5),
    "nhwc": (0.8, 0.5),
    "convolution_chains": (0.8, 0.5),
    "attention": (0.7, 0.5),
    "blas": (0.8, 4.0),
    "torch": (0.7, 8.0),
    "onnxruntime": (0.7, 12.0),
    "tvm": (0.3, 0.5),
}
"""By backend: the share of a core's speed that its products reach, and microseconds of a call."""

_OF_OWN_KERNELS = {"nhwc": "nn.conv2d", "convolution_chains": "nn.conv2d", "packed_matmul": "matmul"}
"""The operator that a built-in backend has kernels for; what else its sub-graphs hold is TVM's own code."""

_OTHERS = (0.3, 8.0)

_MARGIN = 1.5
"""How much slower than its rule a program is taken to be that the records do not know."""


def price_by_rules(
    graph: DataflowGraph, candidates: Sequence[CandidatePartition], measurer: Measurer
) -> tuple[Price, ...]:
    """Return one price per candidate, in order; nothing is built or run."""
    backends = {backend.name: backend for backend in measurer.backends}
    known: dict[tuple[str, str, str], Price] = {}
    prices: list[Price] = []
    for candidate in candidates:
        if candidate.backend == FREE:
            prices.append(Figure(latency_us=0.0, source="derived"))
            continue
        backend = backends[candidate.backend]
        function = extract_function(graph, candidate.sub_graph, backend.name)
        workload = workload_of_candidate(graph, candidate)
        key = workload.fingerprint, backend.name, settings_for(backend, function)
        if key not in known:
            reason = refusal_of(backend, function, measurer.target)
            record = None if reason else measurer.find(workload, backend.name, settings=key[2])
            if reason is not None:
                known[key] = Invalid(reason)
            elif record is not None:
                known[key] = price_of(record)
            else:
                share, call_us = _share_of(backend.name, workload)
                speed = DeviceSpeed(
                    peak_gflops=CORE_GFLOPS * share * measurer.target.num_threads,
                    bandwidth_gb_s=BANDWIDTH_GB_S,
                    call_us=call_us,
                )
                latency_us = roofline_us(workload, speed) * _MARGIN
                known[key] = Figure(
                    latency_us=latency_us, source="predicted", interval_us=(latency_us / 4, latency_us * 4)
                )
        prices.append(known[key])
    return tuple(prices)


def _share_of(backend: str, workload: Workload) -> tuple[float, float]:
    """Return the share of a core's speed that a backend reaches on a workload, and microseconds of a call."""
    share, call_us = SHARES.get(backend, _OTHERS)
    whole = sum(operator.flops for operator in workload.operators)
    if backend not in _OF_OWN_KERNELS or not whole:
        return share, call_us
    own = sum(each.flops for each in workload.operators if each.name == _OF_OWN_KERNELS[backend]) / whole
    return 1 / (own / share + (1 - own) / SHARES["tvm"][0]), call_us
