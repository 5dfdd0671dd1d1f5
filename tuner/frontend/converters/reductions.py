"""Reductions and running sums: over the axes that torch means, in the type that it gives.

Sums and products of whole numbers and truth values are of 64 bits; a variance divides by the number of
elements less a correction; a tensor without axes is reduced as if it had one. Norms, distances, deviations
and magnitudes are roots, whose slope is infinite at 0: torch's autograd gives what a norm of zeros was made
from a gradient of 0, so the root is taken of another number there. Checked against torch in
tests/tuner/frontend/converters/test_reductions.py and tests/tuner/stages/gradients/test_borders.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.frontend.converters.call import (
    Call,
    Converter,
    Expr,
    axes_of,
    dtype_of,
    rank_of,
    shape_of,
)
from tuner.frontend.converters.extrema import first_place


def _reduction(operator: Callable[..., Expr]) -> Converter:
    """Convert a reduction that is computed in the type of its result."""
    return lambda call: _reduce(call, operator, call.operand(_input_of(call)), call.dtype)


def _reduce(call: Call, operator: Callable[..., Expr], x: Expr, dtype: str) -> Expr:
    axes, keeps = _axes(call, rank_of(x)), _keeps(call)
    if not rank_of(x):
        return x
    narrow = dtype == "bool"  # which TVM does not reduce
    found = call.emit(operator(call.cast(x, "int8") if narrow else x, axis=axes, keepdims=keeps))
    return call.cast(found, "bool") if narrow else found


def _mean(call: Call) -> Expr:
    """Emit a mean; halves are summed in float32, as torch sums them."""
    return _wide(call, relax.op.mean)


def _wide(call: Call, operator: Callable[..., Expr]) -> Expr:
    dtype = "float32" if call.dtype in ("float16", "bfloat16") else call.dtype
    return call.cast(_reduce(call, operator, call.operand(_input_of(call), dtype), dtype), call.dtype)


def _sum(call: Call) -> Expr:
    return _wide(call, relax.op.sum)


def _quantifier(operator: Callable[..., Expr]) -> Converter:
    """Convert `any` (the maximum of truth values) or `all` (their minimum)."""

    def convert(call: Call) -> Expr:
        found = _reduce(call, operator, call.operand("self", "bool"), "bool")
        return call.cast(found, call.dtype)

    return convert


def _with_index(operator: Callable[..., Expr], index: Callable[..., Expr]) -> Converter:
    """Convert an extremum over one axis, with the place of its first occurrence."""

    def convert(call: Call) -> list[Expr | None]:
        x = call["self"]
        if "float" in dtype_of(x) and rank_of(x):
            axis = call["dim"] % rank_of(x)
            place = first_place(call, index, x, axis, keepdims=True)
            value = call.emit(relax.op.gather_elements(x, place, axis=axis))
            shape = _shape_of_place(call)
            return [call.reshaped(value, shape), call.reshaped(place, shape)]
        value = _reduce(call, operator, x, dtype_of(x))
        return [value, _place(call, index, x) if 1 in call.used_results else None]

    return convert


def _argument(operator: Callable[..., Expr]) -> Converter:
    return lambda call: _place(call, operator, call["self"])


def _place(call: Call, operator: Callable[..., Expr], x: Expr) -> Expr:
    x = call.cast(x, "int8") if dtype_of(x) == "bool" else x
    is_flat = not rank_of(x) or call["dim"] is None
    if is_flat:
        x = call.reshaped(x, [math.prod(shape_of(x))])
    axis = 0 if is_flat else call["dim"] % rank_of(x)
    found = first_place(call, operator, x, axis, keepdims=not is_flat and _keeps(call))
    return call.reshaped(found, _shape_of_place(call))


def _shape_of_place(call: Call) -> Sequence[int]:
    return tuple(call.results[-1].shape)


def _running(operator: Callable[..., Expr]) -> Converter:
    def convert(call: Call) -> Expr:
        x = call.operand("self")
        if not rank_of(x):
            return x
        return call.emit(operator(x, axis=call["dim"] % rank_of(x), dtype=call.dtype))

    return convert


def _variance(call: Call) -> Expr:
    return _moments(call)[0]


def _deviation(call: Call) -> Expr:
    return root_of_sum(call, _moments(call)[0])


def _variance_and_mean(call: Call) -> list[Expr]:
    return list(_moments(call))


def _deviation_and_mean(call: Call) -> list[Expr]:
    variance, mean = _moments(call)
    return [root_of_sum(call, variance), mean]


def _moments(call: Call) -> tuple[Expr, Expr]:
    """Return the variance, less its correction, and the mean."""
    x = call["self"]
    dtype = "float32" if call.dtype in ("float16", "bfloat16") else call.dtype
    x, shape = call.cast(x, dtype), shape_of(x)
    if not shape:
        x, shape = call.reshaped(x, [1]), (1,)
    axes = _axes(call, len(shape))
    count = math.prod(shape[axis] for axis in axes)
    mean = call.emit(relax.op.mean(x, axis=axes, keepdims=True))
    squares = call.emit(relax.op.square(call.emit(relax.op.subtract(x, mean))))
    total = call.emit(relax.op.sum(squares, axis=axes, keepdims=True))
    divisor = relax.const(max(count - _correction(call), 0), dtype)
    variance = call.emit(relax.op.divide(total, divisor))
    results = [call.cast(call.reshaped(each, call.shape), call.dtype) for each in (variance, mean)]
    return results[0], results[1]


def _correction(call: Call) -> float:
    if "unbiased" in call.names:
        return 1.0 if call["unbiased"] else 0.0
    return float(call["correction"]) if "correction" in call.names and call.has("correction") else 1.0


def _axes(call: Call, rank: int) -> list[int]:
    return axes_of(call["dim"] if "dim" in call.names else None, rank)


def _keeps(call: Call) -> bool:
    return bool(call["keepdim"]) if "keepdim" in call.names else False


def _input_of(call: Call) -> str:
    return "self" if "self" in call.names else "input"


def _named(name: str, converter: Any, *overloads: str) -> dict[str, Any]:
    return {f"{name}.{overload}": converter for overload in overloads}


REDUCTIONS: Mapping[str, Converter] = {
    **_named("sum", _sum, "default", "dim_IntList"),
    **_named("mean", _mean, "default", "dim"),
    **_named("amax", _reduction(relax.op.max), "default"),
    **_named("amin", _reduction(relax.op.min), "default"),
    **_named("max", _reduction(relax.op.max), "default"),
    **_named("min", _reduction(relax.op.min), "default"),
    **_named("max", _with_index(relax.op.max, relax.op.argmax), "dim"),
    **_named("min", _with_index(relax.op.min, relax.op.argmin), "dim"),
    **_named("argmax", _argument(relax.op.argmax), "default"),
    **_named("argmin", _argument(relax.op.argmin), "default"),
    **_named("prod", _reduction(relax.op.prod), "default", "dim_int"),
    **_named("any", _quantifier(relax.op.max), "default", "dim", "dims"),
    **_named("all", _quantifier(relax.op.min), "default", "dim", "dims"),
    **_named("cumsum", _running(relax.op.cumsum), "default"),
    **_named("cumprod", _running(relax.op.cumprod), "default"),
    **_named("var", _variance, "default", "dim", "correction"),
    **_named("std", _deviation, "default", "dim", "correction"),
    **_named("var_mean", _variance_and_mean, "default", "dim", "correction"),
    **_named("std_mean", _deviation_and_mean, "default", "dim", "correction"),
}
"""Converter by name of operator and overload."""


def root_of_sum(call: Call, total: Expr, root: Callable[[Expr], Expr] = relax.op.sqrt) -> Expr:
    """Emit the root of a tensor that is at least 0; where it is 0, no gradient passes."""
    zero, one = (relax.const(number, dtype_of(total)) for number in (0, 1))
    is_zero = call.emit(relax.op.equal(total, zero))
    found = call.emit(root(call.emit(relax.op.where(is_zero, one, total))))
    return call.emit(relax.op.where(is_zero, zero, found))
