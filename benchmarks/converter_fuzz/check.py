"""Import one sample, run it by TVM, and compare it with torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from benchmarks.converter_fuzz.operators import Applied, Several, same
from tuner.backends.torch.operators import provide_torch_calls
from tuner.errors import TunerError
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.program import import_module
from tuner.graph.torch_call import torch_calls_in
from tuner.lowering.lower import build_unscheduled, flat_arrays
from tuner.lowering.weight_binding import bound_arguments
from tuner.numerical_error import compare_tensor
from tuner.targets.resolution import resolve_target

TOLERANCES = {"float32": 1e-4, "float64": 1e-6, "float16": 2e-2, "bfloat16": 2e-2}
"""Largest difference over largest magnitude, by type of result; whole numbers are equal."""


@dataclass(frozen=True)
class Finding:
    """What became of one sample.

    Attributes:
        operator: torch's name of it.
        dtype: type of the samples.
        sample: number of the sample.
        outcome: `equal`, `mended`, `called`, `refused` or `wrong`.
        reason: why it is not equal, or what is called.
    """

    operator: str
    dtype: str
    sample: int
    outcome: str
    reason: str = ""


def has_results(applied: Applied) -> bool:
    """Say whether torch gives the same numbers of a sample twice, which can be compared."""
    return _expected(applied) is not None


def check(name: str, dtype: str, number: int, applied: Applied | Several) -> Finding | None:
    """Compare a sample, or several; None where torch has no result to compare with."""
    expected = _expected(applied)
    if expected is None:
        return None

    def finding(outcome: str, reason: str = "") -> Finding:
        return Finding(operator=name, dtype=dtype, sample=number, outcome=outcome, reason=reason)

    try:
        model = import_module(applied, applied.tensors, name)
    except TunerError as error:
        return None if "torch.export cannot trace" in str(error) else finding("refused", str(error))
    except Exception as error:
        return finding("wrong", f"{type(error).__name__}: {error}")
    inputs = [as_array(tensor) for tensor in applied.tensors]
    try:
        found = run(model, inputs)
    except Exception as error:  # TVM's own faults
        return finding("refused", f"TVM cannot lower it ({str(error).strip().splitlines()[-1]})")
    reason = _difference(applied, found, expected)
    if reason:
        lowered = _difference(applied, run_lowered(model, inputs), expected)
        return finding("wrong", lowered) if lowered else finding("mended", reason)
    called = sorted({call.name for call in torch_calls_in(model.module["main"])})
    return finding("called", ", ".join(called)) if called else finding("equal")


def _difference(
    applied: Applied | Several, found: Sequence[np.ndarray], expected: Sequence[torch.Tensor]
) -> str:
    """Return how results differ from torch's; empty where they do not."""
    if len(found) != len(expected):
        return f"gives {len(found)} tensors in place of {len(expected)}"
    if applied.tensors and _selects_alike(applied.tensors[0], found, expected):
        found = [found[0], expected[1].numpy()]
    for mine, true in zip(found, expected, strict=True):
        limit = TOLERANCES.get(str(true.dtype).removeprefix("torch."), 0.0)
        deviation = compare_tensor(
            "result", mine, as_array(true), infinity_agrees=True, nan_agrees=True, same_types=True
        )
        if not deviation.is_within(limit):
            return deviation.describe(limit)
    return ""


def _expected(applied: Applied | Several) -> tuple[torch.Tensor, ...] | None:
    """Return what torch gives; None where it refuses, gives nothing that an array holds, or draws numbers."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            expected: tuple[torch.Tensor, ...] = applied(*(tensor.clone() for tensor in applied.tensors))
            torch.manual_seed(1)
            again = applied(*(tensor.clone() for tensor in applied.tensors))
    except Exception:  # torch's own samples hold what torch refuses
        return None
    if not expected or not all(map(has_array, (*expected, *applied.tensors))):
        return None
    agree = all(same(one, other) for one, other in zip(expected, again, strict=True))
    return expected if agree else None


def _selects_alike(x: torch.Tensor, found: Sequence[np.ndarray], expected: Sequence[torch.Tensor]) -> bool:
    """Say whether two results are values and their places, and other places hold the same values.

    Which of equal values an order statistic names is not specified; torch's own kernels differ.
    """
    if len(expected) != 2 or expected[1].dtype is not torch.int64 or not x.dim():
        return False
    values, theirs = expected
    mine = torch.from_numpy(found[1])
    if mine.shape != theirs.shape or mine.dtype is not torch.int64 or not mine.numel() or mine.min() < 0:
        return False
    for axis in range(x.dim()):
        places = [each if each.dim() == x.dim() else each.unsqueeze(axis) for each in (theirs, mine)]
        wanted = values if values.dim() == x.dim() else values.unsqueeze(axis)
        others = [index for index in range(x.dim()) if index != axis]
        fits = wanted.dim() == x.dim() and all(wanted.shape[index] <= x.shape[index] for index in others)
        if fits and int(mine.max()) < x.shape[axis]:
            one, other = (x.gather(axis, each) for each in places)
            if same(one, wanted) and same(other, wanted):
                return True
    return False


def has_array(tensor: torch.Tensor) -> bool:
    """Say whether an array of plain numbers can hold a tensor's values."""
    return tensor.layout is torch.strided and not tensor.is_complex()


def run(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives, by TVM's default pipeline without optimisation."""
    return run_module(model.module, [*inputs, *(model.parameters[name] for name in model.parameter_names)])


def run_module(module: Any, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a module's `main` gives, by TVM's default pipeline without optimisation."""
    provide_torch_calls(module)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(np.array(each)) for each in arguments])
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]


def run_lowered(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a model gives as this project lowers it, in plain loops."""
    machine = relax.VirtualMachine(
        build_unscheduled(model.module, resolve_target("cpu", num_threads=1)), tvm.cpu()
    )
    arguments = [*inputs, *(model.parameters[name] for name in model.parameter_names)]
    tensors = [tvm.runtime.tensor(argument) for argument in arguments]
    return list(flat_arrays(machine["main"](*bound_arguments(machine, tensors))))
