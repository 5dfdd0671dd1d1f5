"""Normalisation of rows that no shard shares."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import UnsupportedOperatorError
from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Value


def _rows(operation: Operation) -> Value:
    split = only_split(operation, 0)
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
