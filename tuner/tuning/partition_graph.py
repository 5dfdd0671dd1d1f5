"""Graph of the sub-graphs of functions: one node an occurrence, inputs first.

Parts that cost nothing (a reshape that moves no data) are not nodes; what reads through one reads what it
reads. Checked in tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import networkx as nx

from tuner.graph import DataflowGraph
from tuner.partition.candidate import CandidatePartition
from tuner.plan import PartOccurrence
from tuner.tuning.partitioned_function import PartitionedFunction, PartKey, part_keys


def partition_graph(
    functions: Iterable[PartitionedFunction], position_of: Mapping[PartKey, int]
) -> tuple[PartOccurrence, ...]:
    """Return every occurrence of a sub-graph in the functions, in an order in which inputs come first.

    Args:
        functions: each has a graph of its own.
        position_of: where the plan lists each distinct sub-graph.
    """
    found: list[PartOccurrence] = []
    for function in functions:
        graph, chosen = function.priced.graph, function.partition.chosen
        keys = part_keys(function)
        reads = _reads(graph, chosen)
        number_of: dict[int, int] = {}
        for part in _in_order(chosen, reads):
            key = keys[part]
            if key is None:
                continue
            number_of[part] = len(found)
            found.append(
                PartOccurrence(
                    part=position_of[key],
                    function=function.priced.name,
                    layers=tuple(graph.nodes[index].layer for index in chosen[part].sub_graph.inside),
                    inputs=tuple(sorted(number_of[each] for each in _sources(part, reads, keys))),
                )
            )
    return tuple(found)


def _reads(graph: DataflowGraph, chosen: tuple[CandidatePartition, ...]) -> dict[int, set[int]]:
    """Return for each part the others that it reads."""
    owner = {index: number for number, part in enumerate(chosen) for index in part.sub_graph.inside}
    return {
        number: {owner[source] for index in part.sub_graph.inside for source in graph.nodes[index].inputs}
        - {number}
        for number, part in enumerate(chosen)
    }


def _in_order(chosen: tuple[CandidatePartition, ...], reads: Mapping[int, set[int]]) -> list[int]:
    """Return the parts in an order in which inputs come first, else by their first operators."""
    between = nx.DiGraph()
    between.add_nodes_from(reads)
    between.add_edges_from((source, part) for part, sources in reads.items() for source in sources)
    first = {number: min(part.sub_graph.inside) for number, part in enumerate(chosen)}
    return list(nx.lexicographical_topological_sort(between, key=lambda part: first[part]))


def _sources(part: int, reads: Mapping[int, set[int]], keys: tuple[PartKey | None, ...]) -> set[int]:
    """Return the parts that one reads, through those that cost nothing."""
    found: set[int] = set()
    left, seen = list(reads[part]), set(reads[part])
    while left:
        each = left.pop()
        if keys[each] is not None:
            found.add(each)
            continue
        left += reads[each] - seen
        seen |= reads[each]
    return found
