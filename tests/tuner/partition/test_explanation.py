"""Explanations name everyone: who could, for how much, and who could not, and why."""

import pytest
from dataflow_samples import graph_of, sub_graph

from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.explanation import explain_partition
from tuner.partition.find_partition import RefusedCandidate, find_partition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure

pytestmark = pytest.mark.tvm

GRAPH = graph_of([(), (0,), (1,)], operators=["matmul", "add", "shape_of"])


def candidate(backend: str, *indices: int) -> CandidatePartition:
    return CandidatePartition(sub_graph(GRAPH, *indices), backend, "test")


def test_a_part_lists_alternatives_and_objections() -> None:
    candidates = [
        candidate("blas", 0, 1),
        candidate("tvm", 0),
        candidate("tvm", 1),
        candidate("torch", 0, 1),
        candidate(FREE, 2),
    ]
    figures = [Figure(latency_us=latency_us, source="given") for latency_us in (2.0, 3.0, 1.0)]
    prices: list[Price] = [*figures, Invalid("it crashed"), Invalid("the host is not measured")]
    refused = [RefusedCandidate(candidate("cudnn", 0), "it has no float64")]
    partition = find_partition(GRAPH, candidates, prices, launch_penalty_us=0.5)
    (explained,) = explain_partition(
        GRAPH, partition, candidates, prices, launch_penalty_us=0.5, refused=refused
    )
    assert (explained.operators, explained.backend, explained.figure) == (
        ("matmul", "add"),
        "blas",
        figures[0],
    )
    assert [(each.backend, each.latency_us) for each in explained.alternatives] == [("tvm", 4.5)]
    assert explained.margin_us == pytest.approx(2.5)
    assert explained.reasons == (("cudnn", "it has no float64"), ("torch", "it crashed"))


def test_nobody_else_has_no_margin() -> None:
    candidates = [candidate("tvm", 0, 1, 2)]
    figure = Figure(latency_us=1.0, source="given")
    partition = find_partition(GRAPH, candidates, [figure], launch_penalty_us=0.0)
    (explained,) = explain_partition(GRAPH, partition, candidates, [figure], launch_penalty_us=0.0)
    assert explained.alternatives == ()
    assert explained.margin_us is None
