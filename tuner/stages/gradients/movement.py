"""Gradients of operators that move elements or reduce over axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tuner.stages.gradients.rule import Gradient, Parts, shape_of
from tuner.stages.program import Expr, Var

op = relax.op

_MAX_RUNS = 128
"""Longest axis whose runs of factors are written out: 64 kB for each row of float32."""


def _reshaped(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.reshape(gradient, call.args[0].ty.shape), *[None] * (len(call.args) - 1))


def _tril(result: Var, call: Any, gradient: Expr) -> Parts:
    return op.tril(gradient, call.args[1]), None


def _triu(result: Var, call: Any, gradient: Expr) -> Parts:
    return op.triu(gradient, call.args[1]), None


def _extremum(result: Var, call: Any, gradient: Expr) -> Parts:
    """The gradient goes to the largest (smallest) elements, in equal shares where several are equal."""
    value = call.args[0]
    axes = _axes(call.attrs.axis, value)
    kept = [1 if index in axes else extent for index, extent in enumerate(shape_of(value))]
    hits = op.astype(op.equal(value, op.reshape(result, kept)), value.ty.dtype)
    shares = op.divide(hits, op.sum(hits, axes, keepdims=True))
    return (op.multiply(op.reshape(gradient, kept), shares),)


def _take(result: Var, call: Any, gradient: Expr) -> Parts:
    """Scatter the gradient; TVM's own covers indices in one dimension, and an index known now is a slice."""
    value, indices = call.args
    if len(indices.ty.shape) == 1:
        return None
    shape = shape_of(value)
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    num_taken = math.prod(shape_of(indices))
    flat = op.reshape(gradient, (*shape[:axis], num_taken, *shape[axis + 1 :]))
    if isinstance(indices, tvm.ir.expr.Constant) and num_taken == 1:
        index = int(indices.value.numpy().item()) % shape[axis]
        widths = [0] * (2 * len(shape))
        widths[2 * axis : 2 * axis + 2] = index, shape[axis] - 1 - index
        return op.nn.pad(flat, widths), None
    return op.grad.take_backward(flat, value, op.reshape(indices, (num_taken,)), axis), None


def _gather_elements(result: Var, call: Any, gradient: Expr) -> Parts:
    """Add up the gradients of what was gathered from one place."""
    value, indices = call.args
    zeros = op.zeros(shape_of(value), value.ty.dtype.dtype)
    axis = int(call.attrs.axis)
    return op.scatter_elements(zeros, indices, gradient, axis=axis, reduction="add"), None


def _scatter_elements(result: Var, call: Any, gradient: Expr) -> Parts:
    """Give each update the gradient of its place, and what is kept the rest.

    Where several updates replace one place, each gets its gradient, as in torch. Products, minima and maxima
    are not covered.
    """
    _, indices, updates = call.args
    axis, reduction = int(call.attrs.axis), str(call.attrs.reduction)
    if reduction not in ("add", "update"):
        return None
    kept = gradient
    if reduction == "update":
        zeros = op.zeros(shape_of(updates), updates.ty.dtype.dtype)
        kept = op.scatter_elements(gradient, indices, zeros, axis=axis)
    return kept, None, op.gather_elements(gradient, indices, axis=axis)


def _where(result: Var, call: Any, gradient: Expr) -> Parts:
    """Hand the gradient to what was chosen, summed over what was broadcast, which TVM's own is not."""
    condition, chosen, other = call.args
    zeros = op.zeros(shape_of(result), result.ty.dtype.dtype)
    parts = op.where(condition, gradient, zeros), op.where(condition, zeros, gradient)
    return None, *(
        part if shape_of(each) == shape_of(result) else op.collapse_sum_to(part, shape_of(each))
        for part, each in zip(parts, (chosen, other), strict=True)
    )


def _topk(result: Var, call: Any, gradient: Expr) -> Parts:
    """Hand each value's gradient back to the place that it was taken from, which is found again."""
    if str(call.attrs.ret_type) != "both":
        return None
    (value,) = call.args
    zeros = op.zeros(shape_of(value), value.ty.dtype.dtype)
    values = gradient.fields[0] if isinstance(gradient, relax.Tuple) else relax.TupleGetItem(gradient, 0)
    options = call.attrs
    places = op.topk(
        value, int(options.k), int(options.axis), "indices", bool(options.largest), str(options.dtype)
    )
    return (op.scatter_elements(zeros, places, values, axis=int(call.attrs.axis), reduction="add"),)


def _flip(result: Var, call: Any, gradient: Expr) -> Parts:
    return (op.flip(gradient, call.attrs.axis),)


