"""Compare the import of an architecture with torch, by a lowering that shares nothing with this project's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import tvm
from torch.utils import _pytree as pytree
from tvm import relax

from benchmarks.architectures.language import Built
from benchmarks.architectures.partition import partition_faults
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.program import import_module
from tuner.numerical_error import compare_tensor, worst


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an architecture.

    Attributes:
        name: of the architecture.
        parameters: number of its weights.
        operators: number of operators of the imported program; 0 where it is refused.
        import_cpu_s: processor time of the import, with the export.
        error: largest error over largest output against torch; None where there is none.
        reason: why it is refused or wrong; empty where it is equal.
        partition: faults of the model partitioned, by backend that was preferred; None where that was not
            asked for.
    """

    name: str
    parameters: int = 0
    operators: int = 0
    import_cpu_s: float = 0.0
    error: float | None = None
    reason: str = ""
    partition: Mapping[str, str] | None = None


def check(name: str, build: Callable[[], Built], *, partitions: bool = False) -> Outcome:
    """Build an architecture with weights of seed 0, import it, and compare what it gives for its inputs.

    Args:
        name: of the architecture.
        build: makes it, with example inputs.
        partitions: whether it is partitioned too, and what that gives is compared.
    """
    torch.manual_seed(0)
    module, inputs = build()
    module.eval()
    parameters = sum(each.numel() for each in module.parameters())
    started = time.process_time()
    try:
        model = import_module(module, inputs, name)
    except TunerError as error:
        return Outcome(name=name, parameters=parameters, reason=str(error))
    spent = time.process_time() - started
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if isinstance(leaf, torch.Tensor)]
    arrays = [as_array(each) for each in inputs]
    found = run(model, arrays)
    deviations = [
        compare_tensor(f"output {index}", mine, as_array(true), infinity_agrees=True, same_types=True)
        for index, (mine, true) in enumerate(zip(found, expected, strict=True))
    ]
    deviation = worst(deviations)
    return Outcome(
        name=name,
        parameters=parameters,
        operators=sum(len(block.bindings) for block in model.module["main"].body.blocks),
        import_cpu_s=spent,
        error=None if deviation is None else deviation.relative_error,
        reason="" if deviation is None else deviation.fault,
        partition=partition_faults(model, arrays, expected) if partitions else None,
    )


def run(model: Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives, by TVM's default pipeline without optimisation."""
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(model.module, target=target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(np.array(each)) for each in arguments])
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]
