"""The labelled calls of a partition, written into the attributes of its function and read from them.

A rule labels what a library runs by one call, and labels nest (`tuner.rules.Composite`). An extracted
function is flat; its attributes say which of its operators belong to which call, so that a code generator
gets the calls that the search chose, not those that matching its patterns anew would find.
`tuner.lowering.outline` makes functions of them (`with_composites`). Checked in
tests/tuner/partition/test_published_cases.py.
"""

from __future__ import annotations

import msgspec

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.graph.subgraph import SubGraph

LABEL_ATTRIBUTE = "tessel.label"
"""Relax function attribute with the label that a composite rule gave the partition."""

COMPOSITES_ATTRIBUTE = "tessel.composites"
"""Relax function attribute with the labelled calls inside of the partition, as text."""


class _Composite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A labelled call of a function: its operators by their positions there, and what it nests itself."""

    label: str
    operators: tuple[int, ...]
    nested: tuple[_Composite, ...] = ()


def label_attributes(sub_graph: SubGraph) -> dict[str, str]:
    """Return the attributes that name the labelled calls of a sub-graph's function; none without labels."""
    position = {index: number for number, index in enumerate(sub_graph.inside)}

    def described(nested: SubGraph) -> _Composite:
        operators = tuple(position[index] for index in nested.inside)
        return _Composite(nested.label, operators, tuple(map(described, nested.nested)))

    attributes = {LABEL_ATTRIBUTE: sub_graph.label} if sub_graph.label else {}
    if sub_graph.nested:
        composites = tuple(map(described, sub_graph.nested))
        attributes[COMPOSITES_ATTRIBUTE] = msgspec.json.encode(composites).decode()
    return attributes


def composites_of(graph: DataflowGraph) -> tuple[SubGraph, ...]:
    """Return the labelled calls that the attributes of a graph's function name, outermost first."""

    def sub_graph(composite: _Composite) -> SubGraph:
        nested = tuple(map(sub_graph, composite.nested))
        return SubGraph.of(graph, NodeSet.of(composite.operators), label=composite.label, nested=nested)

    text = _attribute(graph, COMPOSITES_ATTRIBUTE) or "[]"
    nested = tuple(map(sub_graph, msgspec.json.decode(text, type=tuple[_Composite, ...])))
    label = _attribute(graph, LABEL_ATTRIBUTE)
    return (SubGraph.of(graph, graph.all_indices, label=label, nested=nested),) if label else nested


def _attribute(graph: DataflowGraph, name: str) -> str:
    attributes = graph.source.function.attrs
    return "" if attributes is None else str(attributes.get(name, ""))
