"""The interface of a partition rule: a function from a data-flow graph to candidate sub-graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph


class Rule(Protocol):
    """Proposes sub-graphs; combinators build rules from rules (TVM RFC 62, "Partition rules")."""

    @property
    def name(self) -> str:
        """Name shown in reports."""
        ...

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the sub-graphs it proposes, each at most once, in an order fixed by the graph alone."""
        ...
