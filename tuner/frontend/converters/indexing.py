"""Indices of torch, such that none is out of bounds.

TVM's operators take an index as an offset: a negative one, which torch counts from the end, reads whatever
lies before the tensor, and one that is too large what lies behind it. Here negative indices are counted from
the end where torch does so, what is still outside is clipped, and indices that are known are made ready while
the program is imported. Several indices at once select element by element and may stand anywhere, as in
NumPy; they become one look-up. Truth values choose elements only where they are known, or where what they
choose is replaced by one number. Checked against torch in tests/tuner/frontend/converters/test_indexing.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from tuner.frontend.converters.call import (
    Call,
    Converter,
    Expr,
    constant,
    dtype_of,
    is_constant,
    rank_of,
    shape_of,
    size_of,
)

_REDUCTIONS = {
    "sum": "add",
    "prod": "mul",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "add": "add",
    "multiply": "mul",
}
"""Relax's name of what torch's scatters do with a value that is there already."""


def _select(call: Call) -> Expr:
    """Emit the slice at one index, counted from the end where it is negative."""
    x, axis = call["self"], call["dim"] % rank_of(call["self"])
    index = np.array(call["index"] % shape_of(x)[axis], "int64")
    return call.emit(relax.op.take(x, constant(index), axis=axis, mode="clip"))


def _index(call: Call) -> Expr:
    """Emit what `x[i, :, j]` selects: one look-up over the indexed axes, flattened into one."""
    x, given = call["self"], _indices(call)
    axes = sorted(given)
    if len(axes) == 1:
        index = _from_start(call, given[axes[0]], shape_of(x)[axes[0]])
        return call.emit(relax.op.take(x, index, axis=axes[0], mode="clip"))
    shape = shape_of(x)
    offset = _offset(call, given, shape)
    # Indices that stand together keep their place; others go to the front.
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    others = [axis for axis in range(len(shape)) if axis not in given]
    x = _permuted(call, x, [*others[:first], *axes, *others[first:]])
    flat = [math.prod(shape[axis] for axis in axes)]
    merged = [*(shape[axis] for axis in others[:first]), *flat, *(shape[axis] for axis in others[first:])]
    return call.emit(relax.op.take(call.reshaped(x, merged), offset, axis=first, mode="clip"))


def _index_select(call: Call) -> Expr:
    x, index = call["self"], call["index"]
    if not rank_of(x):
        return call.reshaped(x, call.shape)
    index = call.reshaped(index, [size_of(index)])
    return call.emit(relax.op.take(x, index, axis=call["dim"] % rank_of(x), mode="clip"))


def _take(call: Call) -> Expr:
    """Emit a look-up in the flattened tensor."""
    x = call["self"]
    index = _from_start(call, call["index"], size_of(x))
    return call.emit(relax.op.take(call.reshaped(x, [size_of(x)]), index, axis=0, mode="clip"))


def _rows(call: Call) -> Expr:
    """Emit a look-up of a table's rows; the model says which of them gets no gradient.

    That is told by table, so it must be the same for all that looks up in it.

    Raises:
        ValueError: the gradient is another than that of a look-up.
    """
    if call["scale_grad_by_freq"]:
        raise ValueError("its gradient is scaled by how often a row is looked up")
    if call["padding_idx"] >= 0 and not _is_padded_alike(call.given("weight")):
        raise ValueError("its table has a row of padding and is read in another way, too")
    if call["padding_idx"] >= 0:
        call.importer.padding_rows[call.given("weight")] = call["padding_idx"]
    table, indices = call["weight"], call["indices"]
    flat = call.reshaped(indices, [size_of(indices)])
    rows = call.emit(relax.op.take(table, flat, axis=0, mode="clip"))
    return call.reshaped(rows, call.shape)


def _is_padded_alike(table: Any) -> bool:
    """Say whether whatever picks rows of a table is a look-up with the same row of padding."""
    rows = {
        user.args[2] if len(user.args) > 2 else -1
        for user in table.users
        if user.target is torch.ops.aten.embedding.default
    }
    picks = [user for user in table.users if getattr(user.target, "__name__", "") in INDEXING]
    return (
        table.op == "placeholder"
        and len(rows) == 1
        and all(user.target is torch.ops.aten.embedding.default for user in picks)
    )


def _gather(call: Call) -> Expr:
    x, index, axis = _with_axes(call)
    index = _inside(call, index, shape_of(x)[axis])
    return call.reshaped(call.emit(relax.op.gather_elements(x, index, axis=axis)), call.shape)


def _scatter(call: Call) -> Expr:
    """Emit a copy with values put at indices, or added to what is there; a number is put at each."""
    x, index, axis = _with_axes(call)
    if not size_of(index):  # TVM divides by its extents
        return call["self"]
    index = _inside(call, index, shape_of(x)[axis])
    name = "src" if "src" in call.names else "value"
    source = call.cast(call[name], dtype_of(x))
    if name == "value" or not shape_of(source):
        source = call.emit(relax.op.broadcast_to(source, list(shape_of(index))))
    elif shape_of(source) != shape_of(index):  # torch reads the corner that the indices cover
        extents = shape_of(index)
        axes = list(range(len(extents)))
        source = call.emit(relax.op.strided_slice(source, axes, [0] * len(axes), list(extents)))
    scattered = relax.op.scatter_elements(x, index, source, axis=axis, reduction=_way(call))
    return call.reshaped(call.emit(scattered), call.shape)


def _way(call: Call) -> str:
    """Return how a scatter joins values with what is there."""
    if call.node.target.__name__.startswith("scatter_add"):
        return "add"
    if "reduce" not in call.names or not call.has("reduce"):
        return "update"
    if "include_self" in call.names and not call["include_self"]:
        raise ValueError("what is there already is left out where values are put")
    return _REDUCTIONS[call["reduce"]]


def _index_add(call: Call) -> Expr:
    """Emit a copy with slices added at the indices of one axis."""
    x, axis = call["self"], call["dim"] % max(rank_of(call["self"]), 1)
    if not size_of(call["index"]):
        return x
    source, alpha = call.operand("source"), call["alpha"]
    if alpha != 1:
        source = call.emit(relax.op.multiply(source, call.cast(alpha, call.dtype)))
    if not rank_of(x):
        return call.emit(relax.op.add(x, call.reshaped(source, [])))
    index = _inside(call, call["index"], shape_of(x)[axis])
    shape = [-1 if each == axis else 1 for each in range(rank_of(x))]
    index = call.emit(relax.op.reshape(index, shape))
    index = call.emit(relax.op.broadcast_to(index, list(shape_of(source))))
    return call.emit(relax.op.scatter_elements(x, index, source, axis=axis, reduction="add"))


def _index_put(call: Call) -> Expr:
    """Emit a copy of a tensor with values put at, or added to, what indices select."""
    x, values, accumulates = call["self"], call.operand("values"), bool(call["accumulate"])
    chosen = _replaced_by_number(call, values)
    if chosen is not None:
        return chosen
    given, shape = _indices(call), shape_of(x)
    axes = sorted(given)
    others = [axis for axis in range(len(shape)) if axis not in given]
    offset = _offset(call, given, shape)
    picked, rest = shape_of(offset), [shape[axis] for axis in others]
    if not math.prod(picked):
        return x
    values = _moved_to_front(call, values, axes, len(picked), [*picked], rest)
    order = [*axes, *others]
    rows, width = math.prod(shape[axis] for axis in axes), math.prod(rest)
    flat = call.reshaped(_permuted(call, x, order), [rows, width])
    count = math.prod(picked)
    index = call.emit(relax.op.broadcast_to(call.reshaped(offset, [count, 1]), [count, width]))
    way = "add" if accumulates else "update"
    source = call.reshaped(values, [count, width])
    put = call.emit(relax.op.scatter_elements(flat, index, source, axis=0, reduction=way))
    put = call.reshaped(put, [shape[axis] for axis in order])
    return _permuted(call, put, [order.index(axis) for axis in range(len(shape))])


def _masked_scatter(call: Call) -> Expr:
    """Emit a copy in which the places of a mask hold another tensor's elements, in their order."""
    x, mask, source = call["self"], call.operand("mask", "bool"), call.operand("source")
    mask = (
        call.emit(relax.op.broadcast_to(mask, list(shape_of(x)))) if shape_of(mask) != shape_of(x) else mask
    )
    flat = call.cast(call.reshaped(mask, [size_of(x)]), "int64")
    behind = call.emit(relax.op.cumsum(flat, axis=0, dtype="int64"))
    places = call.emit(relax.op.subtract(behind, relax.const(1, "int64")))
    places = _inside(call, places, size_of(source))
    taken = call.emit(relax.op.take(call.reshaped(source, [size_of(source)]), places, axis=0, mode="clip"))
    return call.emit(relax.op.where(mask, call.reshaped(taken, shape_of(x)), x))


