"""Clipping to bounds that are numbers, not tensors."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Value


def _clip(operation: Operation) -> Value:
    bounds = operation.call.args[1:]
    layout = only_split(operation, 0)
    tensor = operation.tensor(0)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank], *bounds]), layout, operation.shape
    )


CLIPPING: Mapping[str, Rule] = {"clip": _clip}
