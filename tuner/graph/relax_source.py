"""A Relax function as calls on flat values: the source of a data-flow graph.

Relax has bindings that compute nothing: names for names, tuples, projections out of tuples, constants and
shapes. Reading resolves all of them, so that each remaining *call* is one node, reads parameters, constants
and the *values* of other calls, and makes one value or, where it returns a tuple, one value per field. A cut
between a `split` and its projections therefore cannot happen, and no partition has a tuple at its border.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tuner.errors import UnsupportedOperatorError


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxSource:
    """A function's calls and values.

    Attributes:
        function: the function as it was given.
        calls: the calls in order; variables in their arguments are parameters or entries of `values`.
        bound_calls: the calls as the function binds them, for matching patterns.
        values: the variables that stand for the values of each call: one, or one a tuple field.
        binding_indices: position of each call among the bindings of its block.
        results: what the function returns, flattened: variables and constants.
        result_is_tuple: whether it returns a tuple.
    """

    module: Any
    function: Any
    calls: tuple[Any, ...]
    bound_calls: tuple[Any, ...]
    values: tuple[tuple[Any, ...], ...]
    returns_tuple: tuple[bool, ...]
    binding_indices: tuple[int, ...]
    results: tuple[Any, ...]
    result_is_tuple: bool


def read_function(module: Any, function: Any) -> RelaxSource:
    """Read a Relax function with one block.

    Raises:
        UnsupportedOperatorError: the function has control flow, several blocks or a `match_cast`.
    """
    reader = _Reader()
    bindings = _bindings(function)
    for index, binding in enumerate(bindings):
        reader.read(index, binding)
    result = reader.resolve(function.body.body if isinstance(function.body, relax.SeqExpr) else function.body)
    return RelaxSource(
        module=module,
        function=function,
        calls=tuple(reader.calls),
        bound_calls=tuple(bindings[index].value for index in reader.binding_indices),
        values=tuple(reader.values),
        returns_tuple=tuple(reader.returns_tuple),
        binding_indices=tuple(reader.binding_indices),
        results=tuple(flat(result)),
        result_is_tuple=isinstance(result, relax.Tuple),
    )


def flat(expression: Any) -> Sequence[Any]:
    """Return the fields of nested tuples in order; of anything else, itself."""
    if isinstance(expression, relax.Tuple):
        return [leaf for field in expression.fields for leaf in flat(field)]
    return [expression]


def variables_of(call: Any) -> Sequence[Any]:
    """Return the variables among a call's arguments in order, with repetitions."""
    return [leaf for argument in call.args for leaf in flat(argument) if isinstance(leaf, relax.Var)]


def fields_of(call: Any) -> Sequence[Any]:
    """Return the variables among the fields of a call's tuple arguments in order, with repetitions."""
    tuples = [argument for argument in call.args if isinstance(argument, relax.Tuple)]
    return [leaf for argument in tuples for leaf in flat(argument) if isinstance(leaf, relax.Var)]


def replace_variables(expression: Any, replacement: Callable[[Any], Any]) -> Any:
    """Return the expression, made of calls, tuples, their fields and leaves, with each variable replaced."""
    if isinstance(expression, relax.Var):
        return replacement(expression)
    if isinstance(expression, relax.TupleGetItem):
        return relax.TupleGetItem(replace_variables(expression.tuple_value, replacement), expression.index)
    if isinstance(expression, relax.Tuple):
        return relax.Tuple([replace_variables(field, replacement) for field in expression.fields])
    if isinstance(expression, relax.Call):
        arguments = [replace_variables(argument, replacement) for argument in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    return expression


def _bindings(function: Any) -> Sequence[Any]:
    if not isinstance(function.body, relax.SeqExpr):
        return []
    blocks = [block for block in function.body.blocks if len(block.bindings) > 0]
    if len(blocks) > 1:
        raise UnsupportedOperatorError(
            f"the function has {len(blocks)} blocks of bindings, but partition search works within one "
            "data-flow block; apply relax.transform.ConvertToDataflow and inline its private functions "
            "first"
        )
    return list(blocks[0].bindings) if blocks else []


class _Reader:
    """Follows the bindings of one block in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.values: list[tuple[Any, ...]] = []
        self.returns_tuple: list[bool] = []
        self.binding_indices: list[int] = []
        self._meaning: dict[Any, Any] = {}

    def read(self, index: int, binding: Any) -> None:
        value = binding.value
        if isinstance(binding, relax.MatchCast) or isinstance(
            value, relax.If | relax.SeqExpr | relax.Function
        ):
            raise UnsupportedOperatorError(
                f"binding {binding.var.name!r} is a {type(value).__name__} or a cast of its shape, but "
                "partition search works on calls of operators; bind symbolic shapes and remove control "
                "flow first"
            )
        if not isinstance(value, relax.Call):
            self._meaning[binding.var] = self.resolve(value)
            return
        fields = self._fields(binding.var)
        self.calls.append(self.resolve(value))
        self.values.append(tuple(flat(fields)))
        self.returns_tuple.append(isinstance(fields, relax.Tuple))
        self.binding_indices.append(index)
        if isinstance(fields, relax.Tuple):
            self._meaning[binding.var] = fields

    def resolve(self, expression: Any) -> Any:
        """Return the expression with names, tuples and projections followed to parameters and values."""
        if isinstance(expression, relax.TupleGetItem):
            whole = self.resolve(expression.tuple_value)
            return whole.fields[expression.index] if isinstance(whole, relax.Tuple) else expression
        return replace_variables(expression, lambda variable: self._meaning.get(variable, variable))

    def _fields(self, variable: Any) -> Any:
        """Return the variable, or, where it is a tuple, a tuple of one fresh variable a field."""
        if not isinstance(variable.ty, relax.TupleType):
            return variable
        if any(isinstance(field, relax.TupleType) for field in variable.ty.fields):
            raise UnsupportedOperatorError(
                f"binding {variable.name!r} is a tuple of tuples, but a partition's border holds tensors; "
                "flatten it"
            )
        return relax.Tuple(
            [relax.Var(f"{variable.name}_{number}", field) for number, field in enumerate(variable.ty.fields)]
        )


def static_shape(type_: Any) -> tuple[int, ...]:
    """Return the extents of a tensor type.

    Raises:
        ValueError: a dimension is symbolic, or the shape is unknown.
    """
    if not isinstance(type_, relax.TensorType) or type_.shape is None:
        raise ValueError(f"type {type_} has no known shape; bind every dimension to a number first")
    extents = type_.shape.values if isinstance(type_.shape, relax.ShapeExpr) else ()
    if len(extents) != type_.ndim or not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
        raise ValueError(
            f"shape {type_.shape} is symbolic; bind every dimension to a number, as with --shape x=1,128"
        )
    return tuple(int(extent) for extent in extents)


def value_producers(source: RelaxSource) -> Mapping[Any, int]:
    """Return the number of the call that makes each value."""
    return {value: number for number, values in enumerate(source.values) for value in values}
