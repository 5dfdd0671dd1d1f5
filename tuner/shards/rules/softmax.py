"""Softmax and its logarithm over an axis that is split: the maximum and the sum are exchanged.

Each shard needs two numbers a row of the others, never their logits (the "parallel cross-entropy" of Shoeybi
et al., "Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from tuner.shards.layouts import Partial
from tuner.shards.rules.rule import Operation, Rule, axis_of, only_split
from tuner.shards.writer import Sharded, Value

op = relax.op


def _softmax(operation: Operation) -> Value:
    split = only_split(operation, 0)
    if split.axis != _axis(operation):
        return _each_row(operation)
    _, powers, total = _shifted(operation)
    return operation.writer.emit(
        lambda rank: op.divide(powers.parts[rank], total.parts[rank]), split, operation.shape
    )


def _log_softmax(operation: Operation) -> Value:
    split = only_split(operation, 0)
    if split.axis != _axis(operation):
        return _each_row(operation)
    shifted, _, total = _shifted(operation)
    return operation.writer.emit(
        lambda rank: op.subtract(shifted.parts[rank], op.log(total.parts[rank])), split, operation.shape
    )


def _shifted(operation: Operation) -> tuple[Sharded, Sharded, Sharded]:
    """Return logits less their row's maximum, the exponentials of those, and these' sums over all shards."""
    writer, logits = operation.writer, operation.tensor(0)
    split, axis = only_split(operation, 0), _axis(operation)
    rows = (*logits.shape[:axis], 1, *logits.shape[axis + 1 :])
    highest = writer.reduced(
        writer.emit(lambda rank: op.max(logits.parts[rank], [axis], keepdims=True), Partial("max"), rows)
    )
    shifted = writer.emit(
        lambda rank: op.subtract(logits.parts[rank], highest.parts[rank]), split, logits.shape
    )
    powers = writer.emit(lambda rank: op.exp(shifted.parts[rank]), split, logits.shape)
    total = writer.reduced(
        writer.emit(lambda rank: op.sum(powers.parts[rank], [axis], keepdims=True), Partial("sum"), rows)
    )
    return shifted, powers, total


def _each_row(operation: Operation) -> Value:
    logits = operation.tensor(0)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [logits.parts[rank]]), logits.layout, operation.shape
    )


def _axis(operation: Operation) -> int:
    return axis_of(operation, ndim=len(operation.shape))


SOFTMAX: Mapping[str, Rule] = {"nn.softmax": _softmax, "nn.log_softmax": _log_softmax}
