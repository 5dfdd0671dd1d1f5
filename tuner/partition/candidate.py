"""A sub-graph together with a backend that would run it: the options of the partition search."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.graph.subgraph import SubGraph

FREE = "host"
"""The backend that runs what needs no lowering; its partitions cost nothing and stay where they are."""


@dataclass(frozen=True, slots=True)
class CandidatePartition:
    """One way to run one sub-graph.

    Two candidates with the same sub-graph and different backends are different candidates.

    Attributes:
        backend: name of the backend (or of the host, which runs what needs no lowering).
        rule: name of the rule that proposed it.
    """

    sub_graph: SubGraph
    backend: str
    rule: str
