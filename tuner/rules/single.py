"""Rules that propose one operator at a time: the seeds that combinators grow larger candidates from.

Source: TVM RFC 62 ("OpCallByKindPartitionRule", "OpPredicatePartitionRule", "HostPartitionRule").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tuner.graph.bound_values import bound_nodes
from tuner.graph.dataflow import DataflowGraph, Node
from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph

FREE_OPERATORS = frozenset({"shape_of", "shape_to_tensor", "size", "tensor_to_shape"})
"""Operators that the virtual machine runs itself, without a kernel."""

_LAYOUTS = frozenset({"astype", "expand_dims", "permute_dims", "reshape", "squeeze"})
"""Operators that store a tensor another way; weights are laid out and widened once, where they are bound."""


@dataclass(frozen=True, slots=True)
class OperatorByPredicate:
    """Proposes every operator that a predicate accepts.

    Attributes:
        name: shown in reports.
        accepts: says whether to propose a node.
    """

    name: str
    accepts: Callable[[Node], bool]

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph an accepted operator, in order."""
        for node in graph.nodes:
            if self.accepts(node):
                yield SubGraph.of(graph, NodeSet.of([node.index]))


@dataclass(frozen=True, slots=True)
class OperatorByKind:
    """Proposes every operator that is not opaque; upstream's `OpCallByKind`."""

    name: str = "operator"
    largest: PatternKind = PatternKind.ANCHOR

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph an operator of at most the largest kind, in order."""
        return OperatorByPredicate(self.name, lambda node: node.kind <= self.largest).find_candidates(graph)


@dataclass(frozen=True, slots=True)
class HostRule:
    """Proposes what costs nothing and needs no lowering: shapes, and weights stored another way."""

    name: str = "host"

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph a host operator, in order."""
        bound = bound_nodes(graph)

        def is_free(node: Node) -> bool:
            return node.operator in FREE_OPERATORS or (node.operator in _LAYOUTS and node.index in bound)

        return OperatorByPredicate(self.name, is_free).find_candidates(graph)
