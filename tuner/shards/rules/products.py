"""Matrix products: split by columns, by rows, by the contracted axis, or by batch.

    X (…, m, k) · W (k, n split)            columns: the result is split along n
    X (…, m, k split) · W (k split, n)      contracted: each shard has a term of the sum
    X (…, m split, k) · W (k, n)            rows: the result is split along m
    X (b split, …) · Y (b split, …)         batch, such as attention's heads

Of attention as one operator, heads or samples are each a shard's own.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3, whose MLP is the first case and then the second.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Layout, Partial, Split
from tuner.shards.rules.elementwise import broadcast_part, common_split
from tuner.shards.rules.rule import Operation, Rule, described
from tuner.shards.writer import Sharded, Value


def _matmul(operation: Operation) -> Value:
    left, right = operation.tensor(0), operation.tensor(1)
    if min(len(left.shape), len(right.shape)) < 2:
        raise UnsupportedOperatorError("it multiplies by a vector")
    if _is_contracted(left, -1) or _is_contracted(right, -2):
        return _contracted(operation, left, right)
    if _is_contracted(right, -1):
        return _columns(operation, left, right)
    if _is_contracted(left, -2):
        return _rows(operation, left, right)
    return _batch(operation, left, right)


def _is_contracted(value: Sharded, axis: int) -> bool:
    return value.split is not None and value.split.axis == len(value.shape) + axis


def _contracted(operation: Operation, left: Sharded, right: Sharded) -> Value:
    """Multiply parts of the contracted axis; a whole operand gives its part."""
    split = left.split or right.split
    assert split is not None
    own = (
        operation.writer.laid_out(left, split.moved(len(left.shape) - 1)),
        operation.writer.laid_out(right, split.moved(len(right.shape) - 2)),
    )
    return _product(operation, own, Partial("sum"))


def _columns(operation: Operation, left: Sharded, right: Sharded) -> Value:
    if left.split is not None:
        raise UnsupportedOperatorError("its rows and its columns are both split")
    assert right.split is not None
    return _product(operation, (left, right), right.split.moved(len(operation.shape) - 1))


def _rows(operation: Operation, left: Sharded, right: Sharded) -> Value:
    if right.split is not None:
        raise UnsupportedOperatorError("its rows and its batch are both split")
    assert left.split is not None
    return _product(operation, (left, right), left.split.moved(len(operation.shape) - 2))


def _batch(operation: Operation, left: Sharded, right: Sharded) -> Value:
    ndim = len(operation.shape)
    layout: Split = common_split([left, right], ndim)
    own = (
        broadcast_part(operation, left, layout, ndim),
        broadcast_part(operation, right, layout, ndim),
    )
    return _product(operation, own, layout)


def _product(operation: Operation, own: tuple[Sharded, Sharded], layout: Layout) -> Sharded:
    left, right = own
    return operation.writer.emit(
        lambda rank: operation.again(rank, [left.parts[rank], right.parts[rank]]), layout, operation.shape
    )


PRODUCTS: Mapping[str, Rule] = {"matmul": _matmul}


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
