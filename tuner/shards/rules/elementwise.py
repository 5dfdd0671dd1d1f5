"""Operators that work on each element by itself, with broadcasting: every shard works on its own.

A tensor that is whole on every shard gives its part beside one that is split. Of terms of sums, two tensors
that both still wait for a collective need one together: the gradients of query, key and value by one input
are such terms.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Partial, Split
from tuner.shards.rules.rule import Operation, Rule, only_split
from tuner.shards.writer import Sharded, Value


def elementwise(operation: Operation) -> Value:
    """Let each shard work on its part."""
    tensors = [operation.tensor(index) for index in range(len(operation.operands))]
    layout = common_split(tensors, len(operation.shape))
    parts = [broadcast_part(operation, tensor, layout, len(operation.shape)) for tensor in tensors]
    return operation.writer.emit(
        lambda rank: operation.again(rank, [part.parts[rank] for part in parts]), layout, operation.shape
    )


def common_split(tensors: list[Sharded], ndim: int) -> Split:
    """Return the split of a result of `ndim` axes that tensors broadcast to.

    Raises:
        UnsupportedOperatorError: two tensors are split differently.
    """
    found = {
        tensor.split.moved(tensor.split.axis + ndim - len(tensor.shape))
        for tensor in tensors
        if tensor.split is not None
    }
    if len(found) != 1:
        raise UnsupportedOperatorError(f"its arguments are split in {len(found)} different ways")
    return found.pop()


def broadcast_part(operation: Operation, tensor: Sharded, layout: Split, ndim: int) -> Sharded:
    """Return what a tensor contributes to a result that is split, itself where it broadcasts."""
    axis = layout.axis - (ndim - len(tensor.shape))
    if axis < 0 or tensor.shape[axis] == 1:
        return tensor
    return operation.writer.laid_out(tensor, layout.moved(axis))


def _clip(operation: Operation) -> Value:
    """Clip to bounds that are numbers, not tensors."""
    bounds = operation.call.args[1:]
    layout = only_split(operation)
    tensor = operation.tensor(0)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [tensor.parts[rank], *bounds]), layout, operation.shape
    )


NAMES = (
    "abs",
    "add",
    "astype",
    "ceil",
    "cos",
    "divide",
    "equal",
    "erf",
    "exp",
    "floor",
    "full_like",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.leakyrelu",
    "nn.relu",
    "nn.silu",
    "nn.softplus",
    "not_equal",
    "ones_like",
    "power",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "subtract",
    "tanh",
    "where",
    "zeros_like",
)

ELEMENTWISE: Mapping[str, Rule] = {**dict.fromkeys(NAMES, elementwise), "clip": _clip}


def adds_terms(operation: Operation) -> bool:
    """Say whether all operands are terms of sums, of the result's shape, of which none is reduced already."""
    return all(
        isinstance(operand, Sharded)
        and operand.layout == Partial("sum")
        and operand.shape == operation.shape
        and not operation.writer.is_reduced(operand)
        for operand in operation.operands
    )


def _add_terms(operation: Operation) -> Value:
    """Add, or subtract, each shard's terms."""
    left, right = operation.tensor(0), operation.tensor(1)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [left.parts[rank], right.parts[rank]]),
        Partial("sum"),
        operation.shape,
    )


ADDITION: Mapping[str, Rule] = {"add": _add_terms, "subtract": _add_terms}
"""Rules for terms; tensors that are no terms go by the rule of element-wise operators."""
