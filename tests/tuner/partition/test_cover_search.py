"""The cover search equals exhaustive search, with circles, order-constraining options and transitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import networkx as nx
import pytest
from dataflow_samples import graph_of, graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.graph import DataflowGraph, NodeSet, SubGraph
from tuner.partition import cover_search
from tuner.partition.cover_bound import node_prices
from tuner.partition.cover_search import Cover, CoverProblem, Option, StuckError, search_cover


@st.composite
def problems(draw: st.DrawFn) -> tuple[DataflowGraph, CoverProblem]:
    """Draw a graph with options of two backends; each node alone can be covered, so that a cover exists."""
    graph = draw(graphs())
    everything = len(graph)
    insides = {(1 << index, 0) for index in range(everything)}
    for _ in range(draw(st.integers(0, 14))):
        members = draw(st.sets(st.integers(0, everything - 1), min_size=1, max_size=4))
        inside = NodeSet.of(members)
        if graph.is_convex(inside):
            insides.add((inside.bits, draw(st.integers(0, 1))))
    options = []
    for bits, backend in sorted(insides):
        sub_graph = SubGraph.of(graph, NodeSet(bits))
        cost = draw(st.integers(0, 12))
        options.append(Option(inside=bits, reads=sub_graph.input.bits, cost=cost, backend=backend))
    return graph, problem_of(graph, options, transition_cost=draw(st.sampled_from([0, 1, 3])))


def problem_of(graph: DataflowGraph, options: Sequence[Option], transition_cost: int = 0) -> CoverProblem:
    insides = [tuple(NodeSet(option.inside)) for option in options]
    return CoverProblem(
        ancestors=[each.bits for each in graph.ancestors],
        descendants=[each.bits for each in graph.descendants],
        users=[NodeSet.of(users).bits for users in graph.users],
        options=options,
        prices=node_prices(len(graph), insides, [option.cost for option in options]),
        transition_cost=transition_cost,
    )


def exact_covers(problem: CoverProblem, covered: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield every exact cover, runnable or not."""
    uncovered = [index for index in range(len(problem.prices)) if not covered >> index & 1]
    if not uncovered:
        yield ()
        return
    for number, option in enumerate(problem.options):
        if option.inside >> uncovered[0] & 1 and not option.inside & covered:
            for rest in exact_covers(problem, covered | option.inside):
                yield (number, *rest)


def can_run(graph: DataflowGraph, problem: CoverProblem, chosen: Sequence[int]) -> bool:
    """Say whether the parts can run in some order: whether the graph of parts has no circle."""
    owner = {index: number for number in chosen for index in NodeSet(problem.options[number].inside)}
    parts = nx.DiGraph()
    parts.add_nodes_from(chosen)
    parts.add_edges_from(
        (owner[source], owner[node.index])
        for node in graph.nodes
        for source in node.inputs
        if owner[source] != owner[node.index]
    )
    return nx.is_directed_acyclic_graph(parts)


def cost_of(graph: DataflowGraph, problem: CoverProblem, chosen: Sequence[int]) -> int:
    """Return the cost of a cover from its definition."""
    owner = {index: number for number in chosen for index in NodeSet(problem.options[number].inside)}
    transitions = {
        (source, owner[node.index])
        for node in graph.nodes
        for source in node.inputs
        if problem.options[owner[source]].backend != problem.options[owner[node.index]].backend
    }
    total = sum(problem.options[number].cost for number in chosen)
    return total + problem.transition_cost * len(transitions)


def cheapest(graph: DataflowGraph, problem: CoverProblem) -> int:
    runnable = [chosen for chosen in exact_covers(problem) if can_run(graph, problem, chosen)]
    return min(cost_of(graph, problem, chosen) for chosen in runnable)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_search_equals_exhaustive_search(case: tuple[DataflowGraph, CoverProblem]) -> None:
    graph, problem = case
    cover = search_cover(problem)
    assert can_run(graph, problem, cover.chosen)
    assert cover.cost == cost_of(graph, problem, cover.chosen) == cheapest(graph, problem)
    assert cover.lower_bound == cover.cost


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 3))
def test_search_with_raised_prices_equals_exhaustive_search(
    case: tuple[DataflowGraph, CoverProblem], rounded_states: int
) -> None:
    graph, problem = case
    lowered = replace(problem, prices=[price - 1 for price in problem.prices])  # as if rounded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover_search, "_ROUNDED_STATES", rounded_states)
        patch.setattr(cover_search, "_ROUNDED_STATES_A_NODE", 0)
        cover = search_cover(lowered)
    assert can_run(graph, problem, cover.chosen)
    assert cover.cost == cost_of(graph, problem, cover.chosen) == cheapest(graph, problem)
    assert cover.lower_bound == cover.cost


