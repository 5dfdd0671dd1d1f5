"""Operators that move elements and change none: views, joins, parts, repetitions, padding.

The shape that `torch.export` noted is what a view becomes, so that no rule on -1 or 0 in shapes matters.
What picks elements by a fixed rule (diagonals, windows, strides) is one look-up with constant indices.
Checked against torch in tests/tuner/frontend/converters/test_movement.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

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


def _same(call: Call) -> Expr:
    return call["self"]


def _view(call: Call) -> Expr:
    return call.reshaped(call["self"], call.shape)


def _to_type(name: str) -> Converter:
    return lambda call: call.operand(name)


def _copy(call: Call) -> Expr:
    """Emit what is copied, in the type and shape of what it is copied to."""
    source = call.operand("src")
    return source if shape_of(source) == call.shape else call.emit(relax.op.broadcast_to(source, call.shape))


def _permute(call: Call) -> Expr:
    x = call["self"]
    return _permuted(call, x, [axis % max(rank_of(x), 1) for axis in call["dims"]])


def _transpose(call: Call) -> Expr:
    x = call["self"]
    axes = list(range(rank_of(x)))
    if axes:
        one, other = (call[name] % rank_of(x) for name in ("dim0", "dim1"))
        axes[one], axes[other] = axes[other], axes[one]
    return _permuted(call, x, axes)


def _turned(call: Call) -> Expr:
    x = call["self"]
    return _permuted(call, x, list(reversed(range(rank_of(x)))))


def _permuted(call: Call, x: Expr, axes: Sequence[int]) -> Expr:
    return x if list(axes) == list(range(rank_of(x))) else call.emit(relax.op.permute_dims(x, list(axes)))


def _unsqueeze(call: Call) -> Expr:
    return call.emit(relax.op.expand_dims(call["self"], call["dim"] % len(call.shape)))


def _squeeze(call: Call) -> Expr:
    x = call["self"]
    shape = shape_of(x)
    given = call["dim"] if "dim" in call.names else range(len(shape))
    axes = sorted({axis % max(len(shape), 1) for axis in ([given] if isinstance(given, int) else given)})
    dropped = [axis for axis in axes if axis < len(shape) and shape[axis] == 1]
    return call.emit(relax.op.squeeze(x, dropped)) if dropped else x


def _expand(call: Call) -> Expr:
    x = call["self"]
    return x if shape_of(x) == call.shape else call.emit(relax.op.broadcast_to(x, call.shape))


def _concatenate(call: Call) -> Expr:
    """Emit the joined tensors, in one type; those without elements, of whatever shape, are left out."""
    tensors = [call.cast(x, call.dtype) for x in call["tensors"] if size_of(x)]
    if len(tensors) == 1:
        return tensors[0]
    return call.emit(relax.op.concat(tensors, axis=call["dim"] % len(call.shape)))


def _stack(call: Call) -> Expr:
    tensors = [call.cast(x, call.dtype) for x in call["tensors"]]
    return call.emit(relax.op.stack(tensors, axis=call["dim"] % len(call.shape)))


def _split(call: Call) -> list[Expr]:
    """Emit the parts that the noted shapes have."""
    x, axis = call["self"], call["dim"] % rank_of(call["self"])
    lengths = [int(result.shape[axis]) for result in call.results]
    return _parts(call, x, lengths, axis)


def _unbind(call: Call) -> list[Expr]:
    x, axis = call["self"], call["dim"] % rank_of(call["self"])
    parts = _parts(call, x, [1] * shape_of(x)[axis], axis)
    return [call.emit(relax.op.squeeze(part, [axis])) for part in parts]


def _parts(call: Call, x: Expr, lengths: Sequence[int], axis: int) -> list[Expr]:
    if len(lengths) == 1:
        return [x]
    ends = list(itertools.accumulate(lengths))[:-1]
    parts = call.emit(relax.op.split(x, ends, axis))
    return [call.emit(relax.TupleGetItem(parts, index)) for index in range(len(lengths))]


def _slice(call: Call) -> Expr:
    x, axis = call["self"], call["dim"] % rank_of(call["self"])
    start, end, step = _range(call, shape_of(x)[axis])
    return _sliced(call, x, axis, start, end, step)


def _narrow(call: Call) -> Expr:
    x, axis = call["self"], call["dim"] % rank_of(call["self"])
    start = call["start"] % shape_of(x)[axis]
    return _sliced(call, x, axis, start, start + call["length"])


def _sliced(call: Call, x: Expr, axis: int, start: int, end: int, step: int = 1) -> Expr:
    if (start, end, step) == (0, shape_of(x)[axis], 1):
        return x
    return call.emit(relax.op.strided_slice(x, [axis], [start], [end], [step]))


def _range(call: Call, extent: int) -> tuple[int, int, int]:
    """Return start, end and step of a slice, which torch clips to the axis."""
    start, end = (call[name] for name in ("start", "end"))
    return slice(start, end, call["step"]).indices(extent)


def _slice_scatter(call: Call) -> Expr:
    """Emit a copy in which a slice is replaced."""
    x, source, axis = call["self"], call.operand("src"), call["dim"] % rank_of(call["self"])
    extent = shape_of(x)[axis]
    start, end, step = _range(call, extent)
    source = call.emit(relax.op.broadcast_to(source, _with(shape_of(x), axis, len(range(start, end, step)))))
    if step == 1:
        parts = [_sliced(call, x, axis, 0, start), source, _sliced(call, x, axis, end, extent)]
        kept = [part for part in parts if size_of(part)]
        return kept[0] if len(kept) == 1 else call.emit(relax.op.concat(kept, axis=axis))
    # Both tensors one behind the other, and of each row the place where it stands there.
    places = np.arange(extent, dtype="int64")
    places[start:end:step] = extent + np.arange(shape_of(source)[axis])
    both = call.emit(relax.op.concat([x, source], axis=axis))
    return call.emit(relax.op.take(both, constant(places), axis=axis, mode="clip"))


def _flip(call: Call) -> Expr:
    x = call["self"]
    for axis in call["dims"]:
        x = call.emit(relax.op.flip(x, axis % rank_of(x)))
    return x


def _roll(call: Call) -> Expr:
    """Emit the tensor with its ends exchanged, along each axis, or in the order of its elements."""
    x, dims = call["self"], call["dims"]
    if not dims:
        x, dims = call.reshaped(x, [size_of(x)]), [0]
    for shift, dim in zip(call["shifts"], dims, strict=True):
        axis = dim % rank_of(x)
        extent = shape_of(x)[axis]
        kept = extent - shift % extent
        if kept < extent:
            halves = [_sliced(call, x, axis, kept, extent), _sliced(call, x, axis, 0, kept)]
            x = call.emit(relax.op.concat(halves, axis=axis))
    return call.reshaped(x, call.shape)


def _repeat(call: Call) -> Expr:
    """Emit copies side by side, each axis as one of copies and one of elements; both have gradients."""
    x, counts = call["self"], call["repeats"] if "repeats" in call.names else call["dims"]
    rank = max(len(counts), rank_of(x))
    counts = [1] * (rank - len(counts)) + list(counts)
    shape = (1,) * (rank - rank_of(x)) + shape_of(x)
    if any(count > 1 for count in counts):
        pairs = [(1, extent) if count > 1 else (extent,) for count, extent in zip(counts, shape, strict=True)]
        wide = [(count, n) if count > 1 else (n,) for count, n in zip(counts, shape, strict=True)]
        x = call.reshaped(x, list(itertools.chain(*pairs)))
        x = call.emit(relax.op.broadcast_to(x, list(itertools.chain(*wide))))
    return call.reshaped(x, call.shape)


def _repeat_interleave(call: Call) -> Expr:
    x = call["self"]
    if call["dim"] is None:
        return call.emit(relax.op.repeat(call.reshaped(x, [size_of(x)]), call["repeats"], axis=0))
    return call.emit(relax.op.repeat(x, call["repeats"], axis=call["dim"] % rank_of(x)))


def _triangle(call: Call) -> Expr:
    """Emit a triangle of each matrix; types that Relax's own does not take are chosen by a mask."""
    x, offset = call["self"], call["diagonal"]
    is_lower = call.node.target.__name__.startswith("tril")
    if "float" in dtype_of(x):
        return call.emit((relax.op.tril if is_lower else relax.op.triu)(x, offset))
    mask = (np.tril if is_lower else np.triu)(np.ones(shape_of(x)[-2:], bool), offset)
    return call.emit(relax.op.where(relax.const(mask, "bool"), x, relax.const(0, dtype_of(x))))


