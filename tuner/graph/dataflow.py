"""The data-flow graph of the partition search: numbered nodes, their inputs and their users.

A node is one operator call; numbers follow the order of the function's bindings, so that inputs come before
users. Tuples and projections are no nodes (see `tuner.graph.relax_source`), nor are parameters, constants and
shapes: they are inlined into their users. A graph can also be made from nodes alone, without a function
behind it, which is how the search is tested on random graphs in tests/tuner/partition/test_find_partition.py.

Source: TVM RFC 62 ("DataflowGraph", "PostDfsIndex"). There tuples, projections and constants are nodes too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tuner.graph.kinds import PatternKind, kind_of, short_name
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_source import RelaxSource, fields_of, read_function, value_producers, variables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call.

    Attributes:
        index: its number; inputs have smaller ones.
        operator: the operator's name without its dialect, such as `matmul`.
        kind: op-pattern kind.
        inputs: numbers of the nodes it reads, ascending, each once.
        tuple_inputs: those of them that it reads as fields of a tuple, such as what a `concat` joins.
        is_external: whether the function returns one of its values.
        name: name of the variable that the function binds it to.
        layer: path of the layer that it belongs to; empty where that is not known.
    """

    index: int
    operator: str
    kind: PatternKind
    inputs: tuple[int, ...]
    tuple_inputs: tuple[int, ...] = ()
    is_external: bool = False
    name: str = ""
    layer: str = ""