def test_what_rounding_took_from_prices_costs_no_proof() -> None:
    # Every product of six chains side by side is within what rounding took: each choice is equally good.
    chains, length = 6, 6
    reads = [(node - 1,) if node % length else () for node in range(chains * length)]
    graph = graph_of(reads)
    options = [
        Option(inside=1 << node, reads=sum(1 << each for each in reads[node]), cost=10, backend=0)
        for node in range(len(graph))
    ]
    for chain in range(chains - 1):
        for step in range(length):
            first = chain * length + step
            inside = 1 << first | 1 << first + length
            before = sum(1 << each for node in (first, first + length) for each in reads[node])
            options.append(Option(inside=inside, reads=before, cost=20, backend=0))
    lowered = replace(problem_of(graph, options), prices=[9] * len(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover_search, "_ROUNDED_STATES_A_NODE", 0)
        patch.setattr(cover_search, "_ROUNDED_STATES", 100)
        cover = search_cover(lowered, max_states=200)
        assert cover.cost == cover.lower_bound == 10 * len(graph)
        patch.setattr(cover_search, "_ROUNDED_STATES", 200)
        assert search_cover(lowered, max_states=200).states > 200


@settings(max_examples=40, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_another_numbering_gives_the_same_cost(
    case: tuple[DataflowGraph, CoverProblem], random: Random
) -> None:
    graph, problem = case
    number = renumbering(graph, random)
    renumbered = sorted(graph.nodes, key=lambda node: number[node.index])
    other = graph_of(
        [tuple(sorted(number[read] for read in node.inputs)) for node in renumbered],
        external=[number[node.index] for node in graph.nodes if node.is_external],
    )
    options = [
        replace(option, inside=moved(option.inside, number), reads=moved(option.reads, number))
        for option in problem.options
    ]
    found = search_cover(problem_of(other, options, problem.transition_cost))
    assert found.cost == search_cover(problem).cost


def renumbering(graph: DataflowGraph, random: Random) -> dict[int, int]:
    """Return new numbers in which inputs still come before users."""
    number: dict[int, int] = {}
    while len(number) < len(graph):
        ready = [
            node.index
            for node in graph.nodes
            if node.index not in number and all(read in number for read in node.inputs)
        ]
        number[random.choice(ready)] = len(number)
    return number


def moved(bits: int, number: dict[int, int]) -> int:
    return NodeSet.of(number[index] for index in NodeSet(bits)).bits


@settings(max_examples=30, deadline=None)
@given(problems())
def test_search_without_proof_still_covers_and_bounds(case: tuple[DataflowGraph, CoverProblem]) -> None:
    graph, problem = case
    cover = search_cover(problem, max_states=1, beam_width=1)
    assert can_run(graph, problem, cover.chosen)
    assert cover.cost == cost_of(graph, problem, cover.chosen)
    assert cover.lower_bound <= cheapest(graph, problem) <= cover.cost
    if not problem.transition_cost:
        assert cover.cost == cheapest(graph, problem)


def test_a_cover_that_the_beam_misses_is_found() -> None:
    # The beam keeps {0, 2}, which is cheaper than {0}, and then has nothing for 1, which only {1, 2} holds.
    graph = graph_of([(), (0,), (0,), (1, 2)])
    options = [
        Option(inside=0b0101, reads=0, cost=1, backend=0),
        Option(inside=0b0001, reads=0, cost=9, backend=0),
        Option(inside=0b0110, reads=0b0001, cost=9, backend=0),
        Option(inside=0b1000, reads=0b0110, cost=1, backend=0),
    ]
    problem = replace(problem_of(graph, options), prices=[0] * 4)
    assert search_cover(problem, max_states=1, beam_width=1).chosen == (1, 2, 3)


def test_an_integer_program_never_takes_options_that_wait_for_each_other() -> None:
    # Three pairs of chains; in each the two crossing options are the cheapest and cannot both run.
    chains = 3
    reads: list[tuple[int, ...]] = []
    options = []
    for chain in range(chains):
        first = 4 * chain
        reads += [(), (), (first, first + 1), (first, first + 1)]
        options += [
            Option(inside=1 << first + index, reads=inputs << first, cost=10, backend=0)
            for index, inputs in enumerate((0, 0, 3, 3))
        ]
        options += [
            Option(inside=0b0101 << first, reads=0b0010 << first, cost=1, backend=0),
            Option(inside=0b1010 << first, reads=0b0001 << first, cost=1, backend=0),
        ]
    graph = graph_of(reads)
    problem = replace(problem_of(graph, options), prices=[0] * len(graph))
    cover = search_cover(problem, max_states=1, beam_width=1)
    assert cover.cost == chains * 21


@settings(max_examples=30, deadline=None)
@given(problems())
def test_prices_never_exceed_an_option(case: tuple[DataflowGraph, CoverProblem]) -> None:
    _, problem = case
    for option in problem.options:
        assert sum(problem.prices[index] for index in NodeSet(option.inside)) <= option.cost


def test_two_convex_options_that_wait_for_each_other_are_never_chosen_together() -> None:
    # a1 = f(x); b1 = g(x); a2 = f2(a1, b1); b2 = g2(b1, a1)
    graph = graph_of([(), (), (0, 1), (0, 1)])
    options = [
        *(
            Option(inside=1 << index, reads=reads, cost=10, backend=0)
            for index, reads in enumerate((0, 0, 3, 3))
        ),
        Option(inside=0b0101, reads=0b0010, cost=1, backend=0),
        Option(inside=0b1010, reads=0b0001, cost=1, backend=0),
    ]
    cover = search_cover(problem_of(graph, options))
    assert cover.cost == 21
    assert sorted(cover.chosen) in ([0, 2, 5], [1, 3, 4])


def test_no_exact_cover_is_an_error_that_names_the_node() -> None:
    graph = graph_of([(), (0,), (1,)])
    options = [
        Option(inside=0b011, reads=0, cost=1, backend=0),
        Option(inside=0b110, reads=1, cost=1, backend=0),
    ]
    with pytest.raises(StuckError) as error:
        search_cover(problem_of(graph, options))
    assert error.value.node == 2


def test_progress_is_told() -> None:
    graph = graph_of([(index - 1,) if index else () for index in range(1200)])
    options = [Option(inside=1 << index, reads=0, cost=1, backend=0) for index in range(1200)]
    told: list[tuple[int, int]] = []
    cover: Cover = search_cover(problem_of(graph, options), on_progress=lambda *seen: told.append(seen))
    assert told == [(1000, 999)]
    assert cover.states == 1200
