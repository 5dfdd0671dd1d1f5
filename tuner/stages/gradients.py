"""The gradients of operators: TVM's own where it has one, and those that it lacks.

A gradient is a function of the call and of the output's gradient that gives one expression for each argument,
or None where an argument has none (integers, shapes). Those here leave the forward as it is, so a layer norm
stays one operator there; TVM's `DecomposeOpsForTraining` would take it apart for the sake of its gradient.
What a gradient reads is what a forward saves, so they prefer reading an operator's input, which is often
saved already. Nothing is registered with TVM: its process-wide table stays as it was.

Every gradient here is checked against finite differences in tests/tuner/stages/test_gradients.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.stages.program import Expr, Var, operator_name

op = relax.op

_Parts: TypeAlias = Sequence[Expr | None] | None

Gradient: TypeAlias = Callable[[Var, Any, Expr], _Parts]
"""Takes the result's variable, the call and the result's gradient; gives each argument's.

It gives None altogether where TVM's own gradient serves the call better.
"""


def gradient_of(result: Var, call: Any, gradient: Expr, builder: Any) -> Sequence[Expr | None]:
    """Give the gradient of each argument of a call.

    Raises:
        UnsupportedOperatorError: the operator has no gradient; names it.
    """
    name = operator_name(call)
    own = GRADIENTS.get(name)
    parts = own(result, call, gradient) if own else None
    if parts is not None:
        return parts
    rule = call.op.get_attr("FPrimalGradient") if isinstance(call.op, tvm.ir.Op) else None
    if rule is None:
        raise UnsupportedOperatorError(
            f"operator {name!r}, which computes {result.name!r}, has no gradient, so the model cannot be "
            "trained in stages; tune it for inference, or write its gradient in tuner/stages/gradients.py"
        )
    return tuple(rule(result, call, gradient, builder))


def _matmul(result: Var, call: Any, gradient: Expr) -> _Parts:
    """Sum over all leading axes within one product, where a matrix multiplies a batch: dW = Xᵀ dY.

    The general rule makes a product for each element of the batch and sums them afterwards.
    """
    value, weight = call.args
    *leading, num_columns = (int(extent) for extent in value.ty.shape)
    if len(leading) < 2 or len(weight.ty.shape) != 2:
        return None
    num_rows = math.prod(leading)
    flat_value = op.reshape(value, (num_rows, num_columns))
    flat_gradient = op.reshape(gradient, (num_rows, weight.ty.shape[1]))
    return (
        op.matmul(gradient, op.permute_dims(weight)),
        op.matmul(op.permute_dims(flat_value), flat_gradient),
    )


def _relu(result: Var, call: Any, gradient: Expr) -> _Parts:
    """Read the result, which the next operator often saves, rather than the input."""
    return (op.where(op.greater(result, _like(result, 0.0)), gradient, op.zeros_like(gradient)),)


def _gelu(result: Var, call: Any, gradient: Expr) -> _Parts:
    """x Φ(x) has the derivative Φ(x) + x φ(x)."""
    value = call.args[0]
    cumulative = op.multiply(
        _like(value, 0.5), op.add(_like(value, 1.0), op.erf(op.multiply(value, _like(value, math.sqrt(0.5)))))
    )
    density = op.multiply(
        _like(value, 1 / math.sqrt(2 * math.pi)),
        op.exp(op.multiply(_like(value, -0.5), op.multiply(value, value))),
    )
    return (op.multiply(gradient, op.add(cumulative, op.multiply(value, density))),)


def _gelu_tanh(result: Var, call: Any, gradient: Expr) -> _Parts:
    """Take y = x (1 + t) / 2 with t = tanh(c (x + a x³)): y' = (1 + t + x (1 - t²) c (1 + 3 a x²)) / 2."""
    value = call.args[0]
    factor, cubic = math.sqrt(2 / math.pi), 0.044715  # Hendrycks and Gimpel 2016, section 2
    squared = op.multiply(value, value)
    inner = op.multiply(
        op.multiply(_like(value, factor), value),
        op.add(_like(value, 1.0), op.multiply(_like(value, cubic), squared)),
    )
    curve = op.tanh(inner)
    slope = op.multiply(
        _like(value, factor), op.add(_like(value, 1.0), op.multiply(_like(value, 3 * cubic), squared))
    )
    rise = op.multiply(op.multiply(value, op.subtract(_like(value, 1.0), op.multiply(curve, curve))), slope)
    derivative = op.multiply(_like(value, 0.5), op.add(op.add(_like(value, 1.0), curve), rise))
    return (op.multiply(gradient, derivative),)


def _layer_norm(result: Var, call: Any, gradient: Expr) -> _Parts:
    """Ba, Kiros, Hinton 2016: with x̂ = (x - μ) / σ and g = dy γ, dx = (g - mean(g) - x̂ mean(g x̂)) / σ."""
    value, gamma, beta = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    normalized, inverse = _normalized(value, axes, float(call.attrs.epsilon), centered=True)
    scaled = op.multiply(gradient, gamma)
    value_gradient = op.multiply(
        inverse,
        op.subtract(
            op.subtract(scaled, op.mean(scaled, axes, keepdims=True)),
            op.multiply(normalized, op.mean(op.multiply(scaled, normalized), axes, keepdims=True)),
        ),
    )
    return (
        value_gradient,
        _sum_to(op.multiply(gradient, normalized), value, gamma),
        _sum_to(gradient, value, beta),
    )


