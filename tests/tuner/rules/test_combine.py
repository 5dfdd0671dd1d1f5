"""Combining: upstream's cases, completeness, and fusion by anchor."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from dataflow_samples import (
    ANCHOR,
    BROADCAST,
    GPT2_FRAGMENT,
    INJECTIVE,
    REDUCTION,
    gpt2_fragment,
    graph_of,
    graphs,
    sub_graph,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.graph import DataflowGraph, NodeSet, PatternKind, SubGraph, SubGraphLimits
from tuner.rules.combinators import OnlyValid
from tuner.rules.combine import ByAnchor, ByKind, Combine, Siblings, TupleArgument
from tuner.rules.single import OperatorByKind

PUBLISHED = """
    6,8 9,11 9,15 9,11,15 9,15,17 9,11,15,17 11,24 15,17 17,18 18,20 20,21 21,23 23,24
    15,17,18 17,18,20 18,20,21 20,21,23 21,23,24
"""
MISSED = "11,23,24 11,21,23,24"


def sets(text: str) -> set[frozenset[int]]:
    return {frozenset(int(number) for number in group.split(",")) for group in text.split()}


@pytest.mark.parametrize(("published", "count"), [(True, 29), (False, 31)])
def test_the_gpt2_fragment_by_kind(published: bool, count: int) -> None:
    graph, upstream_numbers = gpt2_fragment()
    rule = Combine(
        rule=OperatorByKind(), combiners=(ByKind(ANCHOR, BROADCAST),), max_depth=3, published=published
    )
    found = [upstream_numbers(each) for each in rule.find_candidates(graph)]
    singles = {frozenset([number]) for number, _, _ in GPT2_FRAGMENT}
    expected = singles | sets(PUBLISHED) | (set() if published else sets(MISSED))
    assert len(found) == count
    assert set(found) == expected


@pytest.mark.parametrize(("published", "more"), [(True, ""), (False, f"{MISSED} 8,9,11,15")])
def test_the_gpt2_fragment_by_the_kinds_of_tvm(published: bool, more: str) -> None:
    """Upstream's case of mixed combiners, without its constants, which are no nodes here."""
    graph, upstream_numbers = gpt2_fragment()
    rule = Combine(rule=OperatorByKind(), combiners=TVM_LIKE, max_depth=3, published=published)
    found = {upstream_numbers(each) for each in rule.find_candidates(graph) if len(each.inside) > 1}
    assert found == sets(PUBLISHED) | sets("8,9 8,9,11 8,9,15") | sets(more)


ANYTHING = (ByKind(PatternKind.OPAQUE, PatternKind.OPAQUE),)


@settings(max_examples=40, deadline=None)
@given(graphs(max_nodes=7))
def test_the_closure_holds_every_connected_convex_set(graph: DataflowGraph) -> None:
    rule = Combine(rule=OperatorByKind(), combiners=ANYTHING, max_depth=len(graph))
    found = [each.inside for each in rule.find_candidates(graph)]
    assert len(found) == len(set(found))
    assert set(found) == {
        inside for inside in subsets(graph) if graph.is_convex(inside) and is_connected(graph, inside)
    }


TVM_LIKE = (ByKind(ANCHOR, BROADCAST), ByKind(BROADCAST, REDUCTION), ByKind(INJECTIVE, INJECTIVE))


@settings(max_examples=60, deadline=None)
@given(graphs(max_nodes=8))
def test_growing_within_one_exit_loses_nothing(graph: DataflowGraph) -> None:
    assert grown_within_one_exit(graph, TVM_LIKE) == grown_freely(graph, TVM_LIKE)


KINDS = st.sampled_from([kind for kind in PatternKind if kind is not PatternKind.OPAQUE])


@settings(max_examples=80, deadline=None)
@given(graphs(max_nodes=7), st.lists(st.builds(ByKind, KINDS, KINDS), min_size=1, max_size=3))
def test_growing_by_nodes_loses_nothing_whatever_the_kinds(
    graph: DataflowGraph, combiners: list[ByKind]
) -> None:
    assert grown_within_one_exit(graph, combiners) == grown_freely(graph, combiners)


def grown_freely(graph: DataflowGraph, combiners: Sequence[ByKind]) -> set[NodeSet]:
    rule = Combine(rule=OperatorByKind(), combiners=tuple(combiners), max_depth=4)
    return {each.inside for each in OnlyValid(rule, SubGraphLimits(max_depth=4)).find_candidates(graph)}


