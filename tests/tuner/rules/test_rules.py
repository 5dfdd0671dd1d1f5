"""Base rules and combinators on upstream's small cases, and the rules that backends use."""

from typing import Any

import pytest
from dataflow_samples import (
    GivenSubGraphs,
    branchy_network,
    graph_of,
    graphs,
    relax_module,
    transformer_block,
)
from hypothesis import given, settings
from tvm import relax
from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard

from tuner.graph import DataflowGraph, NodeSet, PatternKind, SubGraph, SubGraphLimits
from tuner.rules.combinators import Composite, OnlyValid, Union
from tuner.rules.pattern import LabelledPattern, PatternRule
from tuner.rules.protocol import Rule
from tuner.rules.single import HostRule, OperatorByKind
from tuner.rules.styles import (
    FusionStyle,
    TvmGroups,
    horizontal_rule,
    library_rule,
    tvm_native_rule,
    vertical_rule,
)

pytestmark = pytest.mark.tvm


def graph_s() -> DataflowGraph:
    """x → abs → relu → relu, upstream's graph S; nodes 0, 1, 2 are upstream's 3, 4, 5."""

    def build(builder: Any, x: Any) -> Any:
        first = builder.emit(relax.op.abs(x))
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.relu(first))))

    return DataflowGraph.from_function(relax_module(build, x=(2, 2)))


def found(rule: Rule, graph: DataflowGraph) -> list[tuple[int, ...]]:
    return [tuple(each.inside) for each in rule.find_candidates(graph)]


RELU = is_op("relax.nn.relu")
ABS = is_op("relax.abs")


def test_a_pattern_of_one_operator() -> None:
    assert found(PatternRule("relu", RELU(wildcard())), graph_s()) == [(1,), (2,)]


def test_overlapping_matches_are_kept() -> None:
    pattern = RELU(RELU(wildcard()) | ABS(wildcard()))
    assert found(PatternRule("pair", pattern), graph_s()) == [(0, 1), (1, 2)]


def test_a_union_proposes_each_once() -> None:
    either = Union("either", (PatternRule("abs", ABS(wildcard())), PatternRule("relu", RELU(wildcard()))))
    assert found(either, graph_s()) == [(0,), (1,), (2,)]
    assert found(Union("twice", (either, either)), graph_s()) == [(0,), (1,), (2,)]


def test_by_kind_leaves_out_opaque_operators() -> None:
    graph = graph_of(
        [(), (0,), (1,)], kinds=[PatternKind.ELEMENTWISE, PatternKind.BROADCAST, PatternKind.OPAQUE]
    )
    assert found(OperatorByKind(), graph) == [(0,), (1,)]


def test_the_host_runs_shapes() -> None:
    graph = graph_of([(), (0,)], operators=["add", "shape_of"])
    assert found(HostRule(), graph) == [(1,)]


def test_a_composite_labels_and_nests() -> None:
    graph = graph_s()
    inner = Composite("relu", PatternRule("relu", RELU(wildcard())))
    outer = next(iter(Composite("outer", inner).find_candidates(graph)))
    assert (outer.label, [each.label for each in outer.nested]) == ("outer", ["relu"])


def test_only_valid_leaves_out_what_cannot_run() -> None:
    graph = graph_of([(), (0,), (1,)])
    given_sets = GivenSubGraphs("given", (NodeSet.of([0, 2]), NodeSet.of([0, 1])))
    assert found(OnlyValid(given_sets), graph) == [(0, 1)]


def test_library_calls_cover_several_operators_and_overlap_freely() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    product = is_op("relax.matmul")(wildcard(), wildcard())
    rule = library_rule(
        [
            LabelledPattern("matmul", product),
            LabelledPattern("linear", is_op("relax.add")(product, wildcard())),
            LabelledPattern("never", product, accepts=lambda match: False),
        ]
    )
    labels = [each.label for each in rule.find_candidates(graph)]
    assert labels.count("matmul") == 6
    assert labels.count("linear") == 3  # one with a bias, two with a residual; matching lets sums commute
    assert "never" not in labels


