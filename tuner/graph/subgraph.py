"""A sub-graph: a set of nodes that may run as one function, with the properties that determine its validity.

```
        inputs: outside nodes that are read        x
        entry:  inside nodes that read outside     ├─ a ─┐     inside  {a, b, c}
        exit:   inside nodes that are read         └─ b ─┴─ c  entry   {a, b}    exit {c}
                outside, or returned                     │     output  {d}       depth 2
        output: outside nodes that read inside           d
```
Depth counts the operators on the longest path inside: 1 for a single node, n for a chain of n. A *tap* is an
exit that is also read inside. A sub-graph is *valid* where it is convex and within `SubGraphLimits`.

Source: TVM RFC 62 ("SubGraph"). Checked in tests/tuner/graph/test_subgraph.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet

if TYPE_CHECKING:
    from tuner.graph.dataflow import DataflowGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGraphLimits:
    """What a valid sub-graph keeps within.

    Attributes:
        max_exits: how many inside nodes may be read from outside.
        max_depth: how many operators the longest path inside may have; None for any number.
        allow_taps: whether an exit may also be read inside.
    """

    max_exits: int = 1
    max_depth: int | None = None
    allow_taps: bool = False

    def __post_init__(self) -> None:
        if self.max_exits < 1:
            raise ValueError(
                f"max_exits is {self.max_exits}, but what is computed must leave; allow at least 1"
            )
        if self.max_depth is not None and self.max_depth < 1:
            raise ValueError(f"max_depth is {self.max_depth}, but one operator has depth 1; allow at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGraph:
    """Nodes that may run together. Two are equal where nodes, label and nested sub-graphs are.

    Attributes:
        label: what a composite rule calls it, such as `linear_relu`; empty for none.
        nested: labelled sub-graphs inside it that a library runs by one call each; pairwise disjoint.
        entry: inside nodes that read outside nodes, parameters or nothing at all.
        exit: inside nodes that outside nodes read or that are results.
        input: outside nodes that inside nodes read.
        output: outside nodes that read inside nodes.
        taps: exits that inside nodes read too.
        depth: operators on the longest path inside.
        kind: the largest op-pattern kind inside.
    """

    inside: NodeSet
    label: str = ""
    nested: tuple[SubGraph, ...] = ()
    entry: NodeSet = field(compare=False)
    exit: NodeSet = field(compare=False)
    input: NodeSet = field(compare=False)
    output: NodeSet = field(compare=False)
    taps: NodeSet = field(compare=False)
    depth: int = field(compare=False)
    kind: PatternKind = field(compare=False)

    @classmethod
    def of(
        cls, graph: DataflowGraph, inside: NodeSet, *, label: str = "", nested: tuple[SubGraph, ...] = ()
    ) -> SubGraph:
        """Return the sub-graph of the given nodes. O(nodes and edges inside).

        Raises:
            ValueError: there are no nodes, or nested sub-graphs overlap or lie outside.
        """
        if not inside or not inside.is_subset(graph.all_indices):
            raise ValueError(
                f"{inside} is not a set of nodes of a graph of {len(graph)}; give at least one of its nodes"
            )
        _check_nested(inside, nested)
        entry = exit_ = input_ = output = taps = 0
        depth: dict[int, int] = {}
        for index in inside:
            node = graph.nodes[index]
            read_outside = [source for source in node.inputs if source not in inside]
            users_outside = [user for user in graph.users[index] if user not in inside]
            input_ |= NodeSet.of(read_outside).bits
            output |= NodeSet.of(users_outside).bits
            depth[index] = 1 + max((depth[source] for source in node.inputs if source in inside), default=0)
            if read_outside or not node.inputs:
                entry |= 1 << index
            if users_outside or node.is_external:
                exit_ |= 1 << index
                if len(users_outside) < len(graph.users[index]):
                    taps |= 1 << index
        return cls(
            inside=inside,
            label=label,
            nested=nested,
            entry=NodeSet(entry),
            exit=NodeSet(exit_),
            input=NodeSet(input_),
            output=NodeSet(output),
            taps=NodeSet(taps),
            depth=max(depth.values()),
            kind=max(graph.nodes[index].kind for index in inside),
        )

    def invalid_reason(self, graph: DataflowGraph, limits: SubGraphLimits) -> str | None:
        """Say in one sentence why it cannot be a partition within the limits; None where it can."""
        if len(self.exit) > limits.max_exits:
            return f"{len(self.exit)} nodes leave it, more than the {limits.max_exits} allowed"
        if limits.max_depth is not None and self.depth > limits.max_depth:
            return f"its depth is {self.depth}, more than the {limits.max_depth} allowed"
        if self.taps and not limits.allow_taps:
            return f"node {self.taps.first} is read both inside and outside, and taps are not allowed"
        if not graph.is_convex(self.inside):
            return "a path leaves it and comes back, so that it would wait for itself"
        return None

    def is_valid(self, graph: DataflowGraph, limits: SubGraphLimits) -> bool:
        """Say whether it can be a partition within the limits."""
        return self.invalid_reason(graph, limits) is None

    def is_disjoint(self, other: SubGraph) -> bool:
        """Say whether no node is in both."""
        return self.inside.is_disjoint(other.inside)

    def reads_field_of(self, graph: DataflowGraph, producer: SubGraph) -> bool:
        """Say whether it reads a value of another sub-graph as a field of a tuple."""
        nodes = graph.nodes
        return any(source in producer.inside for index in self.entry for source in nodes[index].tuple_inputs)

    def union(self, graph: DataflowGraph, other: SubGraph) -> SubGraph:
        """Return the union of two disjoint sub-graphs; what was labelled becomes nested.

        Raises:
            ValueError: they share nodes.
        """
        if not self.is_disjoint(other):
            raise ValueError(
                f"{self.inside} and {other.inside} share nodes; only disjoint sub-graphs have a union"
            )
        nested = sorted((*self.as_nested(), *other.as_nested()), key=lambda sub_graph: sub_graph.inside)
        return SubGraph.of(graph, self.inside | other.inside, nested=tuple(nested))

    def with_label(self, graph: DataflowGraph, label: str) -> SubGraph:
        """Return the same nodes wrapped under a label; a label it had becomes nested."""
        return SubGraph.of(graph, self.inside, label=label, nested=self.as_nested())

    def as_nested(self) -> tuple[SubGraph, ...]:
        """Return what a larger sub-graph nests of it: itself where it has a label, or what it nests."""
        return (self,) if self.label else self.nested


def _check_nested(inside: NodeSet, nested: tuple[SubGraph, ...]) -> None:
    seen = NodeSet()
    for sub_graph in nested:
        if not sub_graph.inside.is_subset(inside) or not sub_graph.inside.is_disjoint(seen):
            raise ValueError(
                f"nested sub-graph {sub_graph.inside} overlaps another or leaves {inside}; nest disjoint "
                "parts"
            )
        seen |= sub_graph.inside
