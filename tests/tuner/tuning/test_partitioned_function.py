"""A single backend's partition is the cheapest in which it runs whatever it can, proven or not."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import networkx as nx
import pytest
from dataflow_samples import relax_module
from tvm import relax

from tuner.graph import DataflowGraph, NodeSet, SubGraph
from tuner.lowering.workload_of import describe_graph
from tuner.partition import cover_search
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import Partition
from tuner.plan import Figure
from tuner.tuning import partitioned_function
from tuner.tuning.partitioned_function import REFERENCE_BACKEND, PricedFunction, choose_partition

pytestmark = pytest.mark.tvm

CHAINS, LENGTH = 9, 6


def chains(seed: int) -> PricedFunction:
    """Return chains side by side, whose operators `own` runs in pairs, along a chain or across two."""

    def build(builder: Any, x: Any) -> Any:
        ends = []
        for _ in range(CHAINS):
            end = x
            for _ in range(LENGTH):
                end = builder.emit(relax.op.exp(end))
            ends.append(end)
        return builder.emit(relax.op.concat(ends))

    graph = DataflowGraph.from_function(relax_module(build, x=(4,)))
    random = Random(seed)
    pieces = [((node.index,), REFERENCE_BACKEND) for node in graph.nodes]
    for chain in range(CHAINS):
        for step in range(LENGTH):
            first = chain * LENGTH + step
            if step + 1 < LENGTH and random.random() < 0.6:
                pieces.append(((first, first + 1), "own"))
            if chain + 1 < CHAINS and random.random() < 0.6:
                pieces.append(((first, first + LENGTH), "own"))
    candidates = [
        CandidatePartition(SubGraph.of(graph, NodeSet.of(inside)), backend, "piece")
        for inside, backend in pieces
    ]
    return PricedFunction(
        name="model",
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=tuple(candidates),
        prices=tuple(Figure(latency_us=1 + random.random() / 100, source="given") for _ in candidates),
        num_candidates_by_rule={},
        refused=(),
        num_pruned=0,
        launch_penalty_us=0.1,
    )


def fewest_by_reference(priced: PricedFunction) -> int:
    """Return the fewest operators that are left to the reference: those that a largest matching leaves."""
    pairs = nx.Graph(
        tuple(part.sub_graph.inside) for part in priced.candidates if part.backend != REFERENCE_BACKEND
    )
    return len(priced.graph) - 2 * len(nx.max_weight_matching(pairs, maxcardinality=True))


def number_by_reference(partition: Partition) -> int:
    return sum(part.backend == REFERENCE_BACKEND for part in partition.chosen)


@pytest.mark.parametrize("seed", range(6))
def test_a_backend_runs_whatever_it_can_at_the_least_cost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    priced = chains(seed)
    proven = choose_partition(priced, only="own").partition
    assert number_by_reference(proven) == fewest_by_reference(priced) > 1
    # With neither a proof nor much of a beam the integer program decides, which reckons in floating point.
    limited = partial(partitioned_function.find_partition, max_states=1)
    monkeypatch.setattr(partitioned_function, "find_partition", limited)
    monkeypatch.setattr(cover_search, "BEAM_WIDTH", 1)
    found = choose_partition(priced, only="own").partition
    assert number_by_reference(found) == number_by_reference(proven)
    assert found.cost_us == pytest.approx(proven.cost_us, abs=2e-3)
