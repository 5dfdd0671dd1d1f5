"""Rows of a table by index, and the scatter-add that is its gradient.

Of a table whose rows are split (a vocabulary-parallel embedding), each shard looks up what it holds and
contributes zero for the rest; the sum over the shards is the result. In the gradient each shard adds
what belongs to its rows, and nothing is exchanged.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Partial, Replicated, Split
from tuner.shards.rules.rule import Operation, Rule, axis_of
from tuner.shards.writer import Sharded, ShardWriter, Value, constant

op = relax.op


def local_indices(writer: ShardWriter, indices: Sharded, layout: Split) -> tuple[Sharded, Sharded]:
    """Return indices into each shard's part, in range everywhere, and whether each is the shard's own.

    The second is boolean; where it is False, the first means nothing.
    """
    offset = writer.offset(layout, indices.dtype)
    shape = indices.shape

    def shifted(rank: int) -> Any:
        return op.subtract(indices.parts[rank], offset.parts[rank])

    local = writer.emit(shifted, Replicated(), shape)

    def number(value: int) -> Any:
        return constant(value, indices.dtype)

    inside = writer.emit(
        lambda rank: op.logical_and(
            op.greater_equal(local.parts[rank], number(0)),
            op.less(local.parts[rank], number(layout.extents[rank])),
        ),
        Replicated(),
        shape,
    )
    clipped = writer.emit(
        lambda rank: op.minimum(op.maximum(local.parts[rank], number(0)), number(layout.extents[rank] - 1)),
        Replicated(),
        shape,
    )
    return clipped, inside


def _take(operation: Operation) -> Value:
    table, indices = operation.tensor(0), operation.tensor(1)
    if table.split is None:
        return _take_by_split_indices(operation, table, indices)
    if indices.split is not None:
        raise UnsupportedOperatorError("both the table and the indices are split")
    axis = _axis(operation, table)
    if table.split.axis != axis:
        return _take_of_other_axis(operation, table, indices, axis)
    # What is out of the whole table's range reads its ends, as one device's clipped look-up does.
    last = constant(table.shape[axis] - 1, indices.dtype)
    bounded = operation.writer.emit(
        lambda rank: op.minimum(op.maximum(indices.parts[rank], constant(0, indices.dtype)), last),
        Replicated(),
        indices.shape,
    )
    local, inside = local_indices(operation.writer, bounded, table.split)
    mask_shape = (1,) * axis + indices.shape + (1,) * (len(table.shape) - axis - 1)

    def looked_up(rank: int) -> Any:
        rows = operation.again(rank, [table.parts[rank], local.parts[rank]])
        own = op.astype(op.reshape(inside.parts[rank], mask_shape), table.dtype)
        return op.multiply(rows, own)

    return operation.writer.emit(looked_up, Partial("sum"), operation.shape)


def _take_of_other_axis(operation: Operation, table: Sharded, indices: Sharded, axis: int) -> Value:
    split = _split(table)
    moved = split.axis if split.axis < axis else split.axis - 1 + len(indices.shape)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [table.parts[rank], indices.parts[rank]]),
        split.moved(moved),
        operation.shape,
    )


def _take_by_split_indices(operation: Operation, table: Sharded, indices: Sharded) -> Value:
    split = _split(indices)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [table.parts[rank], indices.parts[rank]]),
        split.moved(_axis(operation, table) + split.axis),
        operation.shape,
    )


def _take_backward(operation: Operation) -> Value:
    """Add the rows of a gradient, where they are the shard's own, at their local indices."""
    gradient, table, indices = (operation.tensor(index) for index in range(3))
    axis = _axis(operation, table)
    if table.split is None and gradient.split is not None:
        # Each shard adds up its own columns of the table, such as the heads of a relative position bias.
        table = operation.writer.laid_out(table, _columns_of(gradient.split, axis, len(indices.shape)))
    split = table.split
    if split is None or indices.split is not None:
        raise UnsupportedOperatorError("its indices are split, and the table is whole")
    taken = math.prod(indices.shape)
    if split.axis != axis:
        moved = split.axis if split.axis < axis else split.axis - 1 + len(indices.shape)
        own = operation.writer.laid_out(gradient, split.moved(moved))
        return operation.writer.emit(
            lambda rank: operation.again(rank, [own.parts[rank], table.parts[rank], indices.parts[rank]]),
            split,
            table.shape,
        )
    if gradient.split is not None:
        raise UnsupportedOperatorError("both the gradient and the table's rows are split")
    local, inside = local_indices(operation.writer, indices, split)
    mask_shape = (1,) * axis + (taken,) + (1,) * (len(table.shape) - axis - 1)

    def scattered(rank: int) -> Any:
        own = op.astype(op.reshape(inside.parts[rank], mask_shape), gradient.dtype)
        rows = op.multiply(gradient.parts[rank], own)
        return operation.again(rank, [rows, table.parts[rank], local.parts[rank]])

    return operation.writer.emit(scattered, split, table.shape)


def _columns_of(gradient: Split, axis: int, num_indices: int) -> Split:
    """Return how a table lies whose gradient by look-up comes split, along another axis than the indices'."""
    if gradient.axis < axis:
        return gradient
    if gradient.axis < axis + num_indices:
        raise UnsupportedOperatorError("its gradient is split along the indices, and the table is whole")
    return gradient.moved(gradient.axis - num_indices + 1)


def _split(value: Sharded) -> Split:
    if value.split is None:
        raise UnsupportedOperatorError("neither the table nor the indices are split")
    return value.split


def _axis(operation: Operation, table: Sharded) -> int:
    # TVM has no look-up without an axis but in a table of one.
    return axis_of(operation, ndim=len(table.shape), default=0)


LOOKUP: Mapping[str, Rule] = {"take": _take, "grad.take_backward": _take_backward}
