"""Gradients of operators that work on each element by itself.

Where an operator has no derivative, at the ends of a clip, at 0 or where two operands are equal, the gradient
is the one that torch's autograd gives; checked there in tests/tuner/stages/gradients/test_borders.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

from tuner.stages.gradients.rule import Gradient, Parts, constant_like, shape_of
from tuner.stages.program import Expr, Var

op = relax.op


def _relu(result: Var, call: Any, gradient: Expr) -> Parts:
    """Read the result, which the next operator often saves, rather than the input."""
    return (op.where(op.greater(result, constant_like(result, 0.0)), gradient, op.zeros_like(gradient)),)


def _gelu(result: Var, call: Any, gradient: Expr) -> Parts:
    """x Φ(x) has the derivative Φ(x) + x φ(x)."""
    value = call.args[0]
    cumulative = op.multiply(
        constant_like(value, 0.5),
        op.add(constant_like(value, 1.0), op.erf(op.multiply(value, constant_like(value, math.sqrt(0.5))))),
    )
    density = op.multiply(
        constant_like(value, 1 / math.sqrt(2 * math.pi)),
        op.exp(op.multiply(constant_like(value, -0.5), op.multiply(value, value))),
    )
    return (op.multiply(gradient, op.add(cumulative, op.multiply(value, density))),)


def _gelu_tanh(result: Var, call: Any, gradient: Expr) -> Parts:
    """Take y = x (1 + t) / 2 with t = tanh(c (x + a x³)): y' = (1 + t + x (1 - t²) c (1 + 3 a x²)) / 2."""
    value = call.args[0]
    factor, cubic = math.sqrt(2 / math.pi), 0.044715  # Hendrycks and Gimpel 2016, section 2
    squared = op.multiply(value, value)
    inner = op.multiply(
        op.multiply(constant_like(value, factor), value),
        op.add(constant_like(value, 1.0), op.multiply(constant_like(value, cubic), squared)),
    )
    curve = op.tanh(inner)
    slope = op.multiply(
        constant_like(value, factor),
        op.add(constant_like(value, 1.0), op.multiply(constant_like(value, 3 * cubic), squared)),
    )
    rise = op.multiply(
        op.multiply(value, op.subtract(constant_like(value, 1.0), op.multiply(curve, curve))), slope
    )
    derivative = op.multiply(
        constant_like(value, 0.5), op.add(op.add(constant_like(value, 1.0), curve), rise)
    )
    return (op.multiply(gradient, derivative),)


def _rsqrt(result: Var, call: Any, gradient: Expr) -> Parts:
    cubed = op.multiply(result, op.multiply(result, result))
    return (op.multiply(gradient, op.multiply(constant_like(result, -0.5), cubed)),)


def _square(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.multiply(gradient, op.multiply(constant_like(result, 2.0), call.args[0])),)


def _erf(result: Var, call: Any, gradient: Expr) -> Parts:
    value = call.args[0]
    slope = op.multiply(
        constant_like(value, 2 / math.sqrt(math.pi)), op.exp(op.negative(op.multiply(value, value)))
    )
    return (op.multiply(gradient, slope),)


def _leaky_relu(result: Var, call: Any, gradient: Expr) -> Parts:
    value = call.args[0]
    sloped = op.multiply(gradient, constant_like(value, float(call.attrs.alpha)))
    return (op.where(op.greater(value, constant_like(value, 0.0)), gradient, sloped),)


def _softplus(result: Var, call: Any, gradient: Expr) -> Parts:
    scaled = op.multiply(constant_like(result, float(call.attrs.beta)), call.args[0])
    # Above the threshold the result is the argument itself.
    is_linear = op.greater(scaled, constant_like(result, float(call.attrs.threshold)))
    return (op.where(is_linear, gradient, op.multiply(gradient, op.sigmoid(scaled))),)


def _clip(result: Var, call: Any, gradient: Expr) -> Parts:
    """The gradient passes between the bounds, and at neither, as that of torch's `hardtanh` and `relu6`.

    That of `clamp` passes at its bounds, so that the importer does not make it a clip.
    """
    value, low, high = call.args
    dtype = str(value.ty.dtype.dtype)
    if dtype == "float16":  # torch compares with bounds that are not rounded
        value, dtype = op.astype(value, "float32"), "float32"
    inside = op.logical_and(
        op.greater(value, relax.const(float(low.value), dtype)),
        op.less(value, relax.const(float(high.value), dtype)),
    )
    return op.where(inside, gradient, op.zeros_like(gradient)), None, None


def _abs(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.multiply(gradient, op.sign(call.args[0])),)


