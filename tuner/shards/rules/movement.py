"""Operators that move axes, or repeat, pad and cut along them."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import local_shape
from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Value

op = relax.op


def _permute_dims(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation, 0)
    ndim = len(tensor.shape)
    axes = operation.call.attrs.axes
    order = list(range(ndim))[::-1] if axes is None else [int(axis) % ndim for axis in axes]
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank]]),
        split.moved(order.index(split.axis)),
        operation.shape,
    )


def _broadcast_to(operation: Operation) -> Value:
    tensor, split = operation.tensor(0), only_split(operation, 0)
    layout = split.moved(split.axis + len(operation.shape) - len(tensor.shape))
    return operation.writer.emit(
        lambda rank: op.broadcast_to(tensor.parts[rank], local_shape(layout, operation.shape, rank)),
        layout,
        operation.shape,
    )


def _strided_slice(operation: Operation) -> Value:
    """Slice along axes that no shard shares."""
    tensor, split = operation.tensor(0), only_split(operation, 0)
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
    tensor, split = operation.tensor(0), only_split(operation, 0)
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
