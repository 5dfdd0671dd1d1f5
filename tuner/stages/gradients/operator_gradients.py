"""Find the gradient of an operator: this package's if there is one, else TVM's.

The gradients of this package leave the forward as it is, so a layer norm stays one operator there; TVM's
`DecomposeOpsForTraining` would take it apart for the sake of its gradient. Nothing is registered with TVM:
its process-wide table stays as it was.

Every gradient of this package, and TVM's that models commonly need, is checked against finite differences in
tests/tuner/stages/gradients/test_operator_gradients.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from tuner.errors import MissingGradientError
from tuner.graph.torch_call import read_torch_call
from tuner.stages.gradients.convolutions import (
    conv1d_gradient,
    conv2d_gradient,
    pool1d_gradient,
    transposed_gradient,
    whole_window_shares,
)
from tuner.stages.gradients.elementwise import ELEMENTWISE
from tuner.stages.gradients.movement import MOVEMENT
from tuner.stages.gradients.normalization import NORMALIZATION
from tuner.stages.gradients.products import PRODUCTS
from tuner.stages.gradients.rule import Gradient
from tuner.stages.gradients.torch_calls import torch_call_gradient
from tuner.stages.program import Expr, Var, operator_name

GRADIENTS: Mapping[str, Gradient] = {**ELEMENTWISE, **MOVEMENT, **NORMALIZATION, **PRODUCTS}
"""Gradients that TVM 0.27 lacks, or that serve a pipeline better than its own, by operator."""


def gradient_of(result: Var, call: Any, gradient: Expr, builder: Any) -> Sequence[Expr | None]:
    """Give the gradient of each argument of a call.

    Raises:
        MissingGradientError: the operator, or this use of it, has no gradient; names it.
        UnsupportedOperatorError: it is a call of torch, and autograd has no formula for it.
    """
    torch_call = read_torch_call(call)
    if torch_call is not None:
        return torch_call_gradient(result, call, torch_call, gradient, builder)
    name = operator_name(call)
    own = GRADIENTS.get(name)
    parts = own(result, call, gradient) if own else None
    if name == "nn.conv1d":
        parts = conv1d_gradient(call, gradient, builder)
    if name == "nn.conv2d" and any(int(step) != 1 for step in call.attrs.dilation):
        parts = conv2d_gradient(result, call, gradient, builder)
    if name in ("nn.conv1d_transpose", "nn.conv2d_transpose"):
        parts = transposed_gradient(call, gradient, builder)
    if name in ("nn.max_pool1d", "nn.avg_pool1d") and not _is_dilated_pool(name, call):
        parts = pool1d_gradient(call, gradient, builder)
    if parts is not None:
        return parts
    is_dilated = _is_dilated_pool(name, call)
    has_rule = isinstance(call.op, tvm.ir.Op) and not is_dilated
    rule = call.op.get_attr("FPrimalGradient") if has_rule else None
    if rule is None:
        use = " for these attributes" if own or is_dilated else ""
        raise MissingGradientError(
            f"operator {name!r}, which computes {result.name!r}, has no gradient{use}, so the model cannot "
            "be trained in stages; tune it for inference, or write its gradient beside those in "
            "tuner/stages/gradients/",
            operator=name,
            variable=str(result.name),
        )
    if name == "nn.avg_pool2d":
        gradient = whole_window_shares(result, call, gradient, builder)
    return tuple(None if _is_no_gradient(part) else part for part in rule(result, call, gradient, builder))


def _is_dilated_pool(name: str, call: Any) -> bool:
    """Say whether a pool skips elements within its windows: TVM cannot lower its rule for those."""
    if not name.startswith(("nn.max_pool", "nn.avg_pool")):
        return False
    return any(int(step) != 1 for step in call.attrs.dilation)


def _is_no_gradient(part: Expr) -> bool:
    """Say whether TVM's rule marks an argument as one without a gradient; run, the mark is the argument."""
    return isinstance(part, relax.Call) and operator_name(part) == "grad.no_grad"
