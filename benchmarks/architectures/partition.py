"""Partition an architecture without measuring: lower what a search chooses, and compare it with torch.

Candidates have prices that favour one backend and fall with their size, as in TVM's RFC 62
("MockCostEstimator"), so that each backend in turn runs whatever it can. What a model measures is left out:
this finds what a backend proposes and cannot lower, and what it lowers wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import tvm
from tvm import relax

from tuner.backends.registry import backends_for
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.frontend.torch.arrays import as_array
from tuner.graph import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.lower import build_module, flat_arrays, lower_module
from tuner.lowering.outline import outline_partitions
from tuner.lowering.weight_binding import bound_arguments
from tuner.numerical_error import compare_tensor, tolerance_of
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import find_candidates, find_partition
from tuner.plan import Figure
from tuner.targets.resolution import resolve_target, tvm_device
from tuner.targets.target import Target
from tuner.tuning.partition_model import prepared_module

BACKENDS = ("tvm", "blas", "torch")
"""Who takes part: each is preferred once."""

_DISCOUNT = 0.9
"""Share of the cost of an operator that the next one of the same candidate has."""


def partition_faults(
    model: Model, inputs: Sequence[np.ndarray], expected: Sequence[torch.Tensor]
) -> dict[str, str]:
    """Return what is wrong with a model's partition by each preferred backend; nothing where none is.

    Args:
        model: what is partitioned.
        inputs: of its function.
        expected: what torch gives for them.
    """
    target = resolve_target("cpu", num_threads=1)
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    faults = {}
    for preferred in BACKENDS:
        try:
            found = _run(_partitioned(model, preferred, target), arguments, target)
        except Exception as error:  # foreign code; whatever it raises is the result
            line = str(error).strip().splitlines()[-1:] or [""]
            faults[preferred] = f"{type(error).__name__}: {line[0]}"
            continue
        limit = tolerance_of(str(each.dtype) for each in arguments)
        for index, (mine, true) in enumerate(zip(found, expected, strict=True)):
            deviation = compare_tensor(
                f"output {index}", mine, as_array(true), infinity_agrees=True, same_types=True
            )
            if not deviation.is_within(limit):
                faults[preferred] = f"{deviation.tensor} {deviation.describe(limit)}"
    return faults


def _partitioned(model: Model, preferred: str, target: Target) -> tvm.IRModule:
    """Return the model's module with the parts that the search chooses, lowered by their backends.

    Raises:
        TunerError: nobody can run an operator.
    """
    backends = backends_for(BACKENDS, target)
    graph = DataflowGraph.from_function(prepared_module(model))
    candidates = find_candidates(graph, gather_specs(backends, target)).candidates
    cost_us = {backend: 1.0 if backend == preferred else 10.0 for backend in BACKENDS}
    prices = [_price(each, cost_us) for each in candidates]
    found = find_partition(graph, candidates, prices, launch_penalty_us=1.0)
    if not found.chosen:
        raise TunerError("the search chose nothing; see that a backend runs every operator")
    return lower_module(outline_partitions(graph, found.chosen), backends, target)


def _price(candidate: CandidatePartition, cost_us: Mapping[str, float]) -> Figure:
    first = cost_us.get(candidate.backend, 0.0)
    count = len(candidate.sub_graph.inside)
    return Figure(latency_us=sum(first * _DISCOUNT**index for index in range(count)), source="given")


def _run(module: tvm.IRModule, arguments: Sequence[np.ndarray], target: Target) -> tuple[np.ndarray, ...]:
    device = tvm_device(target)
    machine = relax.VirtualMachine(build_module(module, target), device)
    tensors = [tvm.runtime.tensor(np.array(each), device) for each in arguments]
    return flat_arrays(machine["main"](*bound_arguments(machine, tensors)))
