"""Activations that Relax has as one operator, and softmax; torch's decompositions give the others.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of, rank_of


def _unary(operator: Callable[..., Expr]) -> Converter:
    return lambda call: call.emit(operator(call.operand("self")))


def _relu(call: Call) -> Expr:
    x = call["self"]
    if "float" in dtype_of(x):
        return call.emit(relax.op.nn.relu(x))
    return call.emit(relax.op.maximum(x, relax.const(0, dtype_of(x))))


def _gelu(call: Call) -> Expr:
    operator = relax.op.nn.gelu_tanh if call["approximate"] == "tanh" else relax.op.nn.gelu
    return call.emit(operator(call.operand("self")))


def _leaky_relu(call: Call) -> Expr:
    return call.emit(relax.op.nn.leakyrelu(call.operand("self"), float(call["negative_slope"])))


def _relu6(call: Call) -> Expr:
    return call.emit(relax.op.clip(call.operand("self"), 0.0, 6.0))


def _hardtanh(call: Call) -> Expr:
    return call.emit(relax.op.clip(call.operand("self"), float(call["min_val"]), float(call["max_val"])))


def _hardsigmoid(call: Call) -> Expr:
    """Emit (x + 3) / 6 between -3 and 3; x is clipped before the sum, which could round to a bound."""
    return call.cast(_ramp(call, call.operand("self", _wide(call))), call.dtype)


def _hardswish(call: Call) -> Expr:
    """Emit x times its hard sigmoid."""
    x = call.operand("self", _wide(call))
    return call.cast(call.emit(relax.op.multiply(x, _ramp(call, x))), call.dtype)


def _ramp(call: Call, x: Expr) -> Expr:
    three, six = (relax.const(number, dtype_of(x)) for number in (3, 6))
    shifted = call.emit(relax.op.add(call.emit(relax.op.clip(x, -3.0, 3.0)), three))
    return call.emit(relax.op.divide(shifted, six))


def _wide(call: Call) -> str:
    """Return the type that torch computes such an activation in."""
    return "float32" if call.dtype == "float16" else call.dtype


def _softplus(call: Call) -> Expr:
    """Emit log(1 + exp(βx)) / β, which is x itself where βx exceeds the threshold."""
    x, beta, threshold = call.operand("self"), call["beta"], call["threshold"]
    return call.emit(relax.op.nn.softplus(x, beta=float(beta), threshold=float(threshold)))


def _softmax(operator: Callable[..., Expr]) -> Converter:
    """Convert a softmax over one axis, computed in the type of its result."""

    def convert(call: Call) -> Expr:
        x = call.operand("self")
        if rank_of(x) == 0:  # the softmax of one number
            flat = call.emit(operator(call.reshaped(x, [1]), axis=0))
            return call.reshaped(flat, [])
        return call.emit(operator(x, axis=call["dim"] % rank_of(x)))

    return convert


ACTIVATIONS: Mapping[str, Converter] = {
    "relu.default": _relu,
    "gelu.default": _gelu,
    "silu.default": _unary(relax.op.nn.silu),
    "leaky_relu.default": _leaky_relu,
    "relu6.default": _relu6,
    "hardtanh.default": _hardtanh,
    "hardsigmoid.default": _hardsigmoid,
    "hardswish.default": _hardswish,
    "softplus.default": _softplus,
    "softmax.int": _softmax(relax.op.nn.softmax),
    "_softmax.default": _softmax(relax.op.nn.softmax),
    "log_softmax.int": _softmax(relax.op.nn.log_softmax),
    "_log_softmax.default": _softmax(relax.op.nn.log_softmax),
}
"""Converter by name of operator and overload."""
