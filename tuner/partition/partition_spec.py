"""Source of the candidates of one backend: its name, its rule, and what it refuses.

Source: TVM RFC 62 ("PartitionSpec").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph
from tuner.rules.protocol import Rule

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
