"""Partition a function without measuring: candidates have prices that favour one backend or another.

Prices fall with a candidate's size, as in TVM's RFC 62 ("MockCostEstimator"). Either one backend is preferred
and runs whatever it can, or for every place another one is, drawn by a fixed seed, so that one partition has
parts of all. This finds what a backend proposes and cannot lower, and what it lowers wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from tuner.backends.protocol import Backend
from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.graph import DataflowGraph
from tuner.graph.relax_types import IRModule
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.lower import build_module, flat_arrays, lower_module
from tuner.lowering.weight_binding import bound_arguments
from tuner.lowering.workload_of import describe_graph
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import find_candidates
from tuner.plan import Figure
from tuner.targets.resolution import resolve_target, tvm_device
from tuner.targets.target import Target
from tuner.tuning.partitioned_function import PartitionedFunction, PricedFunction, choose_partition

BACKENDS = ("tvm", "blas", "torch")
"""Who takes part."""

MIXED = "mixed"
"""In place of a preferred backend: another one for every place."""

_SEED = 7

LAUNCH_PENALTY_US = 1.0

_DISCOUNT = 0.9
"""Share of the cost of an operator that the next one of the same candidate has."""


def partition_by(module: IRModule, preferred: str, *, name: str = "model") -> PartitionedFunction:
    """Return a module's `main` in the parts that the search chooses where one backend is the cheapest.

    Args:
        module: what is partitioned.
        preferred: a name of `BACKENDS`, or `MIXED`.
        name: what the function is called in a plan.

    Raises:
        TunerError: nobody can run an operator.
    """
    target, backends = _target_and_backends()
    graph = DataflowGraph.from_function(module)
    found = find_candidates(graph, gather_specs(backends, target))
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(len(BACKENDS), size=len(graph.nodes))
    favourites = [preferred if preferred != MIXED else BACKENDS[number] for number in drawn]
    priced = PricedFunction(
        name=name,
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=tuple(_price(each, favourites) for each in found.candidates),
        num_candidates_by_rule={},
        refused=found.report.refused,
        num_pruned=0,
        launch_penalty_us=LAUNCH_PENALTY_US,
    )
    chosen = choose_partition(priced)
    if not chosen.partition.chosen:
        raise TunerError("the search chose nothing; see that a backend runs every operator")
    return chosen


def run_partitioned(module: IRModule, arguments: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return what a partitioned module gives, lowered by its backends."""
    target, backends = _target_and_backends()
    lowered = lower_module(module, backends, target)
    device = tvm_device(target)
    machine = relax.VirtualMachine(build_module(lowered, target), device)
    tensors = [tvm.runtime.tensor(np.array(each), device) for each in arguments]
    return flat_arrays(machine["main"](*bound_arguments(machine, tensors)))


def _target_and_backends() -> tuple[Target, tuple[Backend, ...]]:
    target = resolve_target("cpu", num_threads=1)
    return target, tuple(backends_for(BACKENDS, target))


def _price(candidate: CandidatePartition, favourites: Sequence[str]) -> Figure:
    """Return the price of a candidate; that of the backend which its last node favours is low."""
    is_free = candidate.backend not in BACKENDS
    first = (
        0.0 if is_free else 1.0 if favourites[candidate.sub_graph.inside.last] == candidate.backend else 10.0
    )
    count = len(candidate.sub_graph.inside)
    return Figure(latency_us=sum(first * _DISCOUNT**index for index in range(count)), source="given")
