"""Orders and counts: sorts, the largest few, medians, bins.

NaN is above all numbers, as torch has it; beside positive infinities it stands in the order of places.
Checked against torch in tests/tuner/frontend/converters/test_reductions.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tvm import relax

from tuner.frontend.converters.call import (
    Call,
    Converter,
    Expr,
    constant,
    dtype_of,
    rank_of,
    shape_of,
    size_of,
)


def _sort(call: Call) -> list[Expr | None]:
    x = call["self"]
    if not rank_of(x):
        return [x, constant(np.zeros((), "int64"))]
    axis, descending = call["dim"] % rank_of(x), bool(call["descending"])
    keys = _keys(call, x)
    places = call.emit(relax.op.argsort(keys, axis=axis, descending=descending, dtype="int64"))
    # By its places, so that both agree where values are equal.
    return [call.emit(relax.op.gather_elements(x, places, axis=axis)), places]


def _argsort(call: Call) -> Expr:
    return _sort(call)[1]


def _largest(call: Call) -> list[Expr]:
    """Emit the largest or smallest values of an axis, in order, with their places."""
    x = call["self"]
    if not rank_of(x):
        return [x, constant(np.zeros((), "int64"))]
    axis, largest = call["dim"] % rank_of(x), bool(call["largest"])
    places = call.emit(
        relax.op.topk(
            _keys(call, x), call["k"], axis=axis, ret_type="indices", largest=largest, dtype="int64"
        )
    )
    return [call.emit(relax.op.gather_elements(x, places, axis=axis)), places]


def _keys(call: Call, x: Expr) -> Expr:
    """Return what sorts as torch sorts a tensor: TVM's order of NaN is none."""
    if "float" not in dtype_of(x):
        return x
    above = relax.const(np.asarray(np.inf, dtype_of(x)), dtype_of(x))
    return call.emit(relax.op.where(call.emit(relax.op.isnan(x)), above, x))


def _median(call: Call) -> Expr:
    """Emit the lower of the middle values of all.

    As the largest of those that are not above it: its gradient is shared by all that equal it, as in torch.
    """
    x = call.reshaped(call["self"], [size_of(call["self"])])
    value = _middle(call, x, 0)[0]
    if "float" not in dtype_of(x):
        return value
    lowest = relax.const(np.asarray(-np.inf, dtype_of(x)), dtype_of(x))
    lower = call.emit(relax.op.where(call.emit(relax.op.less_equal(x, value)), x, lowest))
    shared = call.emit(relax.op.max(lower, axis=[0]))
    return call.emit(relax.op.where(call.emit(relax.op.isfinite(value)), shared, value))


def _median_of_axis(call: Call) -> list[Expr]:
    x = call["self"]
    x = x if rank_of(x) else call.reshaped(x, [1])
    axis = call["dim"] % rank_of(x)
    found = _at_rank(call, x, axis, call["k"] - 1) if "k" in call.names else _middle(call, x, axis)
    return [call.reshaped(each, call.shape) for each in found]


def _middle(call: Call, x: Expr, axis: int) -> list[Expr]:
    """Return the lower of the middle values of an axis and its place; those of NaN where there is one."""
    value, place = _at_rank(call, x, axis, (shape_of(x)[axis] - 1) // 2)
    if "float" not in dtype_of(x):
        return [value, place]
    flags = call.emit(relax.op.astype(call.emit(relax.op.isnan(x)), "int32"))
    count = call.emit(relax.op.max(flags, axis=[axis]))
    has_nan = call.emit(relax.op.not_equal(count, relax.const(0, "int32")))
    first = call.emit(relax.op.argmax(flags, axis=axis))
    nan = relax.const(np.asarray(np.nan, dtype_of(x)), dtype_of(x))
    return [
        call.emit(relax.op.where(has_nan, nan, value)),
        call.emit(relax.op.where(has_nan, call.cast(first, "int64"), place)),
    ]


def _at_rank(call: Call, x: Expr, axis: int, rank: int) -> list[Expr]:
    """Return the value that is so many places behind the smallest one, and where it stands."""
    places = call.emit(relax.op.argsort(_keys(call, x), axis=axis, descending=False, dtype="int64"))
    place = call.emit(relax.op.strided_slice(places, [axis], [rank], [rank + 1]))
    value = call.emit(relax.op.gather_elements(x, place, axis=axis))
    return [call.emit(relax.op.squeeze(each, [axis])) for each in (value, place)]


def _histogram(call: Call) -> Expr:
    """Emit how many values fall into each of equal bins between two numbers.

    Raises:
        ValueError: the bins reach from the smallest to the largest value, which are not known.
    """
    x, bins, low, high = call["self"], int(call["bins"]), float(call["min"]), float(call["max"])
    if low >= high:
        raise ValueError("its bins reach from the smallest value to the largest")
    dtype = call.dtype
    flat = call.reshaped(x, [size_of(x), 1])
    placed = call.emit(relax.op.subtract(flat, relax.const(low, dtype)))
    placed = call.emit(relax.op.multiply(placed, relax.const(bins, dtype)))
    placed = call.emit(relax.op.floor(call.emit(relax.op.divide(placed, relax.const(high - low, dtype)))))
    # The last bin holds its upper end as well.
    is_last = call.emit(relax.op.equal(flat, relax.const(high, dtype)))
    placed = call.emit(relax.op.where(is_last, relax.const(bins - 1, dtype), placed))
    hits = call.emit(relax.op.equal(placed, relax.const(np.arange(bins), dtype)))
    return call.emit(relax.op.sum(call.emit(relax.op.astype(hits, dtype)), axis=[0]))


def _bucketize(call: Call) -> Expr:
    """Emit how many boundaries lie before each value."""
    name, edges = ("self", "boundaries") if "boundaries" in call.names else ("self", "sorted_sequence")
    x, bounds = call[name], call[edges]
    if rank_of(bounds) != 1:
        raise ValueError("its boundaries have several axes")
    dtype = "float64" if "float" in dtype_of(x) + dtype_of(bounds) else "int64"
    wide = call.emit(relax.op.expand_dims(call.cast(x, dtype), rank_of(x)))
    operator = relax.op.less_equal if call["right"] else relax.op.less
    before = call.emit(operator(call.cast(bounds, dtype), wide))
    return call.emit(relax.op.sum(call.emit(relax.op.astype(before, call.dtype)), axis=[rank_of(x)]))


def _one_hot(call: Call) -> Expr:
    """Emit a one at each class, and zeros."""
    x = call.emit(relax.op.expand_dims(call["self"], rank_of(call["self"])))
    classes = relax.const(np.arange(call.shape[-1]), dtype_of(x))
    return call.emit(relax.op.astype(call.emit(relax.op.equal(x, classes)), call.dtype))


ORDERING: Mapping[str, Converter] = {
    "sort.default": _sort,
    "sort.stable": _sort,
    "argsort.default": _argsort,
    "argsort.stable": _argsort,
    "topk.default": _largest,
    "median.default": _median,
    "median.dim": _median_of_axis,
    "kthvalue.default": _median_of_axis,
    "histc.default": _histogram,
    "bucketize.Tensor": _bucketize,
    "one_hot.default": _one_hot,
}
"""Converter by name of operator and overload."""