def _moved_to_front(
    call: Call, values: Expr, axes: Sequence[int], num_picked: int, picked: Sequence[int], rest: Sequence[int]
) -> Expr:
    """Return what is put, with the selected places first and the axes without an index behind them."""
    first = axes[0] if list(axes) == list(range(axes[0], axes[-1] + 1)) else 0
    shape = [*rest[:first], *picked, *rest[first:]]
    values = call.emit(relax.op.broadcast_to(values, shape)) if shape_of(values) != tuple(shape) else values
    order = [*range(first, first + num_picked), *range(first), *range(first + num_picked, len(shape))]
    return _permuted(call, values, order)


def _replaced_by_number(call: Call, values: Expr) -> Expr | None:
    """Return what `x[mask] = number` gives, where truth values are not known; None for other indices."""
    given = [node for node in call.given("indices") if node is not None]
    if len(given) != 1 or call.given("indices")[0] is None or size_of(values) != 1 or call["accumulate"]:
        return None
    mask = call.importer.env[given[0]]
    if dtype_of(mask) != "bool":
        return None
    x = call["self"]
    shape = [*shape_of(mask), *[1] * (rank_of(x) - rank_of(mask))]
    return call.emit(relax.op.where(call.reshaped(mask, shape), call.reshaped(values, []), x))


