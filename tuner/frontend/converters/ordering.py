"""Orders and counts: sorts, the largest few, medians, bins.

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
    places = call.emit(relax.op.argsort(x, axis=axis, descending=descending, dtype="int64"))
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
    both = call.emit(relax.op.topk(x, call["k"], axis=axis, largest=largest, dtype="int64"))
    return [call.emit(relax.TupleGetItem(both, index)) for index in (0, 1)]


def _median(call: Call) -> Expr:
    """Emit the lower of the middle values of all."""
    flat = call.reshaped(call["self"], [size_of(call["self"])])
    return _at_rank(call, flat, 0, (size_of(flat) - 1) // 2)[0]


def _median_of_axis(call: Call) -> list[Expr]:
    x = call["self"]
    x = x if rank_of(x) else call.reshaped(x, [1])
    axis = call["dim"] % rank_of(x)
    rank = call["k"] - 1 if "k" in call.names else (shape_of(x)[axis] - 1) // 2
    return [call.reshaped(each, call.shape) for each in _at_rank(call, x, axis, rank)]


def _at_rank(call: Call, x: Expr, axis: int, rank: int) -> list[Expr]:
    """Return the value that is so many places behind the smallest one, and where it stands."""
    places = call.emit(relax.op.argsort(x, axis=axis, descending=False, dtype="int64"))
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
