"""Sub-graphs: what goes in, what leaves, and what may be a partition."""

import networkx as nx
import pytest
from dataflow_samples import graph_of, graphs, sub_graph
from hypothesis import given
from hypothesis import strategies as st

from tuner.graph import DataflowGraph, NodeSet, PatternKind, SubGraph, SubGraphLimits

# a = add(x, y); b = add(z, w); c = subtract(a, b)
TWO_EXITS = [(), (), (0, 1)]
# conv → relu, add(relu, conv)
TAP = [(), (0,), (0, 1)]
CHAIN = [(), (0,), (1,)]


def test_two_exits_need_two_allowed() -> None:
    graph = graph_of(TWO_EXITS)
    both = sub_graph(graph, 0, 1)
    assert "2 nodes leave it" in str(both.invalid_reason(graph, SubGraphLimits(max_exits=1)))
    assert both.is_valid(graph, SubGraphLimits(max_exits=2))


def test_a_tap_needs_taps_allowed() -> None:
    graph = graph_of(TAP)
    tapped = sub_graph(graph, 0, 1)
    limits = SubGraphLimits(max_exits=2)
    assert tapped.taps == NodeSet.of([0])
    assert "node 0 is read both inside and outside" in str(tapped.invalid_reason(graph, limits))
    assert tapped.is_valid(graph, SubGraphLimits(max_exits=2, allow_taps=True))


def test_a_path_may_not_leave_and_come_back() -> None:
    graph = graph_of(CHAIN)
    broad = SubGraphLimits(max_exits=3, allow_taps=True)
    assert "comes back" in str(sub_graph(graph, 0, 2).invalid_reason(graph, broad))
    assert sub_graph(graph, 0, 1, 2).is_valid(graph, broad)


def test_depth_counts_operators_on_the_longest_path() -> None:
    graph = graph_of(CHAIN)
    assert [sub_graph(graph, *range(count)).depth for count in (1, 2, 3)] == [1, 2, 3]
    assert "depth is 3" in str(sub_graph(graph, 0, 1, 2).invalid_reason(graph, SubGraphLimits(max_depth=2)))


def test_entry_exit_input_and_output_of_the_drawn_example() -> None:
    graph = graph_of([(), (0,), (0,), (1, 2), (3,)])
    middle = sub_graph(graph, 1, 2, 3)
    assert middle.entry == NodeSet.of([1, 2])
    assert middle.exit == NodeSet.of([3])
    assert middle.input == NodeSet.of([0])
    assert middle.output == NodeSet.of([4])
    assert middle.kind is PatternKind.BROADCAST


def test_labels_nest_in_unions() -> None:
    graph = graph_of(CHAIN)
    labelled = sub_graph(graph, 0, 1).with_label(graph, "first_two")
    union = labelled.union(graph, sub_graph(graph, 2))
    assert union.nested == (labelled,)
    assert union.label == ""
    assert union != sub_graph(graph, 0, 1, 2)
    assert union.with_label(graph, "all").nested == (labelled,)
    with pytest.raises(ValueError, match="share nodes"):
        labelled.union(graph, sub_graph(graph, 1))


@given(graphs(), st.data())
def test_sets_agree_with_the_edges(graph: DataflowGraph, data: st.DataObject) -> None:
    inside = data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1))
    whole = SubGraph.of(graph, NodeSet.of(inside))
    edges = [(source, node.index) for node in graph.nodes for source in node.inputs]
    assert set(whole.input) == {source for source, user in edges if source not in inside and user in inside}
    assert set(whole.output) == {user for source, user in edges if source in inside and user not in inside}
    read_outside = {source for source, user in edges if source in inside and user not in inside}
    external = {index for index in inside if graph.nodes[index].is_external}
    assert set(whole.exit) == read_outside | external
    read_inside = {source for source, user in edges if source in inside and user in inside}
    assert set(whole.taps) == set(whole.exit) & read_inside


@given(graphs(), st.data())
def test_convex_means_the_parts_can_run_in_order(graph: DataflowGraph, data: st.DataObject) -> None:
    inside = data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1))
    parts = nx.DiGraph()
    parts.add_edges_from(
        ("part" if source in inside else source, "part" if node.index in inside else node.index)
        for node in graph.nodes
        for source in node.inputs
        if not {source, node.index} <= inside
    )
    assert graph.is_convex(NodeSet.of(inside)) == nx.is_directed_acyclic_graph(parts)


@pytest.mark.parametrize("bad", [NodeSet(), NodeSet.of([7])])
def test_a_sub_graph_has_nodes_of_its_graph(bad: NodeSet) -> None:
    with pytest.raises(ValueError, match="not a set of nodes"):
        SubGraph.of(graph_of(CHAIN), bad)