def _prod(result: Var, call: Any, gradient: Expr) -> Parts:
    """Give each factor the product of the others, of those before it and those behind: factors may be 0."""
    value = call.args[0]
    shape, reduced = shape_of(value), _axes(call.attrs.axis, value)
    order = [*(axis for axis in range(len(shape)) if axis not in reduced), *reduced]
    kept = [shape[axis] for axis in order[: len(order) - len(reduced)]]
    factors = op.reshape(op.permute_dims(value, order), (*kept, math.prod(shape[axis] for axis in reduced)))
    before = op.cumprod(factors, len(kept), exclusive=True)
    behind = op.flip(op.cumprod(op.flip(factors, len(kept)), len(kept), exclusive=True), len(kept))
    parts = op.multiply(op.reshape(gradient, (*kept, 1)), op.multiply(before, behind))
    turned = op.reshape(parts, [shape[axis] for axis in order])
    return (op.permute_dims(turned, [order.index(axis) for axis in range(len(shape))]),)


def _cumprod(result: Var, call: Any, gradient: Expr) -> Parts:
    """Sum over the products that a factor is in: what is before it, and each run of factors behind it.

    All runs are written out, one row for each factor, so long axes are not covered.
    """
    value, axis, exclusive = call.args[0], call.attrs.axis, bool(call.attrs.exclusive)
    if axis is None or exclusive or shape_of(value)[int(axis)] > _MAX_RUNS:
        return None
    rank, dtype = len(shape_of(value)), str(value.ty.dtype.dtype)
    others = [each for each in range(rank) if each != int(axis) % rank]
    order = [*others, int(axis) % rank]
    back = [order.index(each) for each in range(rank)]
    factors, arriving = op.permute_dims(value, order), op.permute_dims(gradient, order)
    *batch, count = (shape_of(value)[each] for each in order)
    is_behind = relax.const(np.triu(np.ones((count, count), bool), 1))
    row = op.broadcast_to(op.reshape(factors, (*batch, 1, count)), (*batch, count, count))
    runs = op.cumprod(op.where(is_behind, row, relax.const(1.0, dtype)), rank)
    reached = op.multiply(runs, relax.const(np.triu(np.ones((count, count), dtype)), dtype))
    sums = op.sum(op.multiply(reached, op.reshape(arriving, (*batch, 1, count))), [rank])
    before = op.cumprod(factors, rank - 1, exclusive=True)
    return (op.permute_dims(op.multiply(before, sums), back),)


def _stack(result: Var, call: Any, gradient: Expr) -> Parts:
    tensors = call.args[0].fields
    axis = int(call.attrs.axis) if call.attrs.axis is not None else 0
    if len(tensors) == 1:
        return (relax.Tuple([op.squeeze(gradient, [axis])]),)
    parts = op.split(gradient, len(tensors), axis=axis)
    return (
        relax.Tuple([op.squeeze(relax.TupleGetItem(parts, index), [axis]) for index in range(len(tensors))]),
    )


def _strided_slice(result: Var, call: Any, gradient: Expr) -> Parts:
    """Put zeros where nothing was taken; slices that go backwards are not covered."""
    value, axes, begins, _, *strides = call.args
    steps = [int(stride.value) for stride in strides[0].fields] if strides else [1] * len(axes.fields)
    if any(step < 1 for step in steps):
        return None
    shape, taken = shape_of(value), list(shape_of(result))
    before = [0] * len(shape)
    for axis, begin, step in zip(axes.fields, begins.fields, steps, strict=True):
        index, start = int(axis.value) % len(shape), int(begin.value)
        before[index] = min(max(start + shape[index] if start < 0 else start, 0), shape[index])
        if step > 1 and taken[index]:
            gradient, taken[index] = _apart(gradient, taken, index, step, shape[index] - before[index])
    after = [whole - part - skipped for whole, part, skipped in zip(shape, taken, before, strict=True)]
    widths = [width for pair in zip(before, after, strict=True) for width in pair]
    return (op.nn.pad(gradient, widths), *[None] * (len(call.args) - 1))


