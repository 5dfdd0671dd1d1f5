"""Sums, means and extremes: over an axis that is split, each shard has a term; norms of whole rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Layout, Partial, Reduction, Split, local_shape
from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Value, constant

op = relax.op


def _reduces(reduction: Reduction) -> Rule:
    def reduce(operation: Operation) -> Value:
        tensor, layout = operation.tensor(0), _layout(operation, reduction)
        return operation.writer.emit(
            lambda rank: operation.again(rank, [tensor.parts[rank]]), layout, operation.shape
        )

    return reduce


def _mean(operation: Operation) -> Value:
    """Take sums, and divide them by the whole number of elements."""
    tensor, layout = operation.tensor(0), _layout(operation, "sum")
    if not isinstance(layout, Partial):
        return _reduces("sum")(operation)
    axes = _axes(operation)
    number = 1
    for axis in axes:
        number *= tensor.shape[axis]
    keeps = bool(operation.call.attrs.keepdims)

    def scaled_sum(rank: int) -> Any:
        total = op.sum(tensor.parts[rank], list(axes), keepdims=keeps)
        return op.multiply(total, constant(1.0 / number, tensor.dtype))

    return operation.writer.emit(scaled_sum, layout, operation.shape)


def _unsupported_if_split(operation: Operation) -> Value:
    """Reduce rows that no shard shares; a variance of parts is no term of the whole's."""
    if isinstance(_layout(operation, "sum"), Partial):
        raise UnsupportedOperatorError("it reduces an axis that is split, and no terms make its result")
    return _reduces("sum")(operation)


def _collapse_sum_to(operation: Operation) -> Value:
    """Sum over leading axes, and over those that become 1."""
    tensor, split = operation.tensor(0), only_split(operation)
    axis = split.axis - (len(tensor.shape) - len(operation.shape))
    layout: Layout = Partial("sum")
    if axis >= 0 and operation.shape[axis] == split.extent:
        layout = split.moved(axis)
    return operation.writer.emit(
        lambda rank: op.collapse_sum_to(tensor.parts[rank], local_shape(layout, operation.shape, rank)),
        layout,
        operation.shape,
    )


def _layout(operation: Operation, reduction: Reduction) -> Layout:
    """Say how the result lies: a term where the split axis is reduced, else split where that axis went."""
    split, axes = only_split(operation), _axes(operation)
    if split.axis in axes:
        return Partial(reduction)
    if operation.call.attrs.keepdims:
        return split
    return Split(split.axis - sum(axis < split.axis for axis in axes), split.pieces)


def _axes(operation: Operation) -> tuple[int, ...]:
    ndim = len(operation.tensor(0).shape)
    axes = operation.call.attrs.axis
    return tuple(range(ndim)) if axes is None else tuple(sorted(int(axis) % ndim for axis in axes))


REDUCTIONS: Mapping[str, Rule] = {
    "sum": _reduces("sum"),
    "max": _reduces("max"),
    "min": _reduces("min"),
    "mean": _mean,
    "variance": _unsupported_if_split,
    "std": _unsupported_if_split,
    "prod": _unsupported_if_split,
    "collapse_sum_to": _collapse_sum_to,
}


def _rows(operation: Operation) -> Value:
    split = only_split(operation)
    ndim = len(operation.tensor(0).shape)
    if split.axis in [int(axis) % ndim for axis in operation.call.attrs.axes]:
        raise UnsupportedOperatorError(f"it normalises over axis {split.axis}, which is split")
    tensors = [operation.tensor(index) for index in range(len(operation.operands))]
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank] for tensor in tensors]),
        split,
        operation.shape,
    )


NORMALIZATION: Mapping[str, Rule] = {"nn.layer_norm": _rows, "nn.rms_norm": _rows}
