"""Least distances between blocks of one micro-batch, whatever options its choices take.

The distance from block a to block b is the fewest steps from the start of a to the start of b if both are
run. Where a choice lies between them, the shortest of its options counts, so that the numbers are bounds for
every combination without trying them all; O(blocks + edges). Checked in
tests/tessel/search/model/test_distances.py against every combination.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

import networkx as nx

from tessel.placement import Placement


def least_distances_from_start(placement: Placement) -> list[int]:
    """Return, by block, the least steps from the start of its micro-batch to its start."""
    distance = _longest(placement, *_forwards(placement), None)
    return [max(distance[block.name] or 0, 0) for block in placement.blocks]


def least_distances_to_end(placement: Placement) -> list[int]:
    """Return, by block, the least steps from its start to the end of its micro-batch."""
    graph = placement.graph
    outgoing = {
        name: [(target, placement.block(name).span + data["lag"]) for target, data in graph.adj[name].items()]
        for name in graph
    }
    order = list(reversed(list(nx.topological_sort(graph))))
    least = {block.name: block.span for block in placement.blocks}
    distance = _longest(placement, order, outgoing, None, least)
    return [distance[block.name] or 0 for block in placement.blocks]


def least_distances_from(placement: Placement, source: str) -> dict[str, int]:
    """Return the least steps from the start of `source` to the start of each block that must follow it."""
    distance = _longest(placement, *_forwards(placement), source)
    return {name: steps for name, steps in distance.items() if steps is not None}


_Hops = Mapping[str, list[tuple[str, int]]]


# The bounds ask for the distances from one block after the other.
@lru_cache(maxsize=4)
def _forwards(placement: Placement) -> tuple[tuple[str, ...], _Hops]:
    """Return the blocks in topological order, and those before each with the delay from start to start."""
    graph = placement.graph
    incoming = {
        name: [(source, placement.block(source).span + data["lag"]) for source, data in neighbours.items()]
        for name, neighbours in graph.pred.items()
    }
    return tuple(nx.topological_sort(graph)), incoming


def _longest(
    placement: Placement,
    order: Iterable[str],
    hops: _Hops,
    source: str | None,
    least: Mapping[str, int] | None = None,
) -> dict[str, int | None]:
    """Longest distances along `hops`; None where nothing says that a block must follow `source`.

    Without a source every block starts with its `least`, or 0.
    """
    place = {
        name: (choice_index, option_index)
        for choice_index, choice in enumerate(placement.choices)
        for option_index, option in enumerate(choice.options)
        for name in option
    }
    distance: dict[str, int | None] = {}
    for name in order:
        base = 0 if name == source else None
        if source is None:
            base = 0 if least is None else least[name]
        own = place.get(name)
        found = [base]
        by_choice: dict[int, dict[int, list[int | None]]] = defaultdict(lambda: defaultdict(list))
        for neighbour, delay in hops[name]:
            known = distance[neighbour]
            value = None if known is None else known + delay
            there = place.get(neighbour)
            if there is None or there == own:
                found.append(value)
            elif own is None or there[0] != own[0]:
                by_choice[there[0]][there[1]].append(value)
        for choice_index, by_option in by_choice.items():
            found.append(_least_of_options(by_option, len(placement.choices[choice_index].options)))
        distance[name] = _most(found)
    return distance


def _least_of_options(by_option: Mapping[int, list[int | None]], num_options: int) -> int | None:
    """An option without an edge, or without a way from the source, says nothing at all."""
    if len(by_option) < num_options:
        return None
    values = [_most(values) for values in by_option.values()]
    return None if None in values else min(value for value in values if value is not None)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