def _rms_norm(result: Var, call: Any, gradient: Expr) -> _Parts:
    """Zhang and Sennrich 2019: with x̂ = x / r and g = dy γ, dx = (g - x̂ mean(g x̂)) / r."""
    value, gamma = call.args
    axes = [int(axis) for axis in call.attrs.axes]
    normalized, inverse = _normalized(value, axes, float(call.attrs.epsilon), centered=False)
    scaled = op.multiply(gradient, gamma)
    projected = op.multiply(normalized, op.mean(op.multiply(scaled, normalized), axes, keepdims=True))
    value_gradient = op.multiply(inverse, op.subtract(scaled, projected))
    return value_gradient, _sum_to(op.multiply(gradient, normalized), value, gamma)


def _rsqrt(result: Var, call: Any, gradient: Expr) -> _Parts:
    cubed = op.multiply(result, op.multiply(result, result))
    return (op.multiply(gradient, op.multiply(_like(result, -0.5), cubed)),)


def _square(result: Var, call: Any, gradient: Expr) -> _Parts:
    return (op.multiply(gradient, op.multiply(_like(result, 2.0), call.args[0])),)


def _erf(result: Var, call: Any, gradient: Expr) -> _Parts:
    value = call.args[0]
    slope = op.multiply(_like(value, 2 / math.sqrt(math.pi)), op.exp(op.negative(op.multiply(value, value))))
    return (op.multiply(gradient, slope),)


def _leaky_relu(result: Var, call: Any, gradient: Expr) -> _Parts:
    value = call.args[0]
    sloped = op.multiply(gradient, _like(value, float(call.attrs.alpha)))
    return (op.where(op.greater(value, _like(value, 0.0)), gradient, sloped),)


def _softplus(result: Var, call: Any, gradient: Expr) -> _Parts:
    scaled = op.multiply(_like(result, float(call.attrs.beta)), call.args[0])
    return (op.multiply(gradient, op.sigmoid(scaled)),)


def _clip(result: Var, call: Any, gradient: Expr) -> _Parts:
    """The gradient passes where the value was not clipped."""
    value, low, high = call.args
    inside = op.logical_and(
        op.greater_equal(value, _like(value, float(low.value))),
        op.less_equal(value, _like(value, float(high.value))),
    )
    return op.where(inside, gradient, op.zeros_like(gradient)), None, None


def _reshaped(result: Var, call: Any, gradient: Expr) -> _Parts:
    return (op.reshape(gradient, call.args[0].ty.shape), *[None] * (len(call.args) - 1))


def _tril(result: Var, call: Any, gradient: Expr) -> _Parts:
    return op.tril(gradient, call.args[1]), None


def _extremum(result: Var, call: Any, gradient: Expr) -> _Parts:
    """The gradient goes to the largest (smallest) elements, in equal shares where several are equal."""
    value = call.args[0]
    axes = _axes(call.attrs.axis, value)
    kept = [1 if index in axes else int(extent) for index, extent in enumerate(value.ty.shape)]
    hits = op.astype(op.equal(value, op.reshape(result, kept)), value.ty.dtype)
    shares = op.divide(hits, op.sum(hits, axes, keepdims=True))
    return (op.multiply(op.reshape(gradient, kept), shares),)


def _normalized(value: Expr, axes: list[int], epsilon: float, *, centered: bool) -> tuple[Expr, Expr]:
    """Give x̂ and 1 / σ. They are computed again from the input: cheaper to keep than both of them."""
    shifted = op.subtract(value, op.mean(value, axes, keepdims=True)) if centered else value
    power = op.mean(op.multiply(shifted, shifted), axes, keepdims=True)
    inverse = op.rsqrt(op.add(power, _like(value, epsilon)))
    return op.multiply(shifted, inverse), inverse


def _sum_to(gradient: Expr, value: Expr, parameter: Expr) -> Expr:
    """Sum over the leading axes that a parameter was broadcast along."""
    num_leading = len(value.ty.shape) - len(parameter.ty.shape)
    return op.sum(gradient, list(range(num_leading))) if num_leading else gradient


def _axes(axis: Any, value: Expr) -> list[int]:
    rank = len(value.ty.shape)
    return list(range(rank)) if axis is None else [int(index) % rank for index in axis]


def _like(value: Expr, number: float) -> Expr:
    return relax.const(number, value.ty.dtype)


GRADIENTS: Mapping[str, Gradient] = {
    "clip": _clip,
    "erf": _erf,
    "flatten": _reshaped,
    "matmul": _matmul,
    "max": _extremum,
    "min": _extremum,
    "nn.batch_flatten": _reshaped,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.layer_norm": _layer_norm,
    "nn.leakyrelu": _leaky_relu,
    "nn.relu": _relu,
    "nn.rms_norm": _rms_norm,
    "nn.softplus": _softplus,
    "rsqrt": _rsqrt,
    "square": _square,
    "squeeze": _reshaped,
    "tril": _tril,
}
"""Gradients that TVM 0.27 lacks, by operator."""
