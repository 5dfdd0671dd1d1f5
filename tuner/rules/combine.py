"""Grow larger candidates by joining an upstream and a downstream one, until nothing new appears.

A *combiner* says which two may be joined. The closure here is complete: every pair is tried in both roles.
The published implementation joins an upstream candidate only in the round after it was found, and only where
the depths of both add up to no more than the limit, and so misses joins of branches that meet in a later node
(on the GPT-2 fragment of the tests 29 sets instead of 31). A tuple is a node of its own there, so that what
makes a field and what reads the tuple do not touch and are joined by `TupleArgument` alone; here they touch.
`published=True` reproduces both, for comparison.

Source: TVM RFC 62 ("CombinePartitionRule", "SimpleCombinerRule"). Fusion by anchor was planned there, never
written. Checked in tests/tuner/rules/test_combine.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Protocol

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet
from tuner.graph.relax_source import variables_of
from tuner.graph.subgraph import SubGraph, SubGraphLimits
from tuner.rules.protocol import Rule


class Combiner(Protocol):
    """Says which sub-graphs may be joined into one."""

    def may_join(self, graph: DataflowGraph, upstream: SubGraph, downstream: SubGraph) -> bool:
        """Say whether a sub-graph may be joined with one that reads it."""
        ...

    def find_groups(self, graph: DataflowGraph, found: Sequence[SubGraph]) -> Iterable[tuple[SubGraph, ...]]:
        """Yield groups to join at once that no sequence of joins in pairs would reach."""
        ...


@dataclass(frozen=True, slots=True)
class ByKind:
    """Joins where the upstream's kind and the downstream's kind are each at most the given ones."""

    upstream: PatternKind
    downstream: PatternKind

    def may_join(self, graph: DataflowGraph, upstream: SubGraph, downstream: SubGraph) -> bool:
        """Say whether both kinds are small enough."""
        return upstream.kind <= self.upstream and downstream.kind <= self.downstream

    def find_groups(self, graph: DataflowGraph, found: Sequence[SubGraph]) -> Iterable[tuple[SubGraph, ...]]:
        """Yield nothing: kinds are about pairs."""
        return ()


@dataclass(frozen=True, slots=True)
class ByAnchor:
    """Joins anchors in sequence, such as the products of attention and its softmax (vertical fusion).

    Attributes:
        max_anchors: how many anchors the union may hold.
    """

    max_anchors: int = 2

    def may_join(self, graph: DataflowGraph, upstream: SubGraph, downstream: SubGraph) -> bool:
        """Say whether the union holds few enough anchors and nothing opaque."""
        if max(upstream.kind, downstream.kind) > PatternKind.ANCHOR:
            return False
        anchors = [
            graph.nodes[index].kind is PatternKind.ANCHOR for index in upstream.inside | downstream.inside
        ]
        return sum(anchors) <= self.max_anchors

    def find_groups(self, graph: DataflowGraph, found: Sequence[SubGraph]) -> Iterable[tuple[SubGraph, ...]]:
        """Yield nothing: sequences are made of pairs."""
        return ()


@dataclass(frozen=True, slots=True)
class TupleArgument:
    """Joins an injective operator with the producers of all fields of its tuple argument at once.

    Producers are injective at most, and disjoint: a field that two candidates make is joined through either,
    never through both.
    """

    max_fields: int = 4

    def may_join(self, graph: DataflowGraph, upstream: SubGraph, downstream: SubGraph) -> bool:
        """Say no: fields are joined together."""
        return False

    def find_groups(self, graph: DataflowGraph, found: Sequence[SubGraph]) -> Iterable[tuple[SubGraph, ...]]:
        """Yield each combination of disjoint producers with their reader."""
        leaving = defaultdict(list)
        for sub_graph in found:
            if sub_graph.kind <= PatternKind.INJECTIVE and len(sub_graph.exit) == 1:
                leaving[sub_graph.exit.first].append(sub_graph)
        for reader in found:
            node = graph.nodes[reader.inside.first]
            if len(reader.inside) != 1 or node.operator not in ("concat", "stack"):
                continue
            if 1 < len(node.inputs) <= self.max_fields:
                for producers in product(*(leaving[index] for index in node.inputs)):
                    if _are_disjoint(producers):
                        yield (*producers, reader)


@dataclass(frozen=True, slots=True)
class Siblings:
    """Joins equal operators that read a common value and not each other (horizontal fusion).

    Attributes:
        max_group: how many to join at once.
    """

    max_group: int = 3

    def may_join(self, graph: DataflowGraph, upstream: SubGraph, downstream: SubGraph) -> bool:
        """Say no: siblings do not read each other."""
        return False

    def find_groups(self, graph: DataflowGraph, found: Sequence[SubGraph]) -> Iterable[tuple[SubGraph, ...]]:
        """Yield groups of two and more siblings, in order of their smallest nodes."""
        families: dict[tuple[object, tuple[str, ...]], list[SubGraph]] = defaultdict(list)
        for sub_graph in found:
            if len(sub_graph.exit) > 1:
                continue  # joined siblings; their members are joined with further ones directly
            for value in _values_read(graph, sub_graph):
                families[value, graph.operators_of(sub_graph.inside)].append(sub_graph)
        for family in families.values():
            for size in range(2, min(self.max_group, len(family)) + 1):
                for group in combinations(family, size):
                    if _are_disjoint(group):
                        yield group


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """The closure of a rule under combiners.

    Attributes:
        rule: proposes what to start from; that is proposed too.
        combiners: what may be joined.
        max_depth: depth of the deepest sub-graph proposed.
        within: where given, only sub-graphs within these limits are kept on the way. With one exit and no
            taps that loses nothing that `OnlyValid` would keep (such a sub-graph can always be grown from its
            exit, one producer at a time, through others of its kind), and makes the closure small.
        max_per_exit: how many joined sub-graphs may leave through the same nodes, the smallest first; None
            for any number. Trees of operators have exponentially many: those of a `stack` of the twelve steps
            of a scan are 24,584 of depth 4.
        published: whether to reproduce the incomplete closure of the published implementations.
    """

    rule: Rule
    combiners: tuple[Combiner, ...]
    max_depth: int
    within: SubGraphLimits | None = None
    max_per_exit: int | None = None
    published: bool = False

    @property
    def name(self) -> str:
        """The name of the rule inside."""
        return self.rule.name

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the rule's sub-graphs, then the joined ones in rounds."""
        return _Closure(graph, self).find()


