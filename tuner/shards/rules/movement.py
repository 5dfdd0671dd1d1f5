"""Operators that move axes, repeat, pad and cut along them, or give the same elements another shape.

Of another shape, a split follows where its axis stays the outermost of what it joins:

(rows, words split)            -> (1, rows, words split)
(rows, heads · depth split)    -> (rows, heads split, depth)      where whole heads stay together
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Split, local_shape
from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Value

op = relax.op


def _permute_dims(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation)
    ndim = len(tensor.shape)
    axes = operation.call.attrs.axes
    order = list(range(ndim))[::-1] if axes is None else [int(axis) % ndim for axis in axes]
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank]]),
        split.moved(order.index(split.axis)),
        operation.shape,
    )


def _broadcast_to(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation)
    layout = split.moved(split.axis + len(operation.shape) - len(tensor.shape))
    return operation.writer.emit(
        lambda rank: op.broadcast_to(tensor.parts[rank], local_shape(layout, operation.shape, rank)),
        layout,
        operation.shape,
    )


def _strided_slice(operation: Operation) -> Value:
    """Slice along axes that no shard shares."""
    tensor, split = operation.tensor(0), only_split(operation)
    if operation.shape[split.axis] != tensor.shape[split.axis]:
        raise UnsupportedOperatorError(f"it slices axis {split.axis}, which is split")
    axes, *bounds = ([int(value) for value in argument] for argument in operation.call.args[1:])
    kept = [at for at, axis in enumerate(axes) if axis % len(tensor.shape) != split.axis]
    cut = [[values[at] for at in kept] for values in (axes, *bounds)]
    return operation.writer.emit(
        lambda rank: op.strided_slice(tensor.parts[rank], *cut), split, operation.shape
    )


def _pad(operation: Operation) -> Value:
    """Pad along axes that no shard shares."""
    tensor, split = operation.tensor(0), only_split(operation)
    if operation.shape[split.axis] != tensor.shape[split.axis]:
        raise UnsupportedOperatorError(f"it pads axis {split.axis}, which is split")
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank]]),
        split,
        operation.shape,
    )


MOVEMENT: Mapping[str, Rule] = {
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "nn.pad": _pad,
    "strided_slice": _strided_slice,
}


def _reshape(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation)
    layout = reshaped_split(split, tensor.shape, operation.shape)
    return operation.writer.emit(
        lambda rank: op.reshape(tensor.parts[rank], local_shape(layout, operation.shape, rank)),
        layout,
        operation.shape,
    )


def reshaped_split(split: Split, before: Sequence[int], after: Sequence[int]) -> Split:
    """Find the axis of another shape that holds the same intervals.

    Raises:
        UnsupportedOperatorError: no axis does, since a shard's part is no run of whole indices there.
    """
    outer = math.prod(before[: split.axis])
    inner = math.prod(before[split.axis + 1 :])
    for axis, extent in enumerate(after):
        # The axis must begin where the old one did, and everything inside it be whole indices of the new one.
        if extent > 1 and math.prod(after[:axis]) == outer:
            step = math.prod(after[axis + 1 :])
            pieces = [[(start * inner, length * inner) for start, length in piece] for piece in split.pieces]
            # They cover the axis: where all begin at whole indices of the new one, all end there, too.
            if all(start % step == 0 for piece in pieces for start, _ in piece):
                return Split(
                    axis,
                    tuple(
                        tuple((start // step, length // step) for start, length in piece) for piece in pieces
                    ),
                )
            break
    raise UnsupportedOperatorError(
        f"axis {split.axis} of {tuple(before)} is split into {split.extents}, and no axis of {tuple(after)} "
        "holds these parts whole"
    )


RESHAPING: Mapping[str, Rule] = dict.fromkeys(
    ("reshape", "flatten", "nn.batch_flatten", "squeeze", "expand_dims"), _reshape
)
