"""Complex numbers, which Relax lacks: as real numbers with a last axis of real and imaginary part.

That is what `torch.view_as_real` gives, so that going to it and back costs nothing. Here are the operators
that rotary positions are written in; others with complex numbers are refused. Checked against torch in
tests/tuner/frontend/converters/test_complex_numbers.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, constant, dtype_of, rank_of
from tuner.frontend.converters.reductions import root_of_sum


def is_complex(node: torch.fx.Node) -> bool:
    """Say whether a call takes or gives complex numbers."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def _same(call: Call) -> Expr:
    return call["self"]


def _polar(call: Call) -> Expr:
    size, angle = call["abs"], call["angle"]
    parts = [call.emit(operator(angle)) for operator in (relax.op.cos, relax.op.sin)]
    return _joined(call, *(call.emit(relax.op.multiply(size, part)) for part in parts))


def _complex(call: Call) -> Expr:
    return _joined(call, call["real"], call["imag"])


def _multiply(call: Call) -> Expr:
    """Emit (a + bi)(c + di), or a multiple by a real tensor or number."""
    operands = [_scaled_by(call, name) for name in ("self", "other")]
    if not all(_is_complex(call, name) for name in ("self", "other")):
        return call.emit(relax.op.multiply(*operands))
    (a, b), (c, d) = (_parts(call, each) for each in operands)
    ac, bd, ad, bc = (call.emit(relax.op.multiply(x, y)) for x, y in ((a, c), (b, d), (a, d), (b, c)))
    return _joined(call, call.emit(relax.op.subtract(ac, bd)), call.emit(relax.op.add(ad, bc)))


def _sum(call: Call) -> Expr:
    if call["alpha"] != 1 or not all(_is_complex(call, name) for name in ("self", "other")):
        raise ValueError("it adds complex numbers to real ones, or a multiple of them")
    operator = relax.op.add if call.node.target.__name__.startswith("add") else relax.op.subtract
    return call.emit(operator(call["self"], call["other"]))


def _conjugate(call: Call) -> Expr:
    x = call["self"]
    return call.emit(relax.op.multiply(x, relax.const(np.array([1, -1]), dtype_of(x))))


def _magnitude(call: Call) -> Expr:
    squares = call.emit(relax.op.square(call["self"]))
    return root_of_sum(call, call.emit(relax.op.sum(squares, axis=[rank_of(squares) - 1])))


def _view(call: Call) -> Expr:
    return call.reshaped(call["self"], (*call.shape, 2))


def _expand(call: Call) -> Expr:
    return call.emit(relax.op.broadcast_to(call["self"], [*call.shape, 2]))


def _permute(call: Call) -> Expr:
    rank = rank_of(call["self"]) - 1
    return call.emit(relax.op.permute_dims(call["self"], [*(axis % rank for axis in call["dims"]), rank]))


def _transpose(call: Call) -> Expr:
    rank = rank_of(call["self"]) - 1
    axes = list(range(rank + 1))
    one, other = (call[name] % rank for name in ("dim0", "dim1"))
    axes[one], axes[other] = axes[other], axes[one]
    return call.emit(relax.op.permute_dims(call["self"], axes))


def _joined(call: Call, real: Expr, imaginary: Expr) -> Expr:
    return call.emit(relax.op.stack([real, imaginary], axis=len(call.shape)))


def _parts(call: Call, x: Expr) -> list[Expr]:
    """Return real and imaginary part."""
    axis = rank_of(x) - 1
    return [
        call.emit(relax.op.take(x, constant(np.array(index, "int64")), axis=axis, mode="clip"))
        for index in (0, 1)
    ]


def _is_complex(call: Call, name: str) -> bool:
    value = call.meta(name)
    return isinstance(value, torch.Tensor) and value.is_complex()


def _scaled_by(call: Call, name: str) -> Expr:
    """Return an operand; a real one gets a last axis, along which it is the same."""
    value = call[name]
    if _is_complex(call, name):
        return value
    if isinstance(value, complex):
        raise ValueError("it multiplies by a complex number that stands in the code")
    dtype = str(call.results[0].real.dtype).removeprefix("torch.")
    if isinstance(value, int | float):
        return call.cast(value, dtype)
    value = call.cast(value, dtype)
    return call.emit(relax.op.expand_dims(value, rank_of(value)))


COMPLEX: Mapping[str, Converter] = {
    "view_as_complex.default": _same,
    "view_as_real.default": _same,
    "alias.default": _same,
    "clone.default": _same,
    "detach.default": _same,
    "polar.default": _polar,
    "complex.default": _complex,
    "mul.Tensor": _multiply,
    "add.Tensor": _sum,
    "sub.Tensor": _sum,
    "_conj.default": _conjugate,
    "abs.default": _magnitude,
    "view.default": _view,
    "reshape.default": _view,
    "_unsafe_view.default": _view,
    "unsqueeze.default": _view,
    "squeeze.dim": _view,
    "expand.default": _expand,
    "permute.default": _permute,
    "transpose.int": _transpose,
}
"""Converter by name of operator and overload."""
