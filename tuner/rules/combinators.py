"""Rule combinators: label, union, and filtering of invalid sub-graphs.

Upstream's `Primitive` has no counterpart: here every candidate becomes one function of its own anyway.

Source: TVM RFC 62 ("CompositePartitionRule", "UnionPartitionRule", "OnlyValidPartitionRule").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph, SubGraphLimits
from tuner.rules.protocol import Rule


@dataclass(frozen=True, slots=True)
class Composite:
    """Puts a label on what a rule proposes, so that a library knows which of its calls is meant."""

    label: str
    rule: Rule

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the rule's sub-graphs under the label."""
        for sub_graph in self.rule.find_candidates(graph):
            yield sub_graph.with_label(graph, self.label)


@dataclass(frozen=True, slots=True)
class Union:
    """Proposes what any of several rules proposes, each sub-graph once."""

    name: str
    rules: tuple[Rule, ...]

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the sub-graphs of the first rule, then those that the second adds, and so on."""
        seen: set[SubGraph] = set()
        for rule in self.rules:
            for sub_graph in rule.find_candidates(graph):
                if sub_graph not in seen:
                    seen.add(sub_graph)
                    yield sub_graph


@dataclass(frozen=True, slots=True)
class OnlyValid:
    """Leaves out what is not convex or not within limits."""

    rule: Rule
    limits: SubGraphLimits = field(default_factory=SubGraphLimits)

    @property
    def name(self) -> str:
        """The name of the rule inside."""
        return self.rule.name

    def find_candidates(self, graph: DataflowGraph) -> Iterable[SubGraph]:
        """Yield the rule's valid sub-graphs."""
        return (each for each in self.rule.find_candidates(graph) if each.is_valid(graph, self.limits))
