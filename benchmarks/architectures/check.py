"""Compare an architecture with torch: its import, its partition, its stages in training, and a pipeline.

The import is compared by TVM's default pipeline, which shares nothing with this project's lowering.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
import tvm
from torch import nn
from torch.utils import _pytree as pytree
from tvm import relax

from benchmarks.architectures.files import check_exported, check_onnx
from benchmarks.architectures.finding import Finding, compared, limit_of
from benchmarks.architectures.language import Built
from benchmarks.architectures.partition import check_partitions
from benchmarks.architectures.ranks import check_run
from benchmarks.architectures.training import check_training
from tuner.backends.torch.operators import provide_torch_calls
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.program import import_module
from tuner.graph.torch_call import torch_calls_in
from tuner.numerical_error import tolerance_of

STEPS = ("import", "pt2", "onnx", "partition", "train", "train-4", "run")
"""What is compared, in order: two kinds of files, and training in two and in four stages, are steps apart."""

LIMIT = 1e-5
"""Largest error of an import in float32: it is compared more strictly than what tunes."""

MODULE = "benchmarks.architectures.models"
"""Where ranks find the architectures by their names."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large an architecture is, and what its import takes.

    Attributes:
        parameters: number of its weights.
        operators: of the imported program; 0 where it is refused.
        torch_calls: distinct operators that stay calls of torch.
        import_cpu_s: processor time of the import, with the export.
    """

    parameters: int
    operators: int = 0
    torch_calls: tuple[str, ...] = ()
    import_cpu_s: float = 0.0


def check(
    name: str, build: Callable[[], Built], steps: Sequence[str] = ("import",)
) -> Iterator[tuple[str, Size, Finding]]:
    """Build an architecture with weights of seed 0 and yield what became of each step as it ends.

    Args:
        name: of the architecture.
        build: makes it, with example inputs.
        steps: some of `STEPS`; a model that does not import ends at the first of them.
    """
    torch.manual_seed(0)
    module, inputs = build()
    module.eval()
    parameters = sum(each.numel() for each in module.parameters())
    started = time.process_time()
    try:
        model = import_module(module, inputs, f"{MODULE}:{name.replace('-', '_')}")
    except TunerError as error:
        yield steps[0], Size(parameters=parameters), Finding.of_error(error)
        return
    size = Size(
        parameters=parameters,
        operators=sum(len(block.bindings) for block in model.module["main"].body.blocks),
        torch_calls=tuple(sorted({call.name for call in torch_calls_in(model.module["main"])})),
        import_cpu_s=time.process_time() - started,
    )
    if {"import", "pt2", "onnx", "partition"} & set(steps):
        with torch.no_grad():
            results = pytree.tree_leaves(module(*inputs))
        expected = [as_array(leaf) for leaf in results if isinstance(leaf, torch.Tensor)]
        arrays = [as_array(each) for each in inputs]
    if "import" in steps:
        found = _check_import(model, arrays, expected)
        if found.outcome == "wrong":
            found = _beside_float64(module, inputs, model, expected) or found
        yield "import", size, found
    for step, check_file in (("pt2", check_exported), ("onnx", check_onnx)):
        if step in steps:

            def compare(loaded: Model, given: Sequence[np.ndarray]) -> Finding:
                return _check_import(loaded, given, expected)

            yield step, size, check_file(module, inputs, model, compare)
    if "partition" in steps:
        yield "partition", size, check_partitions(model, arrays, expected)
    if "train" in steps:
        yield "train", size, check_training(model, 2)
    if "train-4" in steps:
        yield "train-4", size, check_training(model, 4)
    if "run" in steps:
        yield "run", size, check_run(model)


def _check_import(model: Model, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> Finding:
    limit = limit_of(model)
    try:
        return compared(run(model, inputs), expected, limit if limit > tolerance_of(["float32"]) else LIMIT)
    except Exception as error:  # foreign code; whatever it raises is the result
        return Finding.of_error(error)


def _beside_float64(
    module: nn.Module, inputs: Sequence[Any], model: Model, expected: Sequence[np.ndarray]
) -> Finding | None:
    """Compare an import with the module in float64, which it may be nearer to than the module in float32 is.

    Returns:
        that it is equal to float64 within `LIMIT`, and how far torch is; None where it is not, where the
        module does not run in float64, or where it computes in narrower types than float32.
    """
    if limit_of(model) > tolerance_of(["float32"]):
        return None
    doubled = [
        each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in inputs
    ]
    try:
        with torch.no_grad():
            leaves = pytree.tree_leaves(copy.deepcopy(module).double()(*doubled))
    except Exception:  # code of others, which may insist on its types
        return None
    exact = [
        as_array(leaf.float() if leaf.dtype == torch.float64 else leaf)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    ]
    found = _check_import(model, [as_array(each) for each in inputs], exact)
    if found.outcome != "equal":
        return None
    of_torch = compared(expected, exact, LIMIT)
    if of_torch.error is None:  # torch gives what has no error, such as NaN: that is to be told
        return None
    return msgspec.structs.replace(
        found, reason=f"beside the module in float64, from which torch's float32 is {of_torch.error:.1e} off"
    )


def run(model: Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives, by TVM's default pipeline without optimisation."""
    provide_torch_calls(model.module)
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(model.module, target=target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(np.array(each)) for each in arguments])
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]
