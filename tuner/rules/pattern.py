"""Rules by data-flow pattern: every match of a pattern of Relax operators.

Matches may overlap: which of them is used is for the search to decide. (TVM's own `FuseOpsByPattern` keeps
the first match and never reconsiders.) What a wildcard matches is outside; calls and projections that the
pattern spells out are inside.

Source: TVM RFC 62 ("DFPatternPartitionRule"); patterns are TVM's `relax.dpl`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.dpl import AttrPattern, CallPattern, ExprPattern, OrPattern, TupleGetItemPattern

from tuner.graph.bound_values import bound_values
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph
from tuner.rules.combinators import Composite

DFPattern: TypeAlias = Any
"""A `tvm.relax.dpl.DFPattern`; TVM ships no types."""

Match: TypeAlias = Mapping[DFPattern, Any]
"""What each part of a pattern matched."""


@dataclass(frozen=True, slots=True)
class PatternRule:
    """Proposes the nodes inside each match of a pattern.

    Attributes:
        name: shown in reports.
        pattern: ends in an operator call.
        accepts: says whether a match will do; every match if None.
        given: a part of the pattern that must be a parameter, or be made of weights alone; not one that is
            only transposed, which the pattern that spells the transposition out matches too.
    """

    name: str
    pattern: DFPattern
    accepts: Callable[[Match], bool] | None = None
    given: DFPattern | None = None

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield one sub-graph a match, in order of the match's last node; O(nodes × size of the pattern)."""
        values, node_of = _values(graph), _node_by_expression(graph)
        roots = _root_operators(self.pattern)
        seen: set[NodeSet] = set()
        for operator, call in _bound_calls(graph):
            if roots is not None and operator not in roots:
                continue
            match = self.pattern.extract_matched_expr(call, values)
            if match is None or (self.accepts is not None and not self.accepts(match)):
                continue
            if self.given is not None and not _is_given(match[self.given], graph, values):
                continue
            inside = _inside(match, node_of)
            if inside and inside not in seen:
                seen.add(inside)
                yield SubGraph.of(graph, inside)


@dataclass(frozen=True, slots=True)
class LabelledPattern:
    """A pattern together with the name of the library call that runs it."""

    label: str
    pattern: DFPattern
    accepts: Callable[[Match], bool] | None = None
    given: DFPattern | None = None

    def rule(self) -> Composite:
        """Return the rule that proposes its matches under its label."""
        return Composite(self.label, PatternRule(self.label, self.pattern, self.accepts, self.given))


def _is_given(expression: Any, graph: DataflowGraph, values: Mapping[Any, Any]) -> bool:
    """Say whether a matched expression is a parameter or made of weights alone, and no mere transposition."""
    if not isinstance(expression, relax.DataflowVar | relax.Call):
        return True
    call = values[expression] if isinstance(expression, relax.DataflowVar) else expression
    if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.permute_dims"):
        return False
    return any(value in values and values[value].same_as(call) for value in bound_values(graph))


@functools.lru_cache(maxsize=8)  # each pattern of each backend asks
def _values(graph: DataflowGraph) -> Mapping[Any, Any]:
    """Return what each variable of a graph's function is bound to."""
    values: Mapping[Any, Any] = relax.analysis.get_var2val(graph.source.function)
    return values


@functools.lru_cache(maxsize=8)
def _bound_calls(graph: DataflowGraph) -> Sequence[tuple[str, Any]]:
    """Return a graph's calls in order, each with the name of its operator; empty for what is none."""
    return tuple((_operator(call.op), call) for call in graph.source.bound_calls)


def _operator(expression: Any) -> str:
    return str(expression.name) if isinstance(expression, tvm.ir.Op) else ""


def _root_operators(pattern: DFPattern) -> frozenset[str] | None:
    """Return the operators that what a pattern matches may end in; None where it does not say."""
    if isinstance(pattern, OrPattern):
        left, right = _root_operators(pattern.left), _root_operators(pattern.right)
        return None if left is None or right is None else left | right
    if isinstance(pattern, AttrPattern):
        return _root_operators(pattern.pattern)
    if not isinstance(pattern, CallPattern) or not isinstance(pattern.op, ExprPattern):
        return None
    operator = _operator(pattern.op.expr)
    return frozenset({operator}) if operator else None


@functools.lru_cache(maxsize=8)
def _node_by_expression(graph: DataflowGraph) -> dict[Any, int]:
    """Return the node behind each bound expression: a call, or a projection out of what it returns."""
    source = graph.source
    if not len(graph):
        return {}
    bindings = source.function.body.blocks[0].bindings
    node_of_variable: dict[Any, int] = {}
    node_of: dict[Any, int] = {}
    for number, position in enumerate(source.binding_indices):
        node_of_variable[bindings[position].var] = number
        node_of[bindings[position].value] = number
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in node_of_variable:
            node_of[value] = node_of_variable[value.tuple_value]
            node_of_variable[binding.var] = node_of[value]
    return node_of


def _inside(match: Match, node_of: Mapping[Any, int]) -> NodeSet:
    matched = [
        expression
        for pattern, expression in match.items()
        if isinstance(pattern, CallPattern | TupleGetItemPattern)
    ]
    return NodeSet.of(node_of[expression] for expression in matched if expression in node_of)