def _indices(call: Call) -> dict[int, Expr]:
    """Return the indices by axis; known truth values stand for the places where they are true.

    Raises:
        ValueError: truth values are not known, or there is no index.
    """
    given: dict[int, Expr] = {}
    axis = 0
    for node in call.given("indices"):
        if node is None:
            axis += 1
            continue
        index = call.importer.env[node]
        if dtype_of(index) not in ("bool", "uint8"):
            given[axis] = index
            axis += 1
            continue
        known = call.importer.known(node)
        if known is None:
            raise ValueError("truth values choose what is taken, so that a shape depends on values")
        for places in known.bool().nonzero(as_tuple=True):
            given[axis] = constant(places.numpy())
            axis += 1
    if not given:
        raise ValueError("no axis has an index")
    return given


def _offset(call: Call, given: Mapping[int, Expr], shape: Sequence[int]) -> Expr:
    """Return where each selected element lies within the indexed axes, taken in order."""
    axes = sorted(given)
    known = [_values(given[axis]) for axis in axes]
    held = [values for values in known if values is not None]
    if len(held) == len(axes):
        inside = [_wrapped(values, shape[axis]) for values, axis in zip(held, axes, strict=True)]
        extents = [shape[axis] for axis in axes]
        places = np.ravel_multi_index(np.broadcast_arrays(*inside), extents)
        return constant(np.asarray(places).astype("int64"))
    total = None
    for axis in axes:
        index = call.cast(given[axis], "int64")
        index = _inside(call, _from_start(call, index, shape[axis]), shape[axis])
        if total is None:
            total = index
        else:
            scaled = call.emit(relax.op.multiply(total, relax.const(shape[axis], "int64")))
            total = call.emit(relax.op.add(scaled, index))
    return total


def _with_axes(call: Call) -> tuple[Expr, Expr, int]:
    """Return a tensor, its indices and their axis, with one axis where there is none."""
    x, index = call["self"], call["index"]
    x = x if rank_of(x) else call.reshaped(x, [1])
    index = index if rank_of(index) else call.reshaped(index, [1])
    return x, index, call["dim"] % rank_of(x)


def _from_start(call: Call, index: Expr, extent: int) -> Expr:
    """Return indices counted from the start of an axis, those that are known clipped to it as well."""
    values = _values(index)
    if values is not None:
        return constant(_wrapped(values, extent))
    dtype = dtype_of(index)
    is_negative = call.emit(relax.op.less(index, relax.const(0, dtype)))
    from_end = call.emit(relax.op.add(index, relax.const(extent, dtype)))
    return call.emit(relax.op.where(is_negative, from_end, index))


def _inside(call: Call, index: Expr, extent: int) -> Expr:
    """Return indices clipped to what an axis has."""
    values = _values(index)
    if values is not None:
        return constant(np.clip(values, 0, extent - 1))
    dtype = dtype_of(index)
    least = call.emit(relax.op.maximum(index, relax.const(0, dtype)))
    return call.emit(relax.op.minimum(least, relax.const(extent - 1, dtype)))


def _wrapped(values: np.ndarray, extent: int) -> np.ndarray:
    return np.clip(np.where(values < 0, values + extent, values), 0, extent - 1).astype(values.dtype)


def _values(index: Expr) -> np.ndarray | None:
    return index.value.numpy() if is_constant(index) else None


def _permuted(call: Call, x: Expr, axes: Sequence[int]) -> Expr:
    return x if list(axes) == list(range(rank_of(x))) else call.emit(relax.op.permute_dims(x, list(axes)))


INDEXING: Mapping[str, Converter] = {
    "select.int": _select,
    "embedding.default": _rows,
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "index_select.default": _index_select,
    "take.default": _take,
    "gather.default": _gather,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "scatter.reduce": _scatter,
    "scatter_add.default": _scatter,
    "scatter_reduce.two": _scatter,
    "index_add.default": _index_add,
    "masked_scatter.default": _masked_scatter,
    "index_put.default": _index_put,
    "_unsafe_index_put.default": _index_put,
}
"""Converter by name of operator and overload."""
