"""The workloads of a model, for look-ups in the records without measuring anything.

The workloads are those of the partition search: the model's function as a whole, and every sub-graph that
some backend could run, a repeated one once. Checked in tests/scripts/commands/test_records.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from records import Workload
from tuner.backends.protocol import Backend
from tuner.frontend.model import Model
from tuner.graph import DataflowGraph
from tuner.graph.structure import Structure
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.outline import extract_function
from tuner.lowering.workload_of import describe_graph, workload_of
from tuner.partition.candidate import FREE
from tuner.partition.find_partition import find_candidates
from tuner.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorkloads:
    """A model as the records know it.

    Attributes:
        whole: the model's function; its records say which partition they are of.
        sub_graphs: distinct sub-graphs in the order in which the model first needs them.
    """

    whole: Workload
    sub_graphs: tuple[Workload, ...]


def find_model_workloads(model: Model, target: Target, backends: Sequence[Backend]) -> ModelWorkloads:
    """Return the workloads of a model for these backends on a target.

    Raises:
        UnsupportedOperatorError: the model cannot be read as one data-flow graph.
    """
    graph = DataflowGraph.from_function(model.module)
    structures: dict[Structure, None] = {}
    for candidate in find_candidates(graph, gather_specs(backends, target)).candidates:
        if candidate.backend != FREE:
            structures[Structure(extract_function(graph, candidate.sub_graph, candidate.backend))] = None
    described = [workload_of(structure.value) for structure in structures]
    distinct = {workload.fingerprint: workload for workload in described}
    return ModelWorkloads(whole=describe_graph(graph, "model"), sub_graphs=tuple(distinct.values()))