def grown_within_one_exit(graph: DataflowGraph, combiners: Sequence[ByKind]) -> set[NodeSet]:
    limits = SubGraphLimits(max_depth=4)
    rule = Combine(rule=OperatorByKind(), combiners=tuple(combiners), max_depth=4, within=limits)
    return {each.inside for each in OnlyValid(rule, limits).find_candidates(graph)}


def test_a_stack_of_many_steps_has_a_bounded_number_of_candidates() -> None:
    # Each of ten steps scales and shifts; 3 ** 10 sets of depth 3 leave through the stack alone.
    inputs: list[tuple[int, ...]] = []
    for step in range(10):
        inputs += [(), (2 * step,)]
    graph = graph_of([*inputs, tuple(range(1, 20, 2))], kinds=[BROADCAST] * 20 + [INJECTIVE])
    rule = Combine(
        rule=OperatorByKind(),
        combiners=TVM_LIKE,
        max_depth=3,
        within=SubGraphLimits(max_depth=3),
        max_per_exit=100,
    )
    found = [each.inside for each in rule.find_candidates(graph)]
    through_the_stack = [inside for inside in found if inside.last == 20]
    assert len(found) == len(set(found)) == 20 + 10 + 100
    assert sorted(map(len, through_the_stack)) == [1] + [2] * 10 + [3] * 55 + [4] * 34


def subsets(graph: DataflowGraph) -> list[NodeSet]:
    indices = range(len(graph))
    return [NodeSet.of(each) for size in range(1, len(graph) + 1) for each in combinations(indices, size)]


def is_connected(graph: DataflowGraph, inside: NodeSet) -> bool:
    reached = {inside.first}
    waiting = [inside.first]
    while waiting:
        index = waiting.pop()
        near = {*graph.nodes[index].inputs, *graph.users[index]} & set(inside) - reached
        reached |= near
        waiting += near
    return len(reached) == len(inside)


def test_siblings_are_equal_operators_of_one_value() -> None:
    # A value feeds three products and a sum; two of the products could also be chained.
    graph = graph_of(
        [(), (0,), (0,), (0,), (0,)],
        kinds=[BROADCAST, ANCHOR, ANCHOR, ANCHOR, BROADCAST],
        operators=["relu", "matmul", "matmul", "matmul", "add"],
        external=range(5),
    )
    rule = Combine(rule=OperatorByKind(), combiners=(Siblings(3),), max_depth=2)
    joined = {tuple(each.inside) for each in rule.find_candidates(graph) if len(each.inside) > 1}
    assert joined == {(1, 2), (1, 3), (2, 3), (1, 2, 3)}


def test_anchors_in_sequence_join_up_to_a_number() -> None:
    # product → softmax → product → product
    graph = graph_of([(), (0,), (1,), (2,)], kinds=[ANCHOR] * 4)
    rule = Combine(rule=OperatorByKind(), combiners=(ByAnchor(3),), max_depth=4)
    largest = max(len(each.inside) for each in rule.find_candidates(graph))
    assert largest == 3


def test_a_tuple_argument_never_joins_overlapping_producers() -> None:
    # concat(relu(a), relu(a)') where one candidate could make both fields
    graph = graph_of(
        [(), (0,), (0,), (1, 2)], operators=["abs", "relu", "relu", "concat"], kinds=[INJECTIVE] * 4
    )
    rule = Combine(
        rule=OperatorByKind(),
        combiners=(ByKind(INJECTIVE, INJECTIVE), TupleArgument()),
        max_depth=3,
        within=SubGraphLimits(),
    )
    found = list(rule.find_candidates(graph))
    assert sub_graph(graph, 1, 2, 3) in found
    assert len(found) == len({each.inside for each in found})


def test_labels_survive_joining() -> None:
    graph = graph_of([(), (0,)])
    labelled = [SubGraph.of(graph, NodeSet.of([index]), label=f"call{index}") for index in range(2)]

    class Given:
        name = "given"

        def find_candidates(self, graph: DataflowGraph) -> list[SubGraph]:
            return labelled

    joined = list(Combine(rule=Given(), combiners=ANYTHING, max_depth=2).find_candidates(graph))[-1]
    assert [nested.label for nested in joined.nested] == ["call0", "call1"]
