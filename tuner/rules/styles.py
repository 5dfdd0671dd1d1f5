"""The rules that backends use: TVM's own fusion, a library's calls, and fusion by anchor.

```
TVM native      OnlyValid(1 exit, no taps) ∘ Combine[anchor → broadcast, broadcast → reduction,
                injective → injective, tuple argument] ∘ every operator,  ∪  TVM's own groups
library         Union[Composite(label) ∘ Pattern …], grown by the library's fusion style
vertical        anchors in sequence           horizontal      equal anchors side by side
```
Source: TVM RFC 62 ("TVM native", "BYOC" rules; fusion styles). TVM's own groups follow `FuseOps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.kinds import PatternKind
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph, SubGraphLimits
from tuner.rules.combinators import OnlyValid, Union
from tuner.rules.combine import ByAnchor, ByKind, Combine, Combiner, Siblings, TupleArgument
from tuner.rules.pattern import LabelledPattern
from tuner.rules.protocol import Rule
from tuner.rules.single import OperatorByKind

DEFAULT_MAX_DEPTH = 4
"""Upstream's default depth; deeper groups come from TVM's own fusion."""

_MAX_PER_EXIT = 128
"""Above all that transformers, Swin (83) and mixtures of experts (56) have; unrolled scans have thousands."""

_TVM_KINDS: tuple[Combiner, ...] = (
    ByKind(PatternKind.ANCHOR, PatternKind.BROADCAST),
    ByKind(PatternKind.BROADCAST, PatternKind.REDUCTION),
    ByKind(PatternKind.INJECTIVE, PatternKind.INJECTIVE),
)

_TVM_COMBINERS: tuple[Combiner, ...] = (*_TVM_KINDS, TupleArgument())

_ANYTHING: tuple[Combiner, ...] = (ByKind(PatternKind.OPAQUE, PatternKind.OPAQUE),)

_ANYTHING_WITH_KERNEL: tuple[Combiner, ...] = (ByKind(PatternKind.ANCHOR, PatternKind.ANCHOR),)


class FusionStyle(StrEnum):
    """How a library's calls may be joined into one partition; upstream's "BYOC fusion style"."""

    NONE = "none"
    TVM = "tvm"
    ANY = "any"


def tvm_native_rule(
    max_depth: int = DEFAULT_MAX_DEPTH, *, groups: bool = True, published: bool = False
) -> Rule:
    """Return the rule of code that TVM generates: operators, what kinds allow to fuse, TVM's own groups.

    Args:
        max_depth: operators on the longest path of what kinds allow to fuse.
        groups: whether to add the groups of TVM's own fusion, however deep; without them `max_depth` bounds
            all candidates, as in the RFC.
        published: whether to reproduce the incomplete closure of the published implementations.
    """
    limits = SubGraphLimits(max_depth=max_depth)
    grown = Combine(
        rule=OperatorByKind("tvm", PatternKind.OPAQUE),
        combiners=_TVM_COMBINERS,
        max_depth=max_depth,
        within=None if published else limits,
        max_per_exit=None if published else _MAX_PER_EXIT,
        published=published,
    )
    by_kind = OnlyValid(grown, limits)
    return Union("tvm", (by_kind, TvmGroups())) if groups else by_kind


def library_rule(
    patterns: Sequence[LabelledPattern],
    style: FusionStyle = FusionStyle.NONE,
    *,
    name: str = "library",
    limits: SubGraphLimits | None = None,
    published: bool = False,
) -> Rule:
    """Return the rule of a library: one labelled candidate a match, grown where its style allows.

    Args:
        patterns: what the library has calls for; a call may cover several operators.
        style: `none` for libraries that run one call per partition (BLAS, cuDNN); `tvm` for those that fuse
            as TVM does (TensorRT); `any` where whatever touches may be joined.
        name: shown in reports.
        limits: what a candidate keeps within; one exit and no taps if None.
        published: whether to reproduce the incomplete closure of the published implementations, which join
            a library's calls by their kinds and never through a tuple.
    """
    limits = limits or SubGraphLimits()
    calls = Union(name, tuple(pattern.rule() for pattern in patterns))
    if style is FusionStyle.NONE:
        return OnlyValid(calls, limits)
    combiners = _TVM_COMBINERS if style is FusionStyle.TVM else _ANYTHING
    if published:
        combiners = _TVM_KINDS if style is FusionStyle.TVM else _ANYTHING_WITH_KERNEL
    max_depth = limits.max_depth or DEFAULT_MAX_DEPTH
    grown = Combine(rule=calls, combiners=combiners, max_depth=max_depth, published=published)
    return OnlyValid(grown, limits)


def vertical_rule(rule: Rule, *, max_anchors: int = 2, max_depth: int = 8) -> Rule:
    """Return the rule grown by joining anchors in sequence, such as the two products of attention."""
    limits = SubGraphLimits(max_depth=max_depth)
    grown = Combine(rule=rule, combiners=(ByAnchor(max_anchors),), max_depth=max_depth, within=limits)
    return OnlyValid(grown, limits)


def horizontal_rule(rule: Rule, *, max_group: int = 3, max_depth: int = DEFAULT_MAX_DEPTH) -> Rule:
    """Return the rule grown by joining equal operators that read one value, such as query, key and value.

    A group has as many exits as members, and is run as one function that returns a tuple.
    """
    limits = SubGraphLimits(max_exits=max_group, max_depth=max_depth)
    grown = Combine(rule=rule, combiners=(Siblings(max_group),), max_depth=max_depth, within=limits)
    return OnlyValid(grown, limits)


@dataclass(frozen=True, slots=True)
class TvmGroups:
    """Proposes the groups that TVM's own greedy fusion would form, however deep.

    An operator is fused into its immediate post-dominator where all on the way between them allow it: an
    anchor takes elementwise and broadcasting operators after it, injective ones take each other, and
    elementwise ones end in a reduction. With these, the mix is never worse than TVM's own fusion.

    Source: TVM's `FuseOps` (three phases over the post-dominator tree), written anew on this graph.
    """

    name: str = "tvm groups"

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield groups of two operators and more, by their smallest node."""
        groups = _Groups(graph)
        post_dominators = graph.post_dominators()
        for with_injective in (False, True):
            for index, sink in enumerate(post_dominators):
                if sink is not None:
                    _try_fuse(graph, groups, index, sink, with_injective=with_injective)
        for inside in groups.insides():
            sub_graph = SubGraph.of(graph, inside)
            if len(inside) > 1 and sub_graph.is_valid(graph, SubGraphLimits()):
                yield sub_graph


