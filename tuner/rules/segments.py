"""A rule for libraries that run large contiguous sub-graphs in one call.

A graph's nodes in order are cut into pieces where few values cross and a new anchor or reduction begins;
every contiguous sub-graph of 1, 2, 4, … neighbouring pieces is proposed, and the entire graph, and what of it
lies between operators that the library is for: a classifier at a network's end, others may run. Consecutive
nodes of a topological order form a convex set, so each can run as one function; all values that leave it are
results. Checked in tests/tuner/rules/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_types import num_inputs_of
from tuner.graph.subgraph import SubGraph
from tuner.rules.protocol import Rule


@dataclass(frozen=True, slots=True)
class ContiguousSubgraphs:
    """Proposes contiguous sub-graphs of neighbouring pieces, in doubling sizes, and the entire graph.

    Attributes:
        name: shown in reports.
        operators: if given, the pieces from the first to the last that holds one of these are proposed, too.
        begins_at: the smallest kind of node that a piece may begin with.
        max_pieces: the largest number of smallest sub-graphs; longer graphs start from larger ones.
    """

    name: str
    operators: frozenset[str] = frozenset()
    begins_at: PatternKind = PatternKind.ANCHOR
    max_pieces: int = 64

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield sub-graphs from the smallest to the entire graph, then the one between operators."""
        order = graph.depth_first_order()
        pieces = list(self._pieces(graph, order))
        seen: set[NodeSet] = set()
        length = 1
        while length * self.max_pieces < len(pieces):
            length *= 2
        while length <= len(pieces):
            for first in range(0, len(pieces), length):
                inside = NodeSet.of(index for piece in pieces[first : first + length] for index in piece)
                if inside not in seen:
                    seen.add(inside)
                    yield SubGraph.of(graph, inside)
            length *= 2
        for inside in (graph.all_indices, self._between(graph, pieces)):
            if inside and inside not in seen:
                seen.add(inside)
                yield SubGraph.of(graph, inside)

    def _between(self, graph: DataflowGraph, pieces: Sequence[Sequence[int]]) -> NodeSet:
        """Return the pieces from the first to the last that holds one of the operators; none without any."""
        holding = [
            place
            for place, piece in enumerate(pieces)
            if not self.operators.isdisjoint(graph.operators_of(piece))
        ]
        between = pieces[holding[0] : holding[-1] + 1] if holding else ()
        return NodeSet.of(index for piece in between for index in piece)

    def _pieces(self, graph: DataflowGraph, order: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the pieces between cuts, in order."""
        crossing = _crossing(graph, order)
        start = 0
        for position in range(1, len(order)):
            kind = graph.nodes[order[position]].kind
            begins = self.begins_at <= kind < PatternKind.OPAQUE
            # A local minimum: no place beside it is crossed by fewer values.
            is_least = crossing[position] <= min(crossing[position - 1 : position + 2])
            if begins and is_least:
                yield order[start:position]
                start = position
        if order:
            yield order[start:]


@dataclass(frozen=True, slots=True)
class WithPackedWeights:
    """Proposes what a rule does where weights can be packed; elsewhere a long call gains nothing."""

    rule: Rule

    @property
    def name(self) -> str:
        """The name of the rule inside."""
        return self.rule.name

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the rule's sub-graphs, or nothing."""
        marked = graph.has_source and num_inputs_of(graph.source.function) is not None
        return self.rule.find_candidates(graph) if marked else ()


def _crossing(graph: DataflowGraph, order: Sequence[int]) -> list[int]:
    """Return for each position how many nodes before it are read at or after it."""
    place = {index: position for position, index in enumerate(order)}
    change = [0] * (len(order) + 1)
    for index in order:
        last = max((place[user] for user in graph.users[index]), default=place[index])
        change[place[index] + 1] += 1
        change[last + 1] -= 1
    crossing, open_values = [], 0
    for position in range(len(order)):
        open_values += change[position]
        crossing.append(open_values)
    return crossing
