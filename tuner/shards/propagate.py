"""Turn a function into programs of all shards, given how its inputs lie: layouts propagate forward.

Each binding's rule says how its result lies and what each shard computes of it; a partial result is reduced
where it is first read, once (`tuner.shards.divide` then cuts the programs at the collectives). Applied to
forward functions and to backward functions alike: no collective needs a derivative. Checked in
tests/tuner/shards/test_rules.py.

Source: Xu et al., "GSPMD" (2021), section 3.5, propagates in both directions by priority and guesses where
layouts meet; here they go forward only, from weights whose layouts are chosen, and what does not fit is
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.divide import divide
from tuner.shards.interface import ShardedFunction
from tuner.shards.layouts import Layout, Replicated, local_shape
from tuner.shards.rules.operator_rules import apply_rule
from tuner.shards.rules.rule import Operation
from tuner.shards.writer import Sharded, ShardWriter, Value, sharded_constant
from tuner.stages.interface import StageFunction
from tuner.stages.program import Expr, Var


def shard_function(
    function: StageFunction,
    layouts: Mapping[str, Layout],
    num_shards: int,
    *,
    wanted: Mapping[str, Layout] | None = None,
) -> ShardedFunction:
    """Write a function for shards.

    Args:
        function: the whole function.
        layouts: how inputs lie, by name; whole on every shard where nothing is said.
        num_shards: at least 2.
        wanted: how outputs must lie, by name; as they come where nothing is said, and never as terms. What
            must be whole and comes split is gathered.

    Raises:
        UnsupportedOperatorError: no rule shards an operator that reads a split tensor; or an output comes
            split in another way than it is wanted.
    """
    writer = ShardWriter(num_shards)
    inputs = _inputs(function, layouts, num_shards)
    known = _propagate(function, writer, inputs)
    outputs = {
        info.name: _wanted(writer, known[field], info.name, (wanted or {}).get(info.name))
        for info, field in zip(function.outputs, _results(function), strict=True)
    }
    return divide(function, writer.finish(), inputs=tuple(inputs.values()), outputs=outputs)


def value_layouts(
    function: StageFunction, layouts: Mapping[str, Layout], num_shards: int
) -> tuple[Mapping[Var, Layout], Mapping[str, Layout]]:
    """Return how every tensor of a function lies by its variable, and every result by name; nothing is kept.

    Args:
        function: the whole function.
        layouts: how inputs lie, by name; whole on every shard where nothing is said.
        num_shards: at least 2.

    Raises:
        UnsupportedOperatorError: no rule shards an operator that reads a split tensor.
    """
    known = _propagate(function, ShardWriter(num_shards), _inputs(function, layouts, num_shards))
    by_variable = {variable: value.layout for variable, value in known.items() if isinstance(value, Sharded)}
    results = {
        info.name: known[field].layout
        for info, field in zip(function.outputs, _results(function), strict=True)
        if isinstance(known.get(field), Sharded)
    }
    return by_variable, results


def _inputs(
    function: StageFunction, layouts: Mapping[str, Layout], num_shards: int
) -> dict[Var, tuple[str, Sharded]]:
    inputs = {}
    for info, parameter in zip(function.inputs, function.module["main"].params, strict=True):
        layout = layouts.get(info.name, Replicated())
        parts = tuple(
            relax.Var(parameter.name, relax.TensorType(local_shape(layout, info.shape, rank), info.dtype))
            for rank in range(num_shards)
        )
        inputs[parameter] = info.name, Sharded(layout, info.shape, parts)
    return inputs


def _propagate(
    function: StageFunction, writer: ShardWriter, inputs: Mapping[Var, tuple[str, Sharded]]
) -> dict[Var, Any]:
    """Apply the rules in program order; return every value over the shards."""
    known: dict[Var, Any] = {variable: value for variable, (_, value) in inputs.items()}
    for block in function.module["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                operands = tuple(
                    _value_of(argument, known, writer.num_shards) for argument in binding.value.args
                )
                operation = Operation(binding.value, operands, writer)
                known[binding.var] = apply_rule(operation, repr(binding.var.name))
            else:
                known[binding.var] = _value_of(binding.value, known, writer.num_shards)
    return known


def _value_of(expression: Expr, known: Mapping[Var, Any], num_shards: int) -> Value | None:
    """Return an expression over the shards; None for what is no tensor."""
    if isinstance(expression, relax.Var):
        return known.get(expression)
    if isinstance(expression, tvm.ir.expr.Constant) and isinstance(expression.ty, relax.TensorType):
        return sharded_constant(expression, num_shards)
    if isinstance(expression, relax.TupleGetItem):
        fields = _value_of(expression.tuple_value, known, num_shards)
        return fields[expression.index] if isinstance(fields, tuple) else None
    if isinstance(expression, relax.Tuple):
        values = [_value_of(field, known, num_shards) for field in expression.fields]
        tensors = tuple(value for value in values if isinstance(value, Sharded))
        return tensors if len(tensors) == len(values) else None
    return None


def _results(function: StageFunction) -> tuple[Expr, ...]:
    """Return the variables of the function's results, which are a tuple."""
    return tuple(function.module["main"].body.body.fields)


def _wanted(writer: ShardWriter, value: Sharded, name: str, layout: Layout | None) -> Sharded:
    value = writer.reduced(value)
    if not isinstance(value.parts[0], relax.Var):
        # A constant: a copy of it can have a name.
        number = value
        value = writer.emit(
            lambda rank: relax.op.reshape(number.parts[rank], value.shape), value.layout, value.shape
        )
    if layout is None:
        return value
    if isinstance(layout, Replicated):
        return writer.gathered(value)
    try:
        return writer.laid_out(value, layout)
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(
            f"output {name!r} cannot be had: {error}; split other weights"
        ) from error
