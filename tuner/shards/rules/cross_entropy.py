"""Softmax, its logarithm, and the negative log-likelihood of labels, where classes are split; with gradients.

Of a softmax, the maximum and the sum are exchanged: each shard needs two numbers a row of the others, never
their logits (the "parallel cross-entropy" of Shoeybi et al., "Megatron-LM", 2019, section 3). A label is one
shard's own: that shard contributes its logarithm, the others zero. The number of labels that count is known
to all, since labels are whole on every shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Partial, Replicated, Split
from tuner.shards.rules.lookup import local_indices
from tuner.shards.rules.rule import Operation, Rule, axis_of, described, only_split
from tuner.shards.writer import Sharded, ShardWriter, Value, constant

op = relax.op


def _nll_loss(operation: Operation) -> Value:
    """Pick each label's entry, zero where another shard has it, and reduce as the operator says."""
    writer, values, labels = operation.writer, operation.tensor(0), operation.tensor(1)
    split = _class_split(operation, values, labels, num_tensors=2)
    local, inside = local_indices(writer, labels, split)
    counted = _counted(operation, labels, values.dtype)

    def entries(rank: int) -> Any:
        picked = op.gather_elements(values.parts[rank], op.expand_dims(local.parts[rank], [1]), axis=1)
        own = op.multiply(op.astype(inside.parts[rank], values.dtype), counted.parts[rank])
        return op.negative(op.multiply(op.squeeze(picked, [1]), own))

    terms = writer.emit(entries, Partial("sum"), labels.shape)
    reduction = str(operation.call.attrs.reduction)
    if reduction == "none":
        return terms
    total = writer.emit(lambda rank: op.sum(terms.parts[rank]), Partial("sum"), ())
    if reduction == "sum":
        return total
    number, whole = _number(writer, counted), writer.reduced(total)
    return writer.emit(lambda rank: op.divide(whole.parts[rank], number.parts[rank]), Replicated(), ())


def _nll_loss_backward(operation: Operation) -> Value:
    """Put minus the gradient at each label's entry; an index beyond a shard's own sets none of its row."""
    writer = operation.writer
    gradient, values, labels = (operation.tensor(index) for index in range(3))
    split = _class_split(operation, values, labels, num_tensors=3)
    offset = writer.offset(split, labels.dtype)
    counted = _counted(operation, labels, values.dtype)
    scale = gradient
    if str(operation.call.attrs.reduction) == "mean":
        number = _number(writer, counted)
        scale = writer.emit(
            lambda rank: op.divide(gradient.parts[rank], number.parts[rank]), Replicated(), ()
        )

    def scattered(rank: int) -> Any:
        hot = op.one_hot(
            op.subtract(labels.parts[rank], offset.parts[rank]),
            _float(-1.0, values.dtype),
            _float(0.0, values.dtype),
            split.extents[rank],
            axis=-1,
        )
        each = op.multiply(counted.parts[rank], scale.parts[rank])
        return op.multiply(hot, op.expand_dims(each, [1]))

    return writer.emit(scattered, split, values.shape)


def _class_split(operation: Operation, values: Sharded, labels: Sharded, *, num_tensors: int) -> Split:
    if len(values.shape) != 2 or values.split is None or values.split.axis != 1:
        raise UnsupportedOperatorError(
            f"its predictions of shape {values.shape} are {described(values)}; only the classes of (rows, "
            "classes) can be split"
        )
    if labels.split is not None:
        raise UnsupportedOperatorError("its labels are split")
    if len(operation.operands) > num_tensors:
        raise UnsupportedOperatorError("it weighs the classes")
    return values.split


def _counted(operation: Operation, labels: Sharded, dtype: str) -> Sharded:
    """Return 1 for each label that counts, and 0 for those to be ignored."""
    ignored = constant(int(operation.call.attrs.ignore_index), labels.dtype)
    return operation.writer.emit(
        lambda rank: op.astype(op.not_equal(labels.parts[rank], ignored), dtype), Replicated(), labels.shape
    )


def _number(writer: ShardWriter, counted: Sharded) -> Sharded:
    return writer.emit(lambda rank: op.sum(counted.parts[rank]), Replicated(), ())


def _float(value: float, dtype: str) -> Any:
    return tvm.tirx.FloatImm(dtype, value)


CROSS_ENTROPY: Mapping[str, Rule] = {
    "nn.nll_loss": _nll_loss,
    "grad.nll_loss_backward": _nll_loss_backward,
}


def _softmax(operation: Operation) -> Value:
    split = only_split(operation)
    if split.axis != _axis(operation):
        return _each_row(operation)
    _, powers, total = _shifted(operation)
    return operation.writer.emit(
        lambda rank: op.divide(powers.parts[rank], total.parts[rank]), split, operation.shape
    )


def _log_softmax(operation: Operation) -> Value:
    split = only_split(operation)
    if split.axis != _axis(operation):
        return _each_row(operation)
    shifted, _, total = _shifted(operation)
    return operation.writer.emit(
        lambda rank: op.subtract(shifted.parts[rank], op.log(total.parts[rank])), split, operation.shape
    )


def _shifted(operation: Operation) -> tuple[Sharded, Sharded, Sharded]:
    """Return logits less their row's maximum, the exponentials of those, and these' sums over all shards."""
    writer, logits = operation.writer, operation.tensor(0)
    split, axis = only_split(operation), _axis(operation)
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
