"""Partition specs: a backend's name, the rule that proposes its candidates, and their validity check.

Source: TVM RFC 62 ("PartitionSpec", "GatherPartitionSpecs").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tuner.backends.protocol import Backend
from tuner.candidate import HOST
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph
from tuner.rewrite import extract_function
from tuner.rules.protocol import Rule
from tuner.rules.single import HostRule
from tuner.target import Target

Refusal: TypeAlias = Callable[[DataflowGraph, SubGraph], str | None]
"""Says in one sentence why a backend cannot run a sub-graph; None where it can."""


def _accept(graph: DataflowGraph, sub_graph: SubGraph) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Where the candidates of one backend come from.

    Attributes:
        backend: the backend's name.
        rule: proposes sub-graphs.
        refusal: device constraints: says why the backend cannot run one of them.
    """

    backend: str
    rule: Rule
    refusal: Refusal = _accept


def gather_specs(backends: Sequence[Backend], target: Target) -> tuple[PartitionSpec, ...]:
    """Return one spec a backend, and the host's."""
    return (*(_spec(backend, target) for backend in backends), PartitionSpec(HOST, HostRule()))


def _spec(backend: Backend, target: Target) -> PartitionSpec:
    def refusal(graph: DataflowGraph, sub_graph: SubGraph) -> str | None:
        return backend.refusal(extract_function(graph, sub_graph, backend.name), target)

    return PartitionSpec(backend.name, backend.rule(target), refusal)