class _Closure:
    """The sub-graphs found so far, by the nodes they hold."""

    def __init__(self, graph: DataflowGraph, combine: Combine) -> None:
        self._graph = graph
        self._combine = combine
        self._limits = combine.within or SubGraphLimits(
            max_exits=max(len(graph), 1), max_depth=combine.max_depth, allow_taps=True
        )
        self._found: list[SubGraph] = []
        self._tried: set[tuple[int, tuple[SubGraph, ...]]] = set()
        self._holding: dict[int, list[SubGraph]] = defaultdict(list)
        self._single: dict[int, list[SubGraph]] = defaultdict(list)
        self._grows_by_nodes = False
        self._num_leaving: Counter[NodeSet] = Counter()

    def find(self) -> Sequence[SubGraph]:
        for sub_graph in self._combine.rule.find_candidates(self._graph):
            self._add(sub_graph)
        self._grows_by_nodes = _is_closed_by_nodes(self._combine, self._found)
        for sub_graph in self._found:
            self._single[sub_graph.inside.first].append(sub_graph)
        first_new = 0
        while first_new < len(self._found):
            new = self._found[first_new:]
            first_new = len(self._found)
            for group in list(self._groups(new)):
                self._join(group)
        return self._found

    def _groups(self, new: Sequence[SubGraph]) -> Iterator[tuple[SubGraph, ...]]:
        """Yield what may be joined in this round: pairs with a new member, and larger groups."""
        if self._combine.published:
            yield from self._published_pairs(new)
        elif self._grows_by_nodes:
            yield from self._pairs_with_a_node(new)
        else:
            yield from self._pairs(new)
        for combiner in self._combine.combiners:
            yield from combiner.find_groups(self._graph, self._found)

    def _pairs(self, new: Sequence[SubGraph]) -> Iterator[tuple[SubGraph, SubGraph]]:
        """Yield each pair with a new member, in either role."""
        for sub_graph in new:
            for reader in self._neighbours(sub_graph, sub_graph.output):
                if self._may_join(sub_graph, reader):
                    yield sub_graph, reader
            for producer in self._neighbours(sub_graph, sub_graph.input):
                if self._may_join(producer, sub_graph):
                    yield producer, sub_graph

    def _pairs_with_a_node(self, new: Sequence[SubGraph]) -> Iterator[tuple[SubGraph, SubGraph]]:
        """Yield each new sub-graph with each single node that it reads."""
        for sub_graph in new:
            for index in sub_graph.input:
                for producer in self._single[index]:
                    if self._may_join(producer, sub_graph):
                        yield producer, sub_graph

    def _published_pairs(self, new: Sequence[SubGraph]) -> Iterator[tuple[SubGraph, SubGraph]]:
        """Yield new sub-graphs with those that are entered where they are read, if their depths sum up."""
        for upstream in new:
            for downstream in self._neighbours(upstream, upstream.output):
                if (
                    not downstream.entry.is_disjoint(upstream.output)
                    and upstream.depth + downstream.depth <= self._combine.max_depth
                    and not downstream.reads_field_of(self._graph, upstream)
                    and self._may_join(upstream, downstream)
                ):
                    yield upstream, downstream

    def _neighbours(self, sub_graph: SubGraph, border: NodeSet) -> Iterator[SubGraph]:
        """Yield each sub-graph that holds a node of the border and none of the sub-graph, once."""
        seen: set[int] = set()
        for index in border:
            for other in self._holding[index]:
                if id(other) not in seen and other.is_disjoint(sub_graph):
                    seen.add(id(other))
                    yield other

    def _may_join(self, upstream: SubGraph, downstream: SubGraph) -> bool:
        return any(
            combiner.may_join(self._graph, upstream, downstream) for combiner in self._combine.combiners
        )

    def _join(self, group: Sequence[SubGraph]) -> None:
        inside = NodeSet()
        for sub_graph in group:
            inside |= sub_graph.inside
        nested = tuple(part for sub_graph in group for part in sub_graph.as_nested())
        nested = tuple(sorted(nested, key=lambda part: part.inside))
        if (inside.bits, nested) in self._tried:
            return
        self._tried.add((inside.bits, nested))
        joined = SubGraph.of(self._graph, inside, nested=nested)
        limit = self._combine.max_per_exit
        if limit is not None and self._num_leaving[joined.exit] >= limit:
            return
        if joined.depth <= self._combine.max_depth and joined.is_valid(self._graph, self._limits):
            self._add(joined)

    def _add(self, sub_graph: SubGraph) -> None:
        self._tried.add((sub_graph.inside.bits, sub_graph.nested))
        self._found.append(sub_graph)
        self._num_leaving[sub_graph.exit] += 1
        for index in sub_graph.inside:
            self._holding[index].append(sub_graph)


