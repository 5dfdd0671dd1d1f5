"""Train on one sample of an operator, and compare the gradients of its operands with torch's.

Every floating-point operand is a weight, and the loss a sum of the results with weights that differ, so that
each place counts. Stages are built as `tessel tune --train` builds them, and run by TVM's default pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.converter_fuzz.check import TOLERANCES, Finding, has_array, run_module
from benchmarks.converter_fuzz.operators import Applied, Several, double
from tuner.errors import TunerError
from tuner.frontend.loading import for_training
from tuner.frontend.model import Model
from tuner.frontend.torch.program import import_module
from tuner.graph.torch_call import torch_calls_in
from tuner.numerical_error import compare_gradients, worst
from tuner.stages import build_stages, run_stages, with_all_gradients

_ANCHOR = 1e-2
"""Summand of every gradient."""


class Trained(torch.nn.Module):
    """The sum of what an operator gives of its weights, each place with a factor of its own.

    Attributes:
        applied: the operator.
    """

    def __init__(self, applied: Applied | Several) -> None:
        super().__init__()
        self.applied = applied
        self._is_weight = [tensor.is_floating_point() for tensor in applied.tensors]
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(tensor.detach().clone())
            for tensor in applied.tensors
            if tensor.is_floating_point()
        )

    def forward(self, *others: torch.Tensor) -> torch.Tensor:
        """Give the loss of operands that are no weights, and a last one, a scalar 1."""
        *kept, one = others
        weights, rest = iter(self.weights), iter(kept)
        tensors = [next(weights) * one if is_weight else next(rest) for is_weight in self._is_weight]
        found = [each for each in self.applied(*tensors) if each.is_floating_point()]
        sums = [
            (each * torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).reshape(each.shape)).sum()
            for each in found
        ]
        # Beside this the rounding errors of a gradient that cancels are small: a norm over two elements.
        return torch.stack(sums).sum() + _ANCHOR * sum(weight.sum() for weight in self.weights)


def has_gradients(applied: Applied) -> bool:
    """Say whether torch has gradients of a sample that can be compared."""
    return _expected(applied, _inputs(applied)) is not None


def check_gradients_of(name: str, dtype: str, number: int, applied: Applied | Several) -> Finding | None:
    """Compare the gradients of a sample, or of several; None where torch has none, or is not finite there."""
    inputs = _inputs(applied)
    expected = _expected(applied, inputs)
    if expected is None:
        return None

    def finding(outcome: str, reason: str = "") -> Finding:
        return Finding(operator=name, dtype=dtype, sample=number, outcome=outcome, reason=reason)

    try:
        imported = import_module(Trained(applied), inputs, name)
        model = with_all_gradients(for_training(imported))
        found = _found(model, [tensor.numpy() for tensor in inputs])
    except TunerError as error:
        return None if "torch.export cannot trace" in str(error) else finding("refused", str(error))
    except Exception as error:  # TVM's own faults
        return finding("refused", f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    needed = {key: value for key, value in expected.items() if key in found or value.any()}
    # torch's own rounding may be all of a gradient that is 0: that of a norm over one element.
    exact = _expected(applied.doubled(), [double(each) for each in inputs])
    deviation = worst(compare_gradients(found, needed, exact=exact))
    limit = TOLERANCES[dtype]
    if deviation is not None and not deviation.is_within(limit):
        return finding("wrong", f"the gradient of {deviation.tensor} {deviation.describe(limit)}")
    called = sorted({call.name for call in torch_calls_in(model.module["main"])})
    return finding("called", ", ".join(called)) if called else finding("equal")


def _inputs(applied: Applied | Several) -> tuple[torch.Tensor, ...]:
    """Return the operands that are no weights, and a 1 of the weights' type."""
    others = [tensor for tensor in applied.tensors if not tensor.is_floating_point()]
    kinds = [tensor.dtype for tensor in applied.tensors if tensor.is_floating_point()]
    return (*others, torch.ones((), dtype=kinds[0] if kinds else torch.float32))


def _expected(applied: Applied | Several, inputs: Sequence[torch.Tensor]) -> dict[str, np.ndarray] | None:
    """Return torch's gradient of each weight by name; None where it has none, or one that is no number."""
    module = Trained(applied)
    if not len(module.weights) or not all(tensor.numel() and has_array(tensor) for tensor in applied.tensors):
        return None
    try:
        loss = module(*inputs)
        found = torch.autograd.grad(loss, list(module.weights), allow_unused=True)
    except Exception:  # torch's own samples hold what torch refuses
        return None
    named = zip(module.named_parameters(), found, strict=True)
    gradients = {
        name: (torch.zeros_like(weight) if gradient is None else gradient).detach().numpy()
        for (name, weight), gradient in named
    }
    is_finite = all(np.isfinite(gradient).all() for gradient in gradients.values())
    return gradients if is_finite and bool(loss.isfinite()) else None


def _found(model: Model, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of a single stage by the weight's name."""
    plain = replace(model, reference=None)
    tensors: Mapping[str, Any] = {
        **dict(zip((spec.name for spec in model.inputs), inputs, strict=True)),
        **{name: np.asarray(model.parameters[name]) for name in model.parameter_names},
    }
    results = run_stages(build_stages(plain, ()), tensors, split=False, run=run_module)
    return {name.removesuffix(".grad"): value for name, value in results.items() if name.endswith(".grad")}
