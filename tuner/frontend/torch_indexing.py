"""Conversion of torch's indexing operators such that no index is out of bounds.

TVM's operators take an index as an offset: a negative one, which torch counts from the end, reads whatever
lies before the tensor, and one that is too large what lies behind it. Here negative indices are counted from
the end where torch does so, what is still outside is clipped, and indices that the program holds as constants
are made ready while it is imported. Several indices at once select element by element and may stand anywhere,
as in NumPy; they become one look-up. Checked against torch in
tests/tuner/frontend/test_torch_indexing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import tvm
from tvm import relax, tirx

from tuner.frontend.emission import PathBuilder

FxNode: TypeAlias = Any
"""A `torch.fx.Node`; the declared types of its arguments are all that an argument can be."""


class IndexImporter(Protocol):
    """What a converter sees of the importer.

    Attributes:
        env: what each node that was converted became.
        builder: emits into the function being built.
        values: what each tensor of the module holds, by name of its variable.
    """

    env: dict[Any, Any]
    builder: PathBuilder
    values: dict[str, np.ndarray]


def _select(node: FxNode, importer: IndexImporter) -> Any:
    """Emit the slice at one index, counted from the end where it is negative."""
    x, index = importer.env[node.args[0]], int(node.args[2])
    axis = _axis(x, node.args[1])
    extent = x.ty.shape[axis]
    if isinstance(extent, int | tirx.IntImm):
        constant = relax.const(np.array(_wrapped_number(index, int(extent)), "int64"))
        return importer.builder.emit(relax.op.take(x, constant, axis=axis, mode="clip"))
    # Of an open extent only slices know the end.
    end = index + 1 or int(np.iinfo(np.int64).max)
    slices = importer.builder.emit(relax.op.strided_slice(x, [axis], [index], [end]))
    return importer.builder.emit(relax.op.squeeze(slices, [axis]))


def _index(node: FxNode, importer: IndexImporter) -> Any:
    """Emit what `x[i, :, j]` selects: one look-up over the indexed axes, flattened into one."""
    x, given = importer.env[node.args[0]], _indices(node.args[1], importer)
    rank = len(x.ty.shape)
    axes = sorted(given)
    if len(axes) == 1:
        index = _from_start(given[axes[0]], _extent(x, axes[0]), importer)
        return importer.builder.emit(relax.op.take(x, index, axis=axes[0], mode="clip"))
    shape = [_extent(x, axis) for axis in range(rank)]
    offset = _offset(given, shape, importer)
    # Indices that stand together keep their place; others go to the front.
    first = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    others = [axis for axis in range(rank) if axis not in given]
    order = [*others[:first], *axes, *others[first:]]
    if order != list(range(rank)):
        x = importer.builder.emit(relax.op.permute_dims(x, order))
    flat = [math.prod(shape[axis] for axis in axes)]
    merged = [*(shape[axis] for axis in others[:first]), *flat, *(shape[axis] for axis in others[first:])]
    x = importer.builder.emit(relax.op.reshape(x, merged))
    return importer.builder.emit(relax.op.take(x, offset, axis=first, mode="clip"))


def _index_select(node: FxNode, importer: IndexImporter) -> Any:
    x, axis, index = importer.env[node.args[0]], node.args[1], importer.env[node.args[2]]
    return importer.builder.emit(relax.op.take(x, index, axis=_axis(x, axis), mode="clip"))


def _take(node: FxNode, importer: IndexImporter) -> Any:
    """Emit a look-up in the flattened tensor."""
    x, index = importer.env[node.args[0]], importer.env[node.args[1]]
    size = math.prod(_extent(x, axis) for axis in range(len(x.ty.shape)))
    flat = importer.builder.emit(relax.op.reshape(x, [size]))
    index = _from_start(index, size, importer)
    return importer.builder.emit(relax.op.take(flat, index, axis=0, mode="clip"))


def _gather(node: FxNode, importer: IndexImporter) -> Any:
    x, axis, index = importer.env[node.args[0]], node.args[1], importer.env[node.args[2]]
    axis = _axis(x, axis)
    index = _inside(index, _extent(x, axis), importer)
    return importer.builder.emit(relax.op.gather_elements(x, index, axis=axis))


def _scatter(node: FxNode, importer: IndexImporter) -> Any:
    """Emit a copy with values put at indices; a number is put at each."""
    x, axis, index = importer.env[node.args[0]], node.args[1], importer.env[node.args[2]]
    axis = _axis(x, axis)
    index = _inside(index, _extent(x, axis), importer)
    if isinstance(node.args[3], torch.fx.Node):
        source = importer.env[node.args[3]]
    else:
        number = relax.const(node.args[3], str(x.ty.dtype.dtype))
        source = importer.builder.emit(relax.op.broadcast_to(number, index.ty.shape))
    return importer.builder.emit(relax.op.scatter_elements(x, index, source, axis=axis))


def _index_put(node: FxNode, importer: IndexImporter) -> Any:
    """Emit a copy of a tensor with values put at indices of every axis."""
    x, given = importer.env[node.args[0]], _indices(node.args[1], importer)
    if len(given) != len(x.ty.shape):
        raise ValueError(f"{len(given)} of {len(x.ty.shape)} axes have an index, and each needs one")
    values = importer.env[node.args[2]]
    accumulates = bool(node.args[3]) if len(node.args) > 3 else bool(node.kwargs.get("accumulate", False))
    extents = {axis: _extent(x, axis) for axis in sorted(given)}
    indices = [
        _inside(_from_start(given[axis], extent, importer), extent, importer)
        for axis, extent in extents.items()
    ]
    return importer.builder.emit(relax.op.index_put(x, relax.Tuple(indices), values, accumulates))


def _indices(nodes: Sequence[torch.fx.Node | None], importer: IndexImporter) -> dict[int, Any]:
    """Return the indices by axis."""
    given = {axis: importer.env[node] for axis, node in enumerate(nodes) if node is not None}
    if not given:
        raise ValueError("no axis has an index")
    if any(_dtype(index) == "bool" for index in given.values()):
        raise ValueError("truth values choose what is taken, so that a shape depends on values")
    return given


def _offset(given: Mapping[int, Any], shape: Sequence[int], importer: IndexImporter) -> Any:
    """Return where each selected element lies within the indexed axes, taken in order."""
    known = {axis: _known(index, importer) for axis, index in given.items()}
    axes = sorted(given)
    if all(values is not None for values in known.values()):
        inside = [_wrapped(np.asarray(known[axis]), shape[axis]) for axis in axes]
        extents = [shape[axis] for axis in axes]
        return relax.const(np.ravel_multi_index(np.broadcast_arrays(*inside), extents).astype("int64"))
    emit = importer.builder.emit
    total = None
    for axis in axes:
        index = emit(relax.op.astype(given[axis], "int64"))
        index = _inside(_from_start(index, shape[axis], importer), shape[axis], importer)
        if total is None:
            total = index
        else:
            scaled = emit(relax.op.multiply(total, relax.const(shape[axis], "int64")))
            total = emit(relax.op.add(scaled, index))
    return total


def _from_start(index: Any, extent: int, importer: IndexImporter) -> Any:
    """Return indices counted from the start of an axis, those that are constants clipped to it as well."""
    values = _known(index, importer)
    if values is not None:
        return relax.const(_wrapped(values, extent))
    emit, dtype = importer.builder.emit, _dtype(index)
    is_negative = emit(relax.op.less(index, relax.const(0, dtype)))
    from_end = emit(relax.op.add(index, relax.const(extent, dtype)))
    return emit(relax.op.where(is_negative, from_end, index))


def _inside(index: Any, extent: int, importer: IndexImporter) -> Any:
    """Return indices clipped to what an axis has."""
    values = _known(index, importer)
    if values is not None:
        return relax.const(np.clip(values, 0, extent - 1))
    emit, dtype = importer.builder.emit, _dtype(index)
    least = emit(relax.op.maximum(index, relax.const(0, dtype)))
    return emit(relax.op.minimum(least, relax.const(extent - 1, dtype)))


def _wrapped(values: np.ndarray, extent: int) -> np.ndarray:
    return np.clip(np.where(values < 0, values + extent, values), 0, extent - 1).astype(values.dtype)


def _wrapped_number(index: int, extent: int) -> int:
    return min(max(index + extent if index < 0 else index, 0), extent - 1)


def _known(index: Any, importer: IndexImporter) -> np.ndarray | None:
    """Return what an index holds, where the program holds it; floating-point tensors may change."""
    if isinstance(index, tvm.ir.expr.Constant):
        return index.value.numpy()
    values = importer.values.get(index.name) if isinstance(index, relax.Var) else None
    return None if values is None or np.issubdtype(values.dtype, np.floating) else values


def _axis(x: Any, axis: int) -> int:
    return axis % len(x.ty.shape)


def _extent(x: Any, axis: int) -> int:
    extent = x.ty.shape[axis]
    if not isinstance(extent, int | tirx.IntImm):
        raise ValueError(f"axis {axis} has an index and an open extent; export the program for fixed shapes")
    return int(extent)


def _dtype(value: Any) -> str:
    return str(value.ty.dtype.dtype)


INDEXING: Mapping[str, Callable[[torch.fx.Node, IndexImporter], Any]] = {
    "select.int": _select,
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "take.default": _take,
    "gather.default": _gather,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "index_put.default": _index_put,
    "index_put_.default": _index_put,
}
"""Converter by name of operator and overload."""
