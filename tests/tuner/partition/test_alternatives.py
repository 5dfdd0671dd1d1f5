"""Alternatives: each other backend's cheapest way, in several parts where it takes them."""

import pytest
from dataflow_samples import graph_of, sub_graph

from tuner.graph import NodeSet
from tuner.partition.alternatives import CandidateIndex, PricedCandidate
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.plan import Figure

pytestmark = pytest.mark.tvm

CHAIN = graph_of([(), (0,), (1,)])


def offer(backend: str, latency_us: float, *indices: int) -> PricedCandidate:
    return PricedCandidate(
        CandidatePartition(sub_graph(CHAIN, *indices), backend, "test"),
        Figure(latency_us=latency_us, source="given"),
    )


def test_each_backend_is_listed_once_the_cheapest_first() -> None:
    index = CandidateIndex(
        [
            offer("chosen", 1.0, 0, 1, 2),
            *(offer("singles", 2.0, each) for each in range(3)),
            offer("pairs", 1.0, 0, 1),
            offer("pairs", 1.0, 2),
            offer("pairs", 9.0, 0, 1, 2),
            offer("partial", 0.1, 0),
            offer(FREE, 0.0, 0),
        ]
    )
    found = index.alternatives(NodeSet.of([0, 1, 2]), without="chosen", launch_penalty_us=0.25)
    assert [(each.backend, each.latency_us, len(each.parts)) for each in found] == [
        ("pairs", 2.25, 2),
        ("singles", 6.5, 3),
    ]


def test_nobody_else_is_an_empty_answer() -> None:
    index = CandidateIndex([offer("chosen", 1.0, 0)])
    assert index.alternatives(NodeSet.of([0]), without="chosen", launch_penalty_us=0.0) == ()


def test_the_chosen_backend_helps_where_another_cannot_run_all() -> None:
    index = CandidateIndex(
        [
            offer("chosen", 1.0, 0, 1, 2),
            offer("chosen", 0.5, 1),
            offer("chosen", 3.0, 2),
            offer("chosen", 2.0, 1, 2),
            offer("partial", 1.5, 0),
            offer("slower", 1.5, 0, 1),
        ]
    )
    found = index.alternatives(NodeSet.of([0, 1, 2]), without="chosen", launch_penalty_us=0.25)
    assert [(each.runners, each.latency_us) for each in found] == [
        ("partial + chosen", 3.75),
        ("slower + chosen", 4.75),
    ]
    assert [sorted(part.sub_graph.inside) for part in found[0].parts] == [[0], [1, 2]]


def test_help_alone_is_no_alternative() -> None:
    index = CandidateIndex([offer("chosen", 1.0, 0, 1), offer("chosen", 1.0, 0), offer("chosen", 1.0, 1)])
    assert index.alternatives(NodeSet.of([0, 1]), without="chosen", launch_penalty_us=0.0) == ()