def test_styles_let_calls_grow() -> None:
    graph = graph_s()
    calls = [LabelledPattern("relu", RELU(wildcard())), LabelledPattern("abs", ABS(wildcard()))]
    assert len(found(library_rule(calls), graph)) == 3
    assert (0, 1, 2) in found(library_rule(calls, FusionStyle.TVM), graph)
    assert (0, 1, 2) in found(library_rule(calls, FusionStyle.ANY), graph)


def test_projections_are_part_of_a_pattern() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    pattern = is_op("relax.reshape")(is_tuple_get_item(is_op("relax.split")(wildcard()), 0), wildcard())
    (inside,) = found(PatternRule("head", pattern), graph)
    assert graph.operators_of(inside) == ("split", "reshape")


def test_tvm_groups_of_a_transformer_block() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    groups = [graph.operators_of(each.inside) for each in TvmGroups().find_candidates(graph)]
    assert ("matmul", "add") in groups
    assert ("matmul", "nn.gelu") in groups
    assert ("matmul", "multiply") in groups
    assert ("permute_dims", "reshape") in groups
    assert all(
        sum(name in ("matmul", "nn.softmax", "nn.layer_norm") for name in group) <= 1 for group in groups
    )


def test_only_groups_of_tvm_exceed_the_depth() -> None:
    # A chain of six: what the depth allows, and, unless left out, the whole chain that TVM would fuse.
    chain = graph_of([(), (0,), (1,), (2,), (3,), (4,)])
    windows = {tuple(range(first, first + size)) for size in (1, 2) for first in range(7 - size)}
    assert set(found(tvm_native_rule(2, groups=False), chain)) == windows
    assert set(found(tvm_native_rule(2), chain)) == windows | {(0, 1, 2, 3, 4, 5)}


def test_tvm_joins_injective_branches_at_a_concat() -> None:
    graph = graph_of(
        [(), (), (0, 1)], operators=["reshape", "reshape", "concat"], kinds=[PatternKind.INJECTIVE] * 3
    )
    assert (0, 1, 2) in found(tvm_native_rule(), graph)


@settings(max_examples=50, deadline=None)
@given(graphs(max_nodes=9))
def test_every_proposal_is_valid_and_every_operator_is_proposed(graph: DataflowGraph) -> None:
    proposals = list(tvm_native_rule().find_candidates(graph))
    limits = SubGraphLimits()
    assert all(each.invalid_reason(graph, limits) is None for each in proposals)
    assert {each.inside.first for each in proposals if len(each.inside) == 1} == set(range(len(graph)))
    assert len(proposals) == len(set(proposals))


@settings(max_examples=30, deadline=None)
@given(graphs(max_nodes=9))
def test_tvm_groups_are_disjoint(graph: DataflowGraph) -> None:
    groups = list(TvmGroups().find_candidates(graph))
    assert sum(len(each.inside) for each in groups) == len(
        set().union(*(set(each.inside) for each in groups))
    )


def test_vertical_and_horizontal_fusion_of_attention() -> None:
    graph = DataflowGraph.from_function(transformer_block())
    rule = vertical_rule(tvm_native_rule(2), max_anchors=3)
    vertical = [graph.operators_of(each.inside) for each in rule.find_candidates(graph)]
    assert any(names.count("matmul") == 2 and "nn.softmax" in names for names in vertical)

    network = DataflowGraph.from_function(branchy_network())
    horizontal = horizontal_rule(OperatorByKind()).find_candidates(network)
    assert ("nn.conv2d",) * 3 in [network.operators_of(each.inside) for each in horizontal]


def test_order_is_fixed_by_the_graph_alone() -> None:
    one, other = (DataflowGraph.from_function(transformer_block()) for _ in range(2))
    assert found(tvm_native_rule(), one) == found(tvm_native_rule(), other)
    assert isinstance(next(iter(tvm_native_rule().find_candidates(one))), SubGraph)