class DataflowGraph:
    """Nodes with their users, ancestors and descendants.

    Attributes:
        nodes: in order; `nodes[i].index == i`.
        users: for each node, the nodes that read it, ascending.
        ancestors: for each node, all nodes it depends on, itself excluded.
        descendants: for each node, all nodes that depend on it, itself excluded (upstream's `downstream`).
    """

    def __init__(self, nodes: Iterable[Node], source: RelaxSource | None = None) -> None:
        """Build the graph.

        Raises:
            ValueError: numbers are not 0, 1, 2, …, or a node reads one that does not come before it.
        """
        self.nodes = tuple(nodes)
        self._source = source
        _check_order(self.nodes)
        self.users = _users(self.nodes)
        self.ancestors = _closure(tuple(node.inputs for node in self.nodes), range(len(self.nodes)))
        self.descendants = _closure(self.users, reversed(range(len(self.nodes))))

    @classmethod
    def from_function(cls, module: Any, *, layers: Mapping[str, str] = MappingProxyType({})) -> DataflowGraph:
        """Read the function `main` of a module.

        Args:
            layers: path of its layer by name of a variable that the function binds.

        Raises:
            UnsupportedOperatorError: the function has control flow or several blocks.
        """
        return cls.from_relax(module["main"], module, layers=layers)

    @classmethod
    def from_relax(
        cls, function: Any, module: Any = None, *, layers: Mapping[str, str] = MappingProxyType({})
    ) -> DataflowGraph:
        """Read a Relax function, with the module that holds what it calls, if it calls functions."""
        source = read_function(module, function)
        producers = value_producers(source)
        external = {producers[result] for result in source.results if result in producers}
        nodes = []
        for index, call in enumerate(source.calls):
            name = str(function.body.blocks[0].bindings[source.binding_indices[index]].var.name)
            inputs = {producers[variable] for variable in variables_of(call) if variable in producers}
            fields = {producers[variable] for variable in fields_of(call) if variable in producers}
            nodes.append(
                Node(
                    index=index,
                    operator=short_name(call),
                    kind=kind_of(call, module),
                    inputs=tuple(sorted(inputs)),
                    tuple_inputs=tuple(sorted(fields)),
                    is_external=index in external,
                    name=name,
                    layer=layers.get(name, ""),
                )
            )
        return cls(nodes, source)

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def source(self) -> RelaxSource:
        """The function behind the graph.

        Raises:
            ValueError: the graph was made from nodes alone.
        """
        if self._source is None:
            raise ValueError(
                "this graph has no Relax function behind it; make it with DataflowGraph.from_function"
            )
        return self._source

    @property
    def has_source(self) -> bool:
        """Whether there is a function behind the graph."""
        return self._source is not None

    @property
    def all_indices(self) -> NodeSet:
        """The numbers of all nodes."""
        return NodeSet.first_numbers(len(self.nodes))

    def operators_of(self, indices: Iterable[int]) -> tuple[str, ...]:
        """Return the operators' names of nodes, in the order given."""
        return tuple(self.nodes[index].operator for index in indices)

    def result_shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of what a node computes; that of the first of several."""
        binding = self.source.function.body.blocks[0].bindings[self.source.binding_indices[index]]
        first = binding.var.ty.fields[0] if hasattr(binding.var.ty, "fields") else binding.var.ty
        return tuple(int(extent) for extent in first.shape)

    def layers_of(self, indices: Iterable[int]) -> str:
        """Return the layers that nodes belong to, each once, joined by ` + `; empty where none is known."""
        return " + ".join(
            dict.fromkeys(self.nodes[index].layer for index in indices if self.nodes[index].layer)
        )

    def with_layers(self, layers: Sequence[str]) -> DataflowGraph:
        """Return the graph with other paths of layers, one a node, as a function of equal structure has."""
        nodes = (replace(node, layer=layer) for node, layer in zip(self.nodes, layers, strict=True))
        return DataflowGraph(nodes, self._source)

    def is_convex(self, inside: NodeSet) -> bool:
        """Say whether no path leaves the set and comes back: it can then run as one function."""
        below = above = 0
        for index in inside:
            below |= self.descendants[index].bits
            above |= self.ancestors[index].bits
        return not below & above & ~inside.bits

    def renumbered(self, order: Sequence[int]) -> DataflowGraph:
        """Return the graph with its nodes in another order, in which inputs still come before users.

        It has no function behind it.

        Raises:
            ValueError: the order leaves a node out, repeats one or puts one before what it reads.
        """
        number = {old: new for new, old in enumerate(order)}
        if len(number) < len(self.nodes) or len(order) > len(self.nodes):
            raise ValueError(
                f"an order of {len(order)} nodes does not hold each of {len(self)} once; name them all"
            )
        return DataflowGraph(
            replace(
                self.nodes[old],
                index=new,
                inputs=tuple(sorted(number[source] for source in self.nodes[old].inputs)),
                tuple_inputs=tuple(sorted(number[source] for source in self.nodes[old].tuple_inputs)),
            )
            for new, old in enumerate(order)
        )

    def depth_first_order(self) -> tuple[int, ...]:
        """Return the nodes so that a branch is finished before the next begins (upstream's "post-DFS" order).

        Walks from the results, the first input first. However a model numbers its branches, few values are
        then waiting to be read at any place, which is what a search over covered sets needs.
        """
        ordered: dict[int, None] = {}
        for result in range(len(self.nodes)):
            if self.users[result] and not self.nodes[result].is_external:
                continue
            waiting = [result]
            while waiting:
                index = waiting[-1]
                unread = [source for source in self.nodes[index].inputs if source not in ordered]
                if unread and index not in ordered:
                    waiting.append(unread[0])
                else:
                    ordered.setdefault(waiting.pop())
        return tuple(ordered)

    def post_dominators(self) -> tuple[int | None, ...]:
        """Return for each node the nearest node that every path from it to a result goes through, or None.

        O(nodes × depth), after Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001); one
        pass settles an acyclic graph.
        """
        roots = [node.is_external or not self.users[node.index] for node in self.nodes]
        return _immediate_dominators(self.users, range(len(self.nodes) - 1, -1, -1), roots=roots)


def _check_order(nodes: Sequence[Node]) -> None:
    for position, node in enumerate(nodes):
        if node.index != position:
            raise ValueError(
                f"node number {node.index} is at position {position}; number nodes 0, 1, 2, … in order"
            )
        bad = [index for index in node.inputs if not 0 <= index < position]
        if bad:
            raise ValueError(
                f"node {position} reads node {bad[0]}, which does not come before it; sort the nodes"
            )


def _users(nodes: Sequence[Node]) -> tuple[tuple[int, ...], ...]:
    users: list[list[int]] = [[] for _ in nodes]
    for node in nodes:
        for index in node.inputs:
            users[index].append(node.index)
    return tuple(tuple(indices) for indices in users)


def _closure(neighbours: Sequence[Sequence[int]], order: Iterable[int]) -> tuple[NodeSet, ...]:
    """Return all nodes reachable from each, given an order in which neighbours come first."""
    reached = [0] * len(neighbours)
    for index in order:
        for neighbour in neighbours[index]:
            reached[index] |= reached[neighbour] | 1 << neighbour
    return tuple(NodeSet(bits) for bits in reached)


def _immediate_dominators(
    predecessors: Sequence[Sequence[int]], order: Sequence[int], *, roots: Sequence[bool]
) -> tuple[int | None, ...]:
    """Return immediate dominators below a virtual root that precedes every node marked in `roots`."""
    position = {index: number for number, index in enumerate(order)}
    dominators: list[int | None] = [None] * len(order)
    for index in order:
        if roots[index]:
            continue
        nearest: int | None = predecessors[index][0]
        for other in predecessors[index][1:]:
            nearest = _common_dominator(nearest, other, dominators, position)
        dominators[index] = nearest
    return tuple(dominators)


def _common_dominator(
    one: int | None, other: int | None, dominators: Sequence[int | None], position: dict[int, int]
) -> int | None:
    while one != other:
        if one is None or other is None:
            return None
        if position[one] > position[other]:
            one = dominators[one]
        else:
            other = dominators[other]
    return one
