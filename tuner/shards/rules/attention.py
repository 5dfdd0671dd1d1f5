"""Attention as one operator: heads, or samples, are each a shard's own."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import UnsupportedOperatorError
from tuner.shards.rules.rule import Operation, Rule, described
from tuner.shards.writer import Value

_SAMPLES, _HEADS = 0, 2
"""Axes of query, key and value: (samples, length, heads, depth)."""


def _attention(operation: Operation) -> Value:
    tensors = [operation.tensor(index) for index in range(3)]
    splits = {tensor.split for tensor in tensors}
    split = tensors[0].split
    if split is None or len(splits) > 1 or split.axis not in (_SAMPLES, _HEADS):
        found = ", ".join(map(described, tensors))
        raise UnsupportedOperatorError(
            f"its query, key and value are {found}; only samples or heads of all three can be split"
        )
    if len(operation.operands) > 3:
        bias = operation.tensor(3)
        axis = 0 if split.axis == _SAMPLES else 1
        is_shared = bias.shape[axis] == 1
        tensors.append(bias if is_shared else operation.writer.laid_out(bias, split.moved(axis)))
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank] for tensor in tensors]),
        split,
        operation.shape,
    )


ATTENTION: Mapping[str, Rule] = {"nn.attention": _attention, "nn.attention_bias": _attention}