def _apart(value: Expr, shape: list[int], axis: int, step: int, most: int) -> tuple[Expr, int]:
    """Put zeros between the elements along an axis, and return how many there are then, at most `most`."""
    apart = op.reshape(value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    widths = [0] * (2 * len(shape) + 2)
    widths[2 * axis + 3] = step - 1
    count = shape[axis] * step
    spread = op.reshape(op.nn.pad(apart, widths), (*shape[:axis], count, *shape[axis + 1 :]))
    if count > most:
        spread, count = op.strided_slice(spread, [axis], [0], [most]), most
    return spread, count


def _pad(result: Var, call: Any, gradient: Expr) -> Parts:
    """Take what was there before; padding that repeats elements is not covered."""
    if call.attrs.pad_mode != "constant":
        return None
    shape = shape_of(call.args[0])
    begins = [int(width) for width in call.attrs.pad_width][::2]
    ends = [begin + extent for begin, extent in zip(begins, shape, strict=True)]
    return (op.strided_slice(gradient, list(range(len(shape))), begins, ends),)


def _repeat(result: Var, call: Any, gradient: Expr) -> Parts:
    """Sum over the copies of each element."""
    shape, repeats = shape_of(call.args[0]), int(call.attrs.repeats)
    if call.attrs.axis is None:
        return (op.reshape(op.sum(op.reshape(gradient, (-1, repeats)), [1]), shape),)
    axis = int(call.attrs.axis) % len(shape)
    copies = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
    return (op.sum(op.reshape(gradient, copies), [axis + 1]),)


def _adaptive_average_pool(result: Var, call: Any, gradient: Expr) -> Parts:
    """Spread each average over its window, one axis after the other, from the last."""
    if str(call.attrs.layout) not in ("NCW", "NCHW", "NCDHW"):
        return None
    extents = shape_of(call.args[0])
    spread = gradient
    for axis in reversed(range(2, len(extents))):
        shape = (*shape_of(result)[: axis + 1], *extents[axis + 1 :])
        spread = _spread(spread, shape, axis, extents[axis], str(result.ty.dtype.dtype))
    return (spread,)


def _spread(averages: Expr, shape: tuple[int, ...], axis: int, extent: int, dtype: str) -> Expr:
    """Spread averages along an axis over elements; an element in several windows gets the sum of its shares.

    Args:
        averages: one for each window.
        shape: of `averages`.
        dtype: of `averages`.
    """
    count = shape[axis]
    if extent % count == 0:
        share = op.divide(averages, relax.const(float(extent // count), dtype))
        apart = op.reshape(share, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        copies = op.broadcast_to(apart, (*shape[: axis + 1], extent // count, *shape[axis + 1 :]))
        return op.reshape(copies, (*shape[:axis], extent, *shape[axis + 1 :]))
    shares = np.zeros((count, extent), dtype)
    for window in range(count):
        start, end = window * extent // count, -((window + 1) * extent // -count)
        shares[window, start:end] = 1 / (end - start)
    return _along(averages, len(shape), axis, shares)


def _average_pool3d(result: Var, call: Any, gradient: Expr) -> Parts:
    """Spread each average over its window, one axis after the other."""
    attributes = call.attrs
    if str(attributes.layout) != "NCDHW" or any(int(step) != 1 for step in attributes.dilation):
        return None
    extents, counts, padding = shape_of(call.args[0]), shape_of(result), attributes.padding
    spread = gradient
    for place, axis in enumerate((2, 3, 4)):
        before, after = int(padding[place]), int(padding[place + 3])
        window = int(attributes.pool_size[place])
        counts_padding = bool(attributes.count_include_pad)
        shares = np.zeros((counts[axis], extents[axis]), str(result.ty.dtype.dtype))
        for index in range(counts[axis]):
            start = index * int(attributes.strides[place]) - before
            end = min(start + window, extents[axis] + after)
            first, last = max(start, 0), min(end, extents[axis])
            shares[index, first:last] = 1 / (end - start if counts_padding else max(last - first, 1))
        spread = _along(spread, len(extents), axis, shares)
    return (spread,)


def _along(value: Expr, rank: int, axis: int, matrix: np.ndarray) -> Expr:
    """Multiply the vectors along an axis by a matrix."""
    others = [each for each in range(rank) if each != axis]
    order = [*others, axis]
    product = op.matmul(op.permute_dims(value, order), relax.const(matrix, str(matrix.dtype)))
    return op.permute_dims(product, [order.index(each) for each in range(rank)])


def _axes(axis: Any, value: Expr) -> list[int]:
    rank = len(value.ty.shape)
    return list(range(rank)) if axis is None else [int(index) % rank for index in axis]


MOVEMENT: Mapping[str, Gradient] = {
    "cumprod": _cumprod,
    "flatten": _reshaped,
    "flip": _flip,
    "gather_elements": _gather_elements,
    "max": _extremum,
    "min": _extremum,
    **{f"nn.adaptive_avg_pool{n}d": _adaptive_average_pool for n in (1, 2, 3)},
    "nn.avg_pool3d": _average_pool3d,
    "nn.batch_flatten": _reshaped,
    "nn.pad": _pad,
    "prod": _prod,
    "repeat": _repeat,
    "scatter_elements": _scatter_elements,
    "squeeze": _reshaped,
    "stack": _stack,
    "strided_slice": _strided_slice,
    "take": _take,
    "topk": _topk,
    "tril": _tril,
    "triu": _triu,
    "where": _where,
}