class _Groups:
    """Disjoint sets of nodes that only grow, each with the largest kind inside."""

    def __init__(self, graph: DataflowGraph) -> None:
        self._inside = [NodeSet.of([node.index]) for node in graph.nodes]
        self.kinds = [node.kind for node in graph.nodes]

    def join(self, indices: NodeSet) -> None:
        joined = NodeSet()
        for index in indices:
            joined |= self._inside[index]
        members = tuple(joined)
        kind = max(self.kinds[index] for index in members)
        for index in members:
            self._inside[index] = joined
            self.kinds[index] = kind

    def insides(self) -> Sequence[NodeSet]:
        return tuple(dict.fromkeys(self._inside))


def _try_fuse(graph: DataflowGraph, groups: _Groups, index: int, sink: int, *, with_injective: bool) -> None:
    """Join a node with its post-dominator and all between, where the kinds of their groups allow."""
    between = graph.descendants[index] & graph.ancestors[sink]
    largest_between = max((groups.kinds[member] for member in between), default=PatternKind.ELEMENTWISE)
    first, last = groups.kinds[index], groups.kinds[sink]
    if first is PatternKind.ANCHOR:
        allowed = max(largest_between, last) <= PatternKind.BROADCAST
    elif first <= PatternKind.BROADCAST:
        sink_kind = graph.nodes[sink].kind
        allowed = largest_between <= PatternKind.INJECTIVE and sink_kind <= PatternKind.REDUCTION
    else:
        allowed = with_injective and max(first, largest_between, last) <= PatternKind.INJECTIVE
    if allowed:
        groups.join(between | NodeSet.of([index, sink]))
