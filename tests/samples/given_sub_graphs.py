"""A rule that proposes what it was told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph


@dataclass(frozen=True, slots=True)
class GivenSubGraphs:
    """Proposes exactly the given sets of nodes."""

    name: str
    insides: tuple[NodeSet, ...]

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph a set, in the order given."""
        return (SubGraph.of(graph, inside) for inside in self.insides)