def _is_closed_by_nodes(combine: Combine, start: Sequence[SubGraph]) -> bool:
    """Say whether joining single nodes upstream finds all that joining larger sub-graphs would.

    So it is by kinds, within one exit and without taps: take the nodes of a sub-graph from its exit upwards,
    each after its readers and the largest kind as late as that allows. All sets on the way have one exit.
    """
    limits = combine.within
    return (
        limits is not None
        and limits.max_exits == 1
        and not limits.allow_taps
        and all(isinstance(each, ByKind | TupleArgument) for each in combine.combiners)
        and all(len(each.inside) == 1 for each in start)
    )


def _are_disjoint(sub_graphs: Sequence[SubGraph]) -> bool:
    union = NodeSet()
    for sub_graph in sub_graphs:
        if not sub_graph.inside.is_disjoint(union):
            return False
        union |= sub_graph.inside
    return True


def _values_read(graph: DataflowGraph, sub_graph: SubGraph) -> Sequence[object]:
    """Return what a sub-graph reads from outside, parameters of the function included where it has one."""
    if not graph.has_source:
        return tuple(sub_graph.input)
    source = graph.source
    made = {value for index in sub_graph.inside for value in source.values[index]}
    read = dict.fromkeys(
        variable for index in sub_graph.inside for variable in variables_of(source.calls[index])
    )
    return tuple(variable for variable in read if variable not in made)
