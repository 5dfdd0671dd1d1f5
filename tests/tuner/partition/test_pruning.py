"""Pruning keeps a partition possible, keeps what a few backends contend for, and counts what it drops."""

import pytest
from dataflow_samples import graph_of, graphs, transformer_block
from hypothesis import given, settings

from tests.harness.mock_pricer import MockPricer
from tuner.graph import DataflowGraph, PatternKind
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.partition.partition_spec import PartitionSpec
from tuner.partition.pruning import prune_candidates
from tuner.rules.single import OperatorByPredicate
from tuner.rules.styles import tvm_native_rule

pytestmark = pytest.mark.tvm


def specs() -> list[PartitionSpec]:
    products = OperatorByPredicate("products", lambda node: node.kind is PatternKind.ANCHOR)
    return [PartitionSpec("tvm", tvm_native_rule()), PartitionSpec("blas", products)]


@settings(max_examples=30, deadline=None)
@given(graphs(max_nodes=9))
def test_a_partition_stays_possible_and_the_report_adds_up(graph: DataflowGraph) -> None:
    found = find_candidates(graph, specs())
    pruned = prune_candidates(found)
    assert set(pruned.candidates) <= set(found.candidates)
    assert pruned.report.num_pruned == len(found.candidates) - len(pruned.candidates)
    assert sum(pruned.report.num_by_rule.values()) == len(pruned.candidates)
    prices = MockPricer({"tvm": 2.0, "blas": 1.0}).price(pruned.candidates)
    assert find_partition(graph, pruned.candidates, prices, launch_penalty_us=0.0).proven


def test_what_is_left_of_a_group_beside_a_library_call_is_kept() -> None:
    # matmul → add → relu: TVM would fuse all; a library takes the product, and TVM the rest.
    kinds = [PatternKind.ANCHOR, PatternKind.BROADCAST, PatternKind.ELEMENTWISE]
    graph = graph_of([(), (0,), (1,)], kinds=kinds, operators=["matmul", "add", "relu"])
    pruned = prune_candidates(find_candidates(graph, specs()))
    assert {(tuple(each.sub_graph.inside), each.backend) for each in pruned.candidates} == {
        ((0,), "tvm"),
        ((1,), "tvm"),
        ((2,), "tvm"),
        ((0, 1, 2), "tvm"),
        ((1, 2), "tvm"),
        ((0,), "blas"),
    }
    assert pruned.report.num_pruned == 1


def test_pruning_a_transformer_block_drops_some_and_costs_nothing_under_the_mock() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    found = find_candidates(graph, specs())
    pruned = prune_candidates(found)
    costs = MockPricer({"tvm": 2.0, "blas": 1.0})
    whole, less = (
        find_partition(graph, each.candidates, costs.price(each.candidates), launch_penalty_us=0.1)
        for each in (found, pruned)
    )
    assert pruned.report.num_pruned > 0
    assert less.cost_us == pytest.approx(whole.cost_us)


def test_the_published_method_keeps_the_largest_alone_where_two_backends_offer_the_same() -> None:
    # A diamond between two operators: eight sets with one exit for each of two backends, of which two stay.
    graph = graph_of([(), (0,), (0,), (1, 2)], kinds=[PatternKind.ELEMENTWISE] * 4)
    two = [PartitionSpec(name, tvm_native_rule(4)) for name in ("tvm", "other")]
    found = find_candidates(graph, two)
    assert len(found.candidates) == 16
    pruned = prune_candidates(found, published=True)
    assert [(tuple(each.sub_graph.inside), each.backend) for each in pruned.candidates] == [
        ((0, 1, 2, 3), "tvm"),
        ((0, 1, 2, 3), "other"),
    ]
    assert pruned.report.num_pruned == 14


def test_the_published_method_bridges_the_gaps_between_candidates_that_overlap() -> None:
    # relu → relu → relu in windows of two: {0, 1} and {1, 2} overlap, so that the single ones are kept too.
    chain = graph_of([(), (0,), (1,)], kinds=[PatternKind.ELEMENTWISE] * 3)
    found = find_candidates(chain, [PartitionSpec("tvm", tvm_native_rule(2, groups=False))])
    assert prune_candidates(found, published=True).candidates == found.candidates


@settings(max_examples=30, deadline=None)
@given(graphs(max_nodes=9))
def test_the_published_method_leaves_a_partition_possible(graph: DataflowGraph) -> None:
    pruned = prune_candidates(find_candidates(graph, specs()), published=True)
    prices = MockPricer({"tvm": 2.0, "blas": 1.0}).price(pruned.candidates)
    assert find_partition(graph, pruned.candidates, prices, launch_penalty_us=0.0).proven
