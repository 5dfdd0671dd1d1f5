"""Coalescing keeps the order, never costs more, and measures before it keeps."""

from collections.abc import Sequence

import pytest
from dataflow_samples import graph_of, graphs, sub_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.mock_pricer import MockPricer
from tuner.graph import DataflowGraph
from tuner.lowering.outline import order_partitions
from tuner.partition.candidate import FREE, CandidatePartition
from tuner.partition.coalesce import coalesce
from tuner.partition.find_partition import Partition, find_partition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure

pytestmark = pytest.mark.tvm


def singles(graph: DataflowGraph, backends: Sequence[str], latency_us: float = 1.0) -> Partition:
    """Return the partition of a graph into single operators of the given backends."""
    candidates = [
        CandidatePartition(sub_graph(graph, index), backend, "test") for index, backend in enumerate(backends)
    ]
    prices = [Figure(latency_us=latency_us, source="given")] * len(candidates)
    return find_partition(graph, candidates, prices, launch_penalty_us=0.5)


class Prices:
    """A pricer that gives every merged part one price, and remembers what it was asked."""

    def __init__(self, price: Price) -> None:
        self.answer = price
        self.asked: list[CandidatePartition] = []

    def price(self, candidates: Sequence[CandidatePartition]) -> Sequence[Price]:
        self.asked += candidates
        return [self.answer] * len(candidates)


def test_two_merges_that_wait_for_each_other_are_never_both_kept() -> None:
    # a1 = f(x); b1 = g(x); a2 = f2(a1, b1); b2 = g2(b1, a1)
    graph = graph_of([(), (), (0, 1), (0, 1)], external=[2, 3])
    partition = singles(graph, ["a", "b", "a", "b"])
    result = coalesce(graph, partition, Prices(Figure(latency_us=1.0, source="given")), launch_penalty_us=0.5)
    assert result.num_priced == 2
    assert result.num_merged == 1
    order_partitions(graph, [part.sub_graph for part in result.partition.chosen])


def test_a_chain_of_one_backend_becomes_one_part() -> None:
    graph = graph_of([(index - 1,) if index else () for index in range(6)])
    result = coalesce(graph, singles(graph, ["tvm"] * 6), MockPricer({"tvm": 1.0}), launch_penalty_us=0.5)
    assert [len(part.sub_graph.inside) for part in result.partition.chosen] == [6]
    assert result.partition.penalty_us == pytest.approx(0.5)
    assert result.partition.cost_us == pytest.approx(sum(0.9**power for power in range(6)) + 0.5)


@pytest.mark.parametrize("price", [Figure(latency_us=2.6, source="given"), Invalid("it does not fit")])
def test_what_is_slower_or_cannot_run_is_not_kept(price: Price) -> None:
    graph = graph_of([(), (0,)])
    partition = singles(graph, ["tvm", "tvm"])
    pricer = Prices(price)
    result = coalesce(graph, partition, pricer, launch_penalty_us=0.5)
    assert (result.num_priced, result.num_merged) == (1, 0)
    assert result.partition == partition
    assert [tuple(each.sub_graph.inside) for each in pricer.asked] == [(0, 1)]


def test_other_backends_and_the_host_stay_apart() -> None:
    graph = graph_of([(), (0,), (1,), (2,)])
    pricer = Prices(Figure(latency_us=0.0, source="given"))
    result = coalesce(graph, singles(graph, ["a", "b", FREE, FREE]), pricer, launch_penalty_us=0.5)
    assert result.num_priced == 0


@settings(max_examples=50, deadline=None)
@given(graphs(max_nodes=8), st.data())
def test_coalescing_keeps_an_order_and_never_costs_more(graph: DataflowGraph, data: st.DataObject) -> None:
    backends = [data.draw(st.sampled_from(["a", "b"])) for _ in graph.nodes]
    partition = singles(graph, backends)
    result = coalesce(graph, partition, MockPricer({"a": 1.0, "b": 1.2}), launch_penalty_us=0.5)
    chosen = result.partition.chosen
    order_partitions(graph, [part.sub_graph for part in chosen])
    assert result.partition.cost_us <= partition.cost_us + 1e-6
    assert len(chosen) == len(graph) - result.num_merged
    backend_of = {index: part.backend for part in chosen for index in part.sub_graph.inside}
    assert [backend_of[index] for index in range(len(graph))] == backends
