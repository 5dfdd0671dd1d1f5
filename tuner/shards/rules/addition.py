"""Sums of terms: two tensors that both still wait for a collective need one together.

The gradients of query, key and value by one input are such terms.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.shards.layouts import Partial
from tuner.shards.rules.rule import Operation, Rule
from tuner.shards.writer import Sharded, Value


def adds_terms(operation: Operation) -> bool:
    """Say whether all operands are terms of sums, of the result's shape, of which none is reduced already."""
    return all(
        isinstance(operand, Sharded)
        and operand.layout == Partial("sum")
        and operand.shape == operation.shape
        and not operation.writer.is_reduced(operand)
        for operand in operation.operands
    )


def add_terms(operation: Operation) -> Value:
    """Add, or subtract, each shard's terms."""
    left, right = operation.tensor(0), operation.tensor(1)
    return operation.writer.emit(
        lambda rank: operation.again(rank, [left.parts[rank], right.parts[rank]]),
        Partial("sum"),
        operation.shape,
    )


ADDITION: Mapping[str, Rule] = {"add": add_terms, "subtract": add_terms}
"""Rules for terms; tensors that are no terms go by the rule of element-wise operators."""
