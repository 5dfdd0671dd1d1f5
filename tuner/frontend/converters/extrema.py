"""The largest or smallest along an axis, taken from the first place that holds it.

torch's extrema over one axis tell a place, and hand the gradient to it alone; what a maximum without a place
gives is shared by all that equal it. Checked against torch in
tests/tuner/frontend/converters/test_reductions.py and tests/tuner/stages/gradients/test_borders.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from tuner.frontend.converters.call import Call, Expr, dtype_of


def first_place(call: Call, operator: Callable[..., Expr], x: Expr, axis: int, *, keepdims: bool) -> Expr:
    """Emit the first place of the extremum of each row along an axis, or of its first NaN.

    Args:
        operator: Relax's `argmax` or `argmin`.
        x: of any type but truth values.
        axis: counted from the first.
        keepdims: whether the axis stays, with an extent of 1.
    """
    if "float" not in dtype_of(x):
        return call.emit(operator(x, axis=axis, keepdims=keepdims))
    found = call.emit(operator(_nan_foremost(call, operator, x, axis), axis=axis, keepdims=keepdims))
    # Where all are infinite, none passes the number that TVM begins with, whose place is -1.
    return call.emit(relax.op.maximum(found, relax.const(0, "int64")))


def first_extremum(call: Call, operator: Callable[..., Expr], x: Expr, axis: int) -> Expr:
    """Emit the extremum of each row along an axis, which stays with an extent of 1; see `first_place`."""
    place = first_place(call, operator, x, axis, keepdims=True)
    return call.emit(relax.op.gather_elements(x, place, axis=axis))


def _nan_foremost(call: Call, operator: Callable[..., Expr], x: Expr, axis: int) -> Expr:
    """Return what has its extremum at the first NaN, for torch, where a row holds any; TVM's skips it."""
    dtype = dtype_of(x)
    unknown = call.emit(relax.op.isnan(x))
    rows = call.emit(relax.op.max(call.cast(unknown, "int8"), axis=[axis], keepdims=True))
    marks = call.cast(unknown, dtype)
    if operator is relax.op.argmin:
        marks = call.emit(relax.op.negative(marks))
    return call.emit(relax.op.where(call.cast(rows, "bool"), marks, x))
