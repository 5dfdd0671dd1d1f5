"""Longest paths against the longest paths of every combination of options."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.model.precedence import (
    UNREACHABLE,
    least_distances_from,
    least_heads,
    least_tails,
    precedence_of,
)
from tests.samples.schedule_samples import option_combinations


@st.composite
def placements_with_choices(draw: st.DrawFn) -> Placement:
    num_blocks = draw(st.integers(2, 7))
    blocks = tuple(
        Block(name=f"n{index}", devices=(0,), span=draw(st.integers(0, 5))) for index in range(num_blocks)
    )
    pairs = [(a, b) for a in range(num_blocks) for b in range(a + 1, num_blocks)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    edges = tuple(Edge(f"n{a}", f"n{b}", draw(st.integers(0, 3))) for a, b in chosen)
    names = draw(st.permutations([block.name for block in blocks]))
    cuts = draw(st.sampled_from([(), (1, 2), (1, 3), (2, 3), (1, 2, 3)]))
    choices = ()
    if cuts and num_blocks > cuts[-1]:
        options = (tuple(names[first:after]) for first, after in pairwise((0, *cuts)))
        choices = (Choice("c", tuple(options)),)
    return Placement(devices=1, blocks=blocks, edges=edges, choices=choices)


def longest_path(placement: Placement, source: str, target: str) -> int | None:
    """Longest way from start to start, by trying every path."""
    graph = nx.DiGraph()
    graph.add_nodes_from(placement.index_by_name)
    graph.add_edges_from((edge.source, edge.target, {"lag": edge.lag}) for edge in placement.edges)
    return max(
        (
            sum(placement.block(a).span + graph.edges[a, b]["lag"] for a, b in pairwise(path))
            for path in [[source]] * (source == target) + list(nx.all_simple_paths(graph, source, target))
        ),
        default=None,
    )


@settings(max_examples=100, deadline=None)
@given(placement=placements_with_choices())
def test_distances_are_bounds_for_every_combination_and_exact_without_choices(placement: Placement) -> None:
    precedence = precedence_of(placement)
    heads = dict(zip(placement.index_by_name, least_heads(precedence), strict=True))
    tails = dict(zip(placement.index_by_name, least_tails(precedence), strict=True))
    for fixed in option_combinations(placement):
        for name in fixed.index_by_name:
            head = max(longest_path(fixed, other, name) or 0 for other in fixed.index_by_name)
            ways = ((other, longest_path(fixed, name, other)) for other in fixed.index_by_name)
            tail = max(way + fixed.block(other).span for other, way in ways if way is not None)
            assert heads[name] <= head
            assert tails[name] <= tail
            if not placement.choices:
                assert (heads[name], tails[name]) == (head, tail)


@settings(max_examples=100, deadline=None)
@given(placement=placements_with_choices())
def test_distance_from_a_block_holds_wherever_both_run(placement: Placement) -> None:
    source = placement.blocks[0].name
    distance = least_distances_from(precedence_of(placement), 0).tolist()
    for fixed in option_combinations(placement):
        for name, steps in zip(placement.index_by_name, distance, strict=True):
            if name in fixed.index_by_name and source in fixed.index_by_name:
                way = longest_path(fixed, source, name)
                assert steps <= (UNREACHABLE if way is None else way)
                assert placement.choices or steps == (UNREACHABLE if way is None else way)


def test_shorter_of_two_options_counts() -> None:
    placement = Placement(
        devices=1,
        blocks=tuple(
            Block(name=name, devices=(0,), span=span)
            for name, span in (("f", 2), ("joint", 5), ("input", 3), ("weight", 9), ("end", 1))
        ),
        edges=(
            Edge("f", "joint"),
            Edge("f", "input"),
            Edge("input", "weight"),
            Edge("joint", "end"),
            Edge("input", "end", 1),
        ),
        choices=(Choice("b", (("joint",), ("input", "weight"))),),
    )
    # By way of the input half the end starts at 2 + 3 + 1, by way of the joint block at 2 + 5.
    assert least_heads(precedence_of(placement)).tolist() == [0, 2, 2, 5, 6]
    assert least_tails(precedence_of(placement))[0] == 2 + min(5 + 1, 3 + 9)