def _diagonal(call: Call) -> Expr:
    """Emit a diagonal as the last axis."""
    x = call["self"]
    one, other = (call[name] % rank_of(x) for name in ("dim1", "dim2"))
    others = [axis for axis in range(rank_of(x)) if axis not in (one, other)]
    x = _permuted(call, x, [*others, one, other])
    *outer, rows, columns = shape_of(x)
    offset, length = call["offset"], call.shape[-1]
    steps = np.arange(length, dtype="int64")
    places = (steps + max(-offset, 0)) * columns + steps + max(offset, 0)
    flat = call.reshaped(x, [*outer, rows * columns])
    return call.emit(relax.op.take(flat, constant(places), axis=len(outer), mode="clip"))


def _windows(call: Call) -> Expr:
    """Emit the windows of an axis, each as a row of a new last axis."""
    x, size, step = call["self"], call["size"], call["step"]
    if not rank_of(x):
        return call.reshaped(x, call.shape)
    axis = call["dimension"] % rank_of(x)
    starts = np.arange(call.shape[axis], dtype="int64")[:, None] * step
    places = constant(starts + np.arange(size, dtype="int64"))
    windows = call.emit(relax.op.take(x, places, axis=axis, mode="clip"))
    order = [*range(axis + 1), *range(axis + 2, rank_of(x) + 1), axis + 1]
    return _permuted(call, windows, order)


