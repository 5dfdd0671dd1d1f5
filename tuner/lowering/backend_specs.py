"""Partition specs of backends: what each proposes, and what it refuses of it.

Source: TVM RFC 62 ("GatherPartitionSpecs").
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.backends.protocol import Backend, refusal_of
from tuner.graph.dataflow import DataflowGraph
from tuner.graph.subgraph import SubGraph
from tuner.lowering.outline import extract_function
from tuner.partition.assignment import Assignment, constrained
from tuner.partition.candidate import FREE
from tuner.partition.partition_spec import PartitionSpec
from tuner.rules.single import HostRule
from tuner.targets.target import Target


def gather_specs(
    backends: Sequence[Backend], target: Target, assignments: Sequence[Assignment] = ()
) -> tuple[PartitionSpec, ...]:
    """Return one spec per backend, which refuses what is assigned to others, and the host's."""
    specs = (constrained(_spec(backend, target), assignments) for backend in backends)
    return (*specs, PartitionSpec(FREE, HostRule()))


def _spec(backend: Backend, target: Target) -> PartitionSpec:
    def refusal(graph: DataflowGraph, sub_graph: SubGraph) -> str | None:
        return refusal_of(backend, extract_function(graph, sub_graph, backend.name), target)

    return PartitionSpec(backend.name, backend.rule(target), refusal)
