"""Find the rule of an operator.

Every rule is held to one contract in tests/tuner/shards/test_rules.py: all shards together equal the whole,
forward and every gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.layouts import Replicated
from tuner.shards.rules.cross_entropy import CROSS_ENTROPY, SOFTMAX
from tuner.shards.rules.elementwise import ADDITION, ELEMENTWISE, adds_terms
from tuner.shards.rules.joining import JOINING
from tuner.shards.rules.lookup import LOOKUP
from tuner.shards.rules.movement import MOVEMENT, RESHAPING
from tuner.shards.rules.products import ATTENTION, PRODUCTS
from tuner.shards.rules.reductions import NORMALIZATION, REDUCTIONS
from tuner.shards.rules.rule import Operation, Rule
from tuner.shards.writer import Sharded, Value
from tuner.stages.program import operator_name

RULES: Mapping[str, Rule] = {
    **ATTENTION,
    **CROSS_ENTROPY,
    **ELEMENTWISE,
    **JOINING,
    **LOOKUP,
    **MOVEMENT,
    **NORMALIZATION,
    **PRODUCTS,
    **REDUCTIONS,
    **RESHAPING,
    **SOFTMAX,
}


def apply_rule(operation: Operation, place: str) -> Value:
    """Write an operation for every shard.

    What is whole on every shard is computed by every shard, whatever the operator.

    Args:
        operation: the call and its operands; partial ones are reduced here, unless they are summed as terms.
        place: names the call in an error.

    Raises:
        UnsupportedOperatorError: no rule shards the operator, or not so; names it and its place.
    """
    name = operator_name(operation.call)
    if name in ADDITION and adds_terms(operation):
        return ADDITION[name](operation)
    operands = tuple(_reduced(operation, operand) for operand in operation.operands)
    operation = Operation(operation.call, operands, operation.writer)
    if all(_is_whole(operand) for operand in operands):
        return _on_every_shard(operation)
    if name not in RULES:
        raise UnsupportedOperatorError(
            f"operator {name!r}, which computes {place}, reads a split tensor, and no rule shards it; "
            "leave the weights that lead to it whole"
        )
    try:
        return RULES[name](operation)
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(
            f"operator {name!r}, which computes {place}, cannot be sharded: {error}; leave the weights that "
            "lead to it whole, or split them along another axis"
        ) from error


def _on_every_shard(operation: Operation) -> Value:
    def call(rank: int) -> object:
        arguments = [
            argument if operand is None else _part(operand, rank)
            for argument, operand in zip(operation.call.args, operation.operands, strict=True)
        ]
        return operation.again(rank, arguments)

    if isinstance(operation.call.ty, relax.TupleType):
        shapes = [tuple(int(extent) for extent in field.shape) for field in operation.call.ty.fields]
        return operation.writer.emit_tuple(call, [Replicated()] * len(shapes), shapes)
    return operation.writer.emit(call, Replicated(), operation.shape)


def _part(operand: Value, rank: int) -> object:
    if isinstance(operand, Sharded):
        return operand.parts[rank]
    return relax.Tuple([field.parts[rank] for field in operand])


def _reduced(operation: Operation, operand: Value | None) -> Value | None:
    if isinstance(operand, Sharded):
        return operation.writer.reduced(operand)
    return None if operand is None else tuple(operation.writer.reduced(field) for field in operand)


def _is_whole(operand: Value | None) -> bool:
    fields = operand if isinstance(operand, tuple) else (operand,)
    return all(field is None or isinstance(field.layout, Replicated) for field in fields)
