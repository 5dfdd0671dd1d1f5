"""Comparisons, truth values, bits and choices.

Comparisons are made in the type that torch promotes both operands to, and give truth values; whatever
differs from zero is true. Checked against torch in tests/tuner/frontend/converters/test_elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_name, dtype_of
from tuner.frontend.converters.elementwise import has_sign


def _comparison(operator: Callable[..., Expr]) -> Converter:
    def convert(call: Call) -> Expr:
        if operator in _OF_ITSELF and call.given("self") is call.given("other"):
            unknown = _is(relax.op.isnan, otherwise=False)(call)
            return unknown if _OF_ITSELF[operator] else call.emit(relax.op.logical_not(unknown))
        dtype = dtype_name(torch.result_type(call.meta("self"), call.meta("other")))
        if dtype == "bool":  # of which TVM's comparisons are not all defined
            dtype = "int8"
        return call.emit(operator(*(_number(call, call[name], dtype) for name in ("self", "other"))))

    return convert


_OF_ITSELF = {relax.op.equal: False, relax.op.not_equal: True}
"""Comparisons of a value with itself ask whether it is NaN; TVM takes every value for equal to itself."""


def _number(call: Call, value: Expr | float, dtype: str) -> Expr:
    return call.cast(value, dtype)


def _logical(operator: Callable[..., Expr]) -> Converter:
    return lambda call: call.emit(operator(call.operand("self", "bool"), call.operand("other", "bool")))


def _logical_not(call: Call) -> Expr:
    return call.emit(relax.op.logical_not(call.operand("self", "bool")))


def _bitwise(operator: Callable[..., Expr], on_truth: Callable[..., Expr] | None = None) -> Converter:
    def convert(call: Call) -> Expr:
        dtype = call.dtype
        chosen = on_truth if dtype == "bool" and on_truth is not None else operator
        return call.emit(chosen(call.operand("self", dtype), call.operand("other", dtype)))

    return convert


def _bitwise_not(call: Call) -> Expr:
    x = call["self"]
    return call.emit((relax.op.logical_not if dtype_of(x) == "bool" else relax.op.bitwise_not)(x))


def _is(operator: Callable[..., Expr], *, otherwise: bool) -> Converter:
    """Convert a question of floating-point numbers, which whole numbers answer all alike."""

    def convert(call: Call) -> Expr:
        x = call["self"]
        if "float" in dtype_of(x):
            return call.emit(operator(x))
        return call.emit(relax.op.full(list(call.shape), relax.const(otherwise, "bool"), "bool"))

    return convert


def _signbit(call: Call) -> Expr:
    x = call["self"]
    if dtype_of(x) == "bool":
        return call.emit(relax.op.zeros_like(x))
    return has_sign(call, x)


def _where(call: Call) -> Expr:
    condition = call.operand("condition", "bool")
    return call.emit(relax.op.where(condition, call.operand("self"), call.operand("other")))


def _masked_fill(call: Call) -> Expr:
    x, mask = call["self"], call.operand("mask", "bool")
    return call.emit(relax.op.where(mask, call.operand("value"), x))


_COMPARISONS = {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}

_BITS = {
    "and": _bitwise(relax.op.bitwise_and, relax.op.logical_and),
    "or": _bitwise(relax.op.bitwise_or, relax.op.logical_or),
    "xor": _bitwise(relax.op.bitwise_xor, relax.op.logical_xor),
    "left_shift": _bitwise(relax.op.left_shift),
    "right_shift": _bitwise(relax.op.right_shift),
}

_SHORT = {
    "and": "__and__",
    "or": "__or__",
    "xor": "__xor__",
    "left_shift": "__lshift__",
    "right_shift": "__rshift__",
}

LOGIC: Mapping[str, Converter] = {
    **{
        f"{name}.{overload}": _comparison(operator)
        for name, operator in _COMPARISONS.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"{spelling}.{overload}": converter
        for name, converter in _BITS.items()
        for spelling in (f"bitwise_{name}", _SHORT[name])
        for overload in ("Tensor", "Scalar", "Tensor_Scalar")
    },
    "bitwise_not.default": _bitwise_not,
    "logical_and.default": _logical(relax.op.logical_and),
    "logical_or.default": _logical(relax.op.logical_or),
    "logical_xor.default": _logical(relax.op.logical_xor),
    "logical_not.default": _logical_not,
    "isnan.default": _is(relax.op.isnan, otherwise=False),
    "isinf.default": _is(relax.op.isinf, otherwise=False),
    "isfinite.default": _is(relax.op.isfinite, otherwise=True),
    "signbit.default": _signbit,
    "where.self": _where,
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
}
"""Converter by name of operator and overload."""
