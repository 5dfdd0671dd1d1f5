"""Stretches of a model: every one can run as a function, and together they reach from one operator to all."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.samples.partition_samples import function_module
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.rules.segments import ContiguousSubgraphs

pytestmark = pytest.mark.tvm

op = relax.op


def _residual_chain(num_blocks: int) -> DataflowGraph:
    def body(x, *weights):
        for weight in weights:
            x = op.add(x, op.nn.relu(op.matmul(op.nn.relu(op.matmul(x, weight)), weight)))
        return x

    return DataflowGraph.from_function(function_module([(8, 8)] * (num_blocks + 1), body))


def test_stretches_are_convex_and_double_up_to_the_whole() -> None:
    graph = _residual_chain(4)
    found = [sub_graph.inside for sub_graph in ContiguousSubgraphs("s").find_candidates(graph)]
    assert all(graph.is_convex(inside) for inside in found)
    assert len(set(found)) == len(found)
    assert found[-1] == graph.all_indices
    assert max(len(inside) for inside in found[:-1]) < len(graph)
    shortest = [inside for inside in found if len(inside) <= 3]
    assert [inside.first for inside in shortest] == sorted(inside.first for inside in shortest)
    anchors = {node.index for node in graph.nodes if node.operator == "matmul"}
    assert all(inside.first in anchors for inside in shortest), "a piece begins with a product"


def test_stretches_of_one_length_cover_the_graph_once() -> None:
    graph = _residual_chain(3)
    found = [each.inside for each in ContiguousSubgraphs("s").find_candidates(graph)]
    num_pieces = len([node for node in graph.nodes if node.operator == "matmul"])
    shortest = found[:num_pieces]
    assert sum(len(inside) for inside in shortest) == len(graph)
    assert NodeSet.of(index for inside in shortest for index in inside) == graph.all_indices


def test_a_long_graph_starts_from_longer_stretches() -> None:
    graph = _residual_chain(9)
    found = [each.inside for each in ContiguousSubgraphs("s", max_pieces=4).find_candidates(graph)]
    every = [each.inside for each in ContiguousSubgraphs("s").find_candidates(graph)]
    assert len([inside for inside in found if len(inside) < len(graph)]) < len(every) / 3
    assert min(len(inside) for inside in found) > min(len(inside) for inside in every)
    assert found[-1] == graph.all_indices


def test_a_graph_of_one_operator_is_proposed_once() -> None:
    graph = DataflowGraph.from_function(function_module([(4,)], lambda x: op.nn.relu(x)))
    assert [each.inside for each in ContiguousSubgraphs("s").find_candidates(graph)] == [graph.all_indices]


def test_what_lies_between_named_operators_is_proposed_last() -> None:
    def body(x, *weights):
        x = op.nn.relu(op.add(op.nn.relu(x), x))
        for weight in weights[:-1]:
            x = op.nn.relu(op.nn.conv2d(x, weight, padding=1))
        return op.nn.softmax(op.matmul(op.reshape(x, (1, 4 * 64)), weights[-1]))

    shapes = [(1, 4, 8, 8), (4, 4, 3, 3), (4, 4, 3, 3), (4, 4, 3, 3), (4 * 64, 10)]
    graph = DataflowGraph.from_function(function_module(shapes, body))
    *others, last = ContiguousSubgraphs("s", frozenset({"nn.conv2d"})).find_candidates(graph)
    assert [each.inside for each in others] == [
        each.inside for each in ContiguousSubgraphs("s").find_candidates(graph)
    ]
    assert last.inside not in {each.inside for each in others}
    left = graph.operators_of(graph.all_indices - last.inside)
    assert "nn.conv2d" not in left
    assert {"matmul", "nn.softmax"} <= set(left)
    assert [graph.nodes[last.inside.first].operator] == ["nn.conv2d"]
    without = ContiguousSubgraphs("s", frozenset({"nn.conv3d"})).find_candidates(graph)
    assert [each.inside for each in without] == [each.inside for each in others]
