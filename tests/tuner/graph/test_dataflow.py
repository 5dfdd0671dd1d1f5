"""Relax functions read as graphs: tuples, projections, constants and results."""

from typing import Any

import networkx as nx
import pytest
import tvm
from dataflow_samples import branchy_network, graph_of, graphs, relax_module, transformer_block
from hypothesis import given
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.graph import DataflowGraph, Node, PatternKind
from tuner.graph.kinds import KIND_BY_OPERATOR

pytestmark = pytest.mark.tvm


def test_a_split_and_its_projections_are_one_node() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    operators = [node.operator for node in graph.nodes]
    split = operators.index("split")
    assert [operators[user] for user in graph.users[split]] == ["reshape"] * 3
    assert len(graph.source.values[split]) == 3
    assert graph.nodes[-1].is_external
    assert not any(node.is_external for node in graph.nodes[:-1])


def test_a_tuple_argument_reads_each_field() -> None:
    graph = DataflowGraph.from_function(branchy_network())
    concat = next(node for node in graph.nodes if node.operator == "concat")
    assert [graph.nodes[index].operator for index in concat.inputs] == ["nn.relu"] * 3
    assert concat.kind is PatternKind.INJECTIVE


def test_kinds_come_from_the_table_and_from_loops() -> None:
    module = relax_module(lambda builder, x: builder.emit(relax.op.log_add_exp(x, x)), x=(4, 4))
    assert "log_add_exp" not in KIND_BY_OPERATOR
    assert DataflowGraph.from_function(module).nodes[0].kind is PatternKind.ELEMENTWISE
    assert set(KIND_BY_OPERATOR) <= {str(name).removeprefix("relax.") for name in tvm.ir.Op.list_op_names()}


@pytest.mark.parametrize(("training", "kind"), [(False, PatternKind.BROADCAST), (True, PatternKind.ANCHOR)])
def test_a_batch_norm_with_given_statistics_only_scales(training: bool, kind: PatternKind) -> None:
    def build(builder: Any, x: Any, *statistics: Any) -> Any:
        normal = builder.emit(relax.op.nn.batch_norm(x, *statistics, axis=1, training=training))
        return builder.emit(relax.TupleGetItem(normal, 0))

    channels = dict.fromkeys(("scale", "shift", "mean", "variance"), (3,))
    graph = DataflowGraph.from_function(relax_module(build, x=(2, 3, 4, 4), **channels))
    assert [node.kind for node in graph.nodes] == [kind]


def test_several_results_are_external() -> None:
    module = relax_module(
        lambda builder, x: (builder.emit(relax.op.nn.relu(x)), builder.emit(relax.op.abs(x))), x=(2, 3)
    )
    graph = DataflowGraph.from_function(module)
    assert [node.is_external for node in graph.nodes] == [True, True]
    assert graph.source.result_is_tuple


def test_control_flow_is_refused_by_name() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit_output(relax.op.nn.relu(x))
        second = builder.emit(relax.op.print(first, format="{}"))
        with builder.dataflow():
            third = builder.emit_output(relax.op.abs(first))
        builder.emit_func_output(third)
    del second
    with pytest.raises(UnsupportedOperatorError, match="blocks of bindings"):
        DataflowGraph.from_function(builder.get())


def test_nodes_are_numbered_in_order() -> None:
    node = Node(index=1, operator="add", kind=PatternKind.BROADCAST, inputs=())
    with pytest.raises(ValueError, match="number nodes"):
        DataflowGraph([node])
    with pytest.raises(ValueError, match="does not come before"):
        graph_of([(0,)])


@given(graphs())
def test_ancestors_and_descendants_are_the_transitive_closure(graph: DataflowGraph) -> None:
    network = _network(graph)
    for node in graph.nodes:
        assert set(graph.ancestors[node.index]) == nx.ancestors(network, node.index)
        assert set(graph.descendants[node.index]) == nx.descendants(network, node.index)


@given(graphs())
def test_post_dominators_agree_with_networkx(graph: DataflowGraph) -> None:
    backward = _network(graph).reverse()
    leaving = [node.index for node in graph.nodes if node.is_external or not graph.users[node.index]]
    backward.add_edges_from(("result", index) for index in leaving)
    found, expected = graph.post_dominators(), nx.immediate_dominators(backward, "result")
    for index in range(len(graph)):
        assert ("result" if found[index] is None else found[index]) == expected[index]


@given(graphs())
def test_depth_first_order_is_an_order_of_all_nodes(graph: DataflowGraph) -> None:
    order = graph.depth_first_order()
    assert sorted(order) == list(range(len(graph)))
    renumbered = graph.renumbered(order)
    for new, old in enumerate(order):
        assert [order[read] for read in renumbered.ancestors[new]] == [
            each for each in order if each in graph.ancestors[old]
        ]


def test_depth_first_order_finishes_a_branch_before_the_next() -> None:
    # Two branches of two, numbered across: 1, 2 then 3, 4.
    graph = graph_of([(), (0,), (0,), (1,), (2,), (3, 4)])
    assert graph.depth_first_order() == (0, 1, 3, 2, 4, 5)
    with pytest.raises(ValueError, match="does not hold each"):
        graph.renumbered([0, 1])


def _network(graph: DataflowGraph) -> nx.DiGraph:
    network = nx.DiGraph()
    network.add_nodes_from(range(len(graph)))
    network.add_edges_from((source, node.index) for node in graph.nodes for source in node.inputs)
    return network