def _extremum_of_two(is_chosen: Callable[[Expr, Expr], Expr]) -> Gradient:
    """Make the rule of the larger or smaller operand: it takes the gradient, and equal ones a half each."""

    def rule(result: Var, call: Any, gradient: Expr) -> Parts:
        pair = call.args
        zeros = op.zeros(result.ty.shape, result.ty.dtype.dtype)
        half = op.multiply(gradient, constant_like(result, 0.5))
        shared = op.where(op.equal(*pair), half, zeros)
        return tuple(
            _fitted(op.where(is_chosen(one, other), gradient, shared), one, result)
            for one, other in (pair, pair[::-1])
        )

    return rule


def _power(result: Var, call: Any, gradient: Expr) -> Parts:
    """x^y has the derivatives y x^(y-1) and x^y log x, which are 0 for y = 0 and for x = 0."""
    base, exponent = call.args
    zero = constant_like(result, 0.0)
    slope = op.multiply(exponent, op.power(base, op.subtract(exponent, constant_like(exponent, 1.0))))
    of_base = op.multiply(gradient, slope)
    if not isinstance(exponent, tvm.ir.expr.Constant) or not exponent.value.numpy().all():
        of_base = op.where(op.equal(exponent, zero), zero, of_base)
    growth = op.multiply(result, op.log(base))
    is_constant = op.logical_and(op.equal(base, zero), op.greater_equal(exponent, zero))
    of_exponent = op.where(is_constant, zero, op.multiply(gradient, growth))
    return _fitted(of_base, base, result), _fitted(of_exponent, exponent, result)


def _over(divisor: Callable[[Expr], Expr]) -> Gradient:
    """Make a rule of a function whose derivative is one over another function of its argument."""

    def rule(result: Var, call: Any, gradient: Expr) -> Parts:
        return (op.divide(gradient, divisor(call.args[0])),)

    return rule


def _one_less_square(value: Expr) -> Expr:
    return op.subtract(constant_like(value, 1.0), op.multiply(value, value))


def _one_more_square(value: Expr) -> Expr:
    return op.add(constant_like(value, 1.0), op.multiply(value, value))


def _square_less_one(value: Expr) -> Expr:
    return op.subtract(op.multiply(value, value), constant_like(value, 1.0))


def _sinh(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.multiply(gradient, op.cosh(call.args[0])),)


def _cosh(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.multiply(gradient, op.sinh(call.args[0])),)


def _tan(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.multiply(gradient, _one_more_square(result)),)


def _atan2(result: Var, call: Any, gradient: Expr) -> Parts:
    """The angle of (x, y) has the slopes x / (x² + y²) by y and -y / (x² + y²) by x, at (0, 0) both 0."""
    y, x = call.args
    square = op.add(op.multiply(x, x), op.multiply(y, y))
    zero, one = constant_like(result, 0.0), constant_like(result, 1.0)
    share = op.divide(gradient, op.where(op.equal(square, zero), one, square))
    return (
        _collapsed(op.multiply(share, x), y),
        _collapsed(op.negative(op.multiply(share, y)), x),
    )


def _floor_mod(result: Var, call: Any, gradient: Expr) -> Parts:
    """x - y floor(x / y)."""
    value, divisor = call.args
    quotient = op.floor(op.divide(value, divisor))
    return _collapsed(gradient, value), _collapsed(op.negative(op.multiply(gradient, quotient)), divisor)


def _collapsed(gradient: Expr, operand: Expr) -> Expr:
    """Sum over what an operand was broadcast along."""
    return op.collapse_sum_to(gradient, operand.ty.shape)


def _fitted(gradient: Expr, operand: Expr, result: Var) -> Expr:
    """Sum over what an operand was broadcast along, if it was."""
    return gradient if shape_of(operand) == shape_of(result) else _collapsed(gradient, operand)


def _no_gradient(result: Var, call: Any, gradient: Expr) -> Parts:
    """Give zeros: the operator is a staircase."""
    return (op.zeros_like(gradient),)


ELEMENTWISE: Mapping[str, Gradient] = {
    "abs": _abs,
    "acos": _over(lambda value: op.negative(op.sqrt(_one_less_square(value)))),
    "acosh": _over(lambda value: op.sqrt(_square_less_one(value))),
    "asin": _over(lambda value: op.sqrt(_one_less_square(value))),
    "asinh": _over(lambda value: op.sqrt(_one_more_square(value))),
    "atan": _over(_one_more_square),
    "atan2": _atan2,
    "atanh": _over(_one_less_square),
    "ceil": _no_gradient,
    "clip": _clip,
    "cosh": _cosh,
    "erf": _erf,
    "floor": _no_gradient,
    "floor_mod": _floor_mod,
    "maximum": _extremum_of_two(op.greater),
    "minimum": _extremum_of_two(op.less),
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.leakyrelu": _leaky_relu,
    "nn.relu": _relu,
    "nn.softplus": _softplus,
    "power": _power,
    "round": _no_gradient,
    "rsqrt": _rsqrt,
    "sign": _no_gradient,
    "sinh": _sinh,
    "square": _square,
    "tan": _tan,
    "trunc": _no_gradient,
}
