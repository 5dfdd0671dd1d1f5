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

import copy
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError
from tuner.shards.divide import divide
from tuner.shards.interface import ShardedFunction
from tuner.shards.layouts import Layout, Partial, Replicated, local_shape
from tuner.shards.rules.operator_rules import apply_rule
from tuner.shards.rules.rule import Operation
from tuner.shards.writer import Sharded, ShardWriter, Value, sharded_constant
from tuner.stages.interface import StageFunction
from tuner.stages.program import Binding, Expr, Var, variables_of


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


class Propagation:
    """How every tensor of a function lies, for layouts of its inputs that can be changed one after another.

    A change propagates from what reads the input, and stops where values lie as before: the layers of a stage
    that it does not reach cost nothing.
    """

    def __init__(self, function: StageFunction, layouts: Mapping[str, Layout], num_shards: int) -> None:
        """Propagate through the whole function.

        Args:
            function: the whole function.
            layouts: how inputs lie, by name; whole on every shard where nothing is said.
            num_shards: at least 2.

        Raises:
            UnsupportedOperatorError: no rule shards an operator that reads a split tensor.
        """
        self._function = function
        self._num_shards = num_shards
        self._bindings = [
            Binding(binding.var, binding.value, variables_of(binding.value))
            for block in function.module["main"].body.blocks
            for binding in block.bindings
        ]
        self._values = _propagate(function, ShardWriter(num_shards), _inputs(function, layouts, num_shards))

    def changed(self, layouts: Mapping[str, Layout]) -> Propagation:
        """Return how values lie where the inputs that are named lie otherwise, and the others as here.

        Raises:
            UnsupportedOperatorError: no rule shards an operator that reads a split tensor.
        """
        values = dict(self._values)
        moved: set[Var] = set()
        for variable, (name, value) in _inputs(self._function, layouts, self._num_shards).items():
            if name in layouts and value.layout != values[variable].layout:
                values[variable] = value
                moved.add(variable)
        writer = ShardWriter(self._num_shards)
        for binding in self._bindings:
            # Who reads a partial value may have it reduced, on which later readers depend: done again.
            are_as_before = moved.isdisjoint(binding.reads)
            if are_as_before and not any(_is_partial(values.get(read)) for read in binding.reads):
                continue
            found = _applied(binding.var, binding.value, values, writer)
            if _layouts(found) != _layouts(values[binding.var]):
                values[binding.var] = found
                moved.add(binding.var)
        propagation = copy.copy(self)
        propagation._values = values
        return propagation

    def layout_of(self, tensor: Expr) -> Layout:
        """Return how a tensor of the function lies: whole on every shard where it is no variable."""
        value = self._values.get(tensor)
        return value.layout if isinstance(value, Sharded) else Replicated()

    def result_layouts(self) -> Mapping[str, Layout]:
        """Return how every result lies, by name."""
        fields = _results(self._function)
        return {
            info.name: self.layout_of(field)
            for info, field in zip(self._function.outputs, fields, strict=True)
        }


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
            known[binding.var] = _applied(binding.var, binding.value, known, writer)
    return known


def _applied(variable: Var, expression: Expr, known: Mapping[Var, Any], writer: ShardWriter) -> Value | None:
    """Write what a variable is bound to for every shard; a call by its operator's rule."""
    if not isinstance(expression, relax.Call):
        return _value_of(expression, known, writer.num_shards)
    operands = tuple(_value_of(argument, known, writer.num_shards) for argument in expression.args)
    return apply_rule(Operation(expression, operands, writer), repr(variable.name))


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


def _layouts(value: Value | None) -> tuple[Layout, ...]:
    fields = value if isinstance(value, tuple) else (value,)
    return tuple(field.layout for field in fields if field is not None)


def _is_partial(value: Value | None) -> bool:
    return any(isinstance(layout, Partial) for layout in _layouts(value))


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