def _strided(call: Call) -> Expr:
    """Emit elements at regular places in memory, of a tensor that is dense there.

    Raises:
        ValueError: it is not dense, so that what is where in memory is not known.
    """
    x, noted = call["self"], call.meta("self")
    if not noted.is_contiguous() or noted.storage_offset():
        raise ValueError("it reads memory that is laid out otherwise than its tensor")
    offset = call["storage_offset"] or 0
    places = np.full(call.shape, offset, "int64")
    for axis, (extent, stride) in enumerate(zip(call.shape, call["stride"], strict=True)):
        shape = [-1 if each == axis else 1 for each in range(len(call.shape))]
        places += (np.arange(extent, dtype="int64") * stride).reshape(shape)
    flat = call.reshaped(x, [size_of(x)])
    return call.emit(relax.op.take(flat, constant(places), axis=0, mode="clip"))


def _pad(call: Call) -> Expr:
    """Emit a tensor with a number around it; what is to be padded by less than nothing is cut off."""
    x, dtype = call["self"], dtype_of(call["self"])
    rank = rank_of(x)
    widths = [(0, 0)] * (rank - len(call["pad"]) // 2)
    pairs = list(zip(call["pad"][::2], call["pad"][1::2], strict=True))
    widths += reversed(pairs)
    for axis, (before, after) in enumerate(widths):
        x = _sliced(call, x, axis, max(-before, 0), shape_of(x)[axis] - max(-after, 0))
    if all(before <= 0 and after <= 0 for before, after in widths):
        return x
    added = list(itertools.chain(*((max(before, 0), max(after, 0)) for before, after in widths)))
    if dtype == "bool":
        x = call.cast(x, "int8")
    value = float(call["value"]) if "float" in dtype else int(call["value"])
    return call.cast(call.emit(relax.op.nn.pad(x, added, "constant", value)), dtype)


def _filled(call: Call) -> Expr:
    return call.emit(relax.op.full(list(call.shape), call.operand("value"), call.dtype))


def _with(shape: Sequence[int], axis: int, extent: int) -> list[int]:
    return [*shape[:axis], extent, *shape[axis + 1 :]]


MOVEMENT: Mapping[str, Converter] = {
    **{
        f"{name}.default": _same
        for name in ("alias", "clone", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "view_copy")
    },
    **{
        f"{name}.default": _view
        for name in ("view", "reshape", "_unsafe_view", "_reshape_copy", "_reshape_alias")
    },
    **{f"flatten.{overload}": _view for overload in ("using_ints",)},
    "unflatten.int": _view,
    "_to_copy.default": _to_type("self"),
    "to.dtype": _to_type("self"),
    "to.dtype_layout": _to_type("self"),
    "type_as.default": _to_type("self"),
    "convert_element_type.default": _to_type("a"),
    "copy.default": _copy,
    "permute.default": _permute,
    "transpose.int": _transpose,
    "t.default": _turned,
    "numpy_T.default": _turned,
    "unsqueeze.default": _unsqueeze,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "expand.default": _expand,
    "broadcast_to.default": _expand,
    "expand_as.default": _expand,
    "cat.default": _concatenate,
    "concat.default": _concatenate,
    "stack.default": _stack,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "chunk.default": _split,
    "unbind.int": _unbind,
    "slice.Tensor": _slice,
    "narrow.default": _narrow,
    "slice_scatter.default": _slice_scatter,
    "flip.default": _flip,
    "roll.default": _roll,
    "repeat.default": _repeat,
    "tile.default": _repeat,
    "repeat_interleave.self_int": _repeat_interleave,
    "tril.default": _triangle,
    "triu.default": _triangle,
    "diagonal.default": _diagonal,
    "unfold.default": _windows,
    "as_strided.default": _strided,
    "constant_pad_nd.default": _pad,
    "fill.Scalar": _filled,
    "fill.Tensor": _filled,
}
"""Converter by name of operator and overload."""
