"""A Relax function as a list of bindings that can be copied piece by piece into new functions.

Cutting a model and taking gradients both come down to the same act: choose some bindings, find the values
that they read but do not define, and write a new function with those as its parameters. This module reads a
function into bindings (`read_program`) and writes such functions (`write_module`).

The model of the world: one data-flow block of tensor operators with static shapes. Tuples exist only between
the operator that makes one (a split) and the bindings that take its fields; a tuple that merely packs tensors
is unpacked where it is read. `MatchCast` and calls of other Relax functions are refused by name. Checked in
tests/tuner/stages/test_program.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax

from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.frontend.model import IRModule, Model
from tuner.graph.torch_call import read_torch_call
from tuner.plan import TensorInfo

Var: TypeAlias = Any
"""A `relax.Var`; equal only to itself."""

Expr: TypeAlias = Any
"""A `relax.Expr`."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable, the expression it is bound to, and the variables that the expression reads, in order."""

    var: Var
    value: Expr
    reads: tuple[Var, ...]

    @property
    def field_of(self) -> Var | None:
        """The tuple that the binding takes a field of, or None."""
        return self.value.tuple_value if isinstance(self.value, relax.TupleGetItem) else None

    @property
    def is_alias(self) -> bool:
        """Whether the binding only names a value again, or packs values into a tuple."""
        return isinstance(self.value, relax.Var | relax.Tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model's function as values and bindings.

    Attributes:
        inputs: the user's inputs, in order.
        parameters: the weights, in order.
        bindings: in program order, one for each of the model's `module_paths`; a binding that only packs
            tensors into a tuple, or names a value again, is kept but read by nobody.
        outputs: what the function returns, in order.
        names: a name for each input, parameter and bound value; no two are equal.
        functions: functions that bindings call, by name (kernels that an importer wrote).
        untrained: names of parameters whose gradients nobody wants.
        padding_rows: row of a table that its look-ups give no gradient.
    """

    inputs: tuple[Var, ...]
    parameters: tuple[Var, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[Var, ...]
    names: Mapping[Var, str]
    functions: Mapping[str, Any]
    untrained: frozenset[str] = frozenset()
    padding_rows: Mapping[Var, int] = dataclasses.field(default_factory=dict)


def output_names(model: Model) -> tuple[str, ...]:
    """Return the names that stages give to what a model returns, in order."""
    program = read_program(model)
    return tuple(program.names[output] for output in program.outputs)


def read_program(model: Model) -> Program:
    """Read the model's `main`.

    Raises:
        TunerError: `main` has control flow or bindings that cannot be cut.
    """
    function = model.module["main"]
    known: dict[Var, Expr] = {}
    bindings = []
    for binding in _bindings_of(function):
        if not isinstance(binding, relax.VarBinding):
            raise TunerError(
                f"binding {binding.var.name!r} is a {type(binding).__name__}, which cannot be cut; "
                "bind the model's shapes before cutting it"
            )
        value = resolve(binding.value, known)
        if isinstance(value, relax.Var | relax.Tuple):
            known[binding.var] = value
        bindings.append(Binding(binding.var, value, variables_of(value)))
    result = resolve(function.body.body, known)
    fields = tuple(result.fields) if isinstance(result, relax.Tuple) else (result,)
    for field in fields:
        if not isinstance(field, relax.Var) or not is_tensor(field):
            raise TunerError(
                f"the model returns {field}, which is no tensor; return tensors or a flat tuple of them"
            )
    inputs = tuple(function.params)[: len(model.inputs)]
    parameters = tuple(function.params)[len(model.inputs) :]
    names = dict(zip(inputs, (str(spec.name) for spec in model.inputs), strict=True))
    names.update(zip(parameters, map(str, model.parameter_names), strict=True))
    names.update(_fresh_names((binding.var for binding in bindings), taken=names.values()))
    return Program(
        inputs=inputs,
        parameters=parameters,
        bindings=tuple(bindings),
        outputs=fields,
        names=names,
        functions={variable.name_hint: body for variable, body in model.module.functions_items()},
        untrained=model.untrained,
        padding_rows=_padding_rows(model, parameters, bindings),
    )


def _padding_rows(model: Model, parameters: Sequence[Var], bindings: Sequence[Binding]) -> dict[Var, int]:
    """Return the row of each table without a gradient, also where the table is read in another type."""
    rows = {
        variable: model.padding_rows[name]
        for variable, name in zip(parameters, model.parameter_names, strict=True)
        if name in model.padding_rows
    }
    for binding in bindings if rows else ():
        if operator_name(binding.value) == "astype" and binding.value.args[0] in rows:
            rows[binding.var] = rows[binding.value.args[0]]
    return rows


def write_module(
    bindings: Iterable[Binding],
    *,
    inputs: Sequence[Var],
    outputs: Sequence[Expr],
    names: Mapping[Var, str],
    functions: Mapping[str, Any],
) -> IRModule:
    """Write a module whose `main` takes `inputs`, runs `bindings` and returns the tuple of `outputs`.

    `main` has one data-flow block and returns a tuple even of one tensor. An output that is an input or a
    constant is returned as it is. Functions that bindings call come along. Blocked gradients change no value.
    """
    builder = relax.BlockBuilder()
    new_inputs = [relax.Var(names.get(variable, variable.name), variable.ty) for variable in inputs]
    known: dict[Var, Expr] = dict(zip(inputs, new_inputs, strict=True))
    wanted = set(outputs)
    with builder.function("main", new_inputs):
        with builder.dataflow():
            for binding in bindings:
                value = resolve(binding.value, known)
                if isinstance(value, relax.Var | relax.Tuple):
                    known[binding.var] = value
                    continue
                if blocks_gradients(value):
                    known[binding.var] = value.args[0]
                    continue
                value = _with_callees(value, builder, functions)
                emit = builder.emit_output if binding.var in wanted else builder.emit
                known[binding.var] = emit(
                    value, name_hint=_identifier(names.get(binding.var, binding.var.name))
                )
            results = [known.get(output, output) for output in outputs]
            # An output that is a data-flow variable under another name must leave the block as an output.
            results = [
                builder.emit_output(result) if isinstance(result, relax.DataflowVar) else result
                for result in results
            ]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def needed(
    bindings: Sequence[Binding], roots: Iterable[Var], *, given: frozenset[Var] = frozenset()
) -> tuple[Binding, ...]:
    """Keep the bindings that some root depends on, in order; values `given` are known. O(reads)."""
    wanted = set(roots) - given
    kept = []
    for binding in reversed(bindings):
        if binding.var in wanted:
            kept.append(binding)
            wanted.update(variable for variable in binding.reads if variable not in given)
    return tuple(reversed(kept))


def resolve(expression: Expr, known: Mapping[Var, Expr]) -> Expr:
    """Put known expressions in the place of variables, and take the fields of tuples that are written out."""
    if isinstance(expression, relax.Var):
        return known.get(expression, expression)
    if isinstance(expression, relax.TupleGetItem):
        tuple_value = resolve(expression.tuple_value, known)
        if isinstance(tuple_value, relax.Tuple):
            return tuple_value.fields[expression.index]
        return relax.TupleGetItem(tuple_value, expression.index)
    if isinstance(expression, relax.Tuple):
        return relax.Tuple([resolve(field, known) for field in expression.fields])
    if isinstance(expression, relax.Call):
        arguments = [resolve(argument, known) for argument in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    return expression


def variables_of(expression: Expr) -> tuple[Var, ...]:
    """List the variables that an expression reads, each once, in the order they stand."""
    return tuple(dict.fromkeys(_walk_variables(expression)))


def is_tensor(expression: Expr) -> bool:
    """Say whether an expression is one tensor, not a tuple or a shape."""
    return isinstance(expression.ty, relax.TensorType)


def is_differentiable(expression: Expr) -> bool:
    """Say whether an expression is a floating-point tensor, or a tuple that holds one."""
    if isinstance(expression.ty, relax.TupleType):
        return any(
            isinstance(field, relax.TensorType) and "float" in str(field.dtype)
            for field in expression.ty.fields
        )
    return is_tensor(expression) and "float" in str(expression.ty.dtype)


def tensor_info(expression: Expr, name: str) -> TensorInfo:
    """Describe a tensor under the given name.

    Raises:
        TunerError: it is a tuple, or its shape is not static.
    """
    if not is_tensor(expression):
        raise TunerError(f"{name!r} is a {expression.ty}, and only tensors cross a cut; cut elsewhere")
    try:
        shape = tuple(int(extent) for extent in expression.ty.shape)
    except TypeError as error:
        raise TunerError(
            f"tensor {name!r} has shape {expression.ty.shape}, which is not static; bind it with --shape"
        ) from error
    dtype = str(expression.ty.dtype)
    num_bytes = math.prod(shape) * ((tvm.DataType(dtype).bits + 7) // 8)
    # TVM's strings are a type of their own, which no file format knows.
    return TensorInfo(name=str(name), shape=shape, dtype=dtype, num_bytes=num_bytes)


def operator_name(value: Expr) -> str:
    """Name the operator of a binding's expression as people write it, such as `nn.softmax`."""
    if not isinstance(value, relax.Call):
        return type(value).__name__
    torch_call = read_torch_call(value)
    if torch_call is not None:
        return torch_call.name
    if isinstance(value.op, tvm.ir.Op):
        name = str(value.op.name).removeprefix("relax.")
        return f"{name}({value.args[0].name_hint})" if name.startswith("call_tir") else name
    return str(getattr(value.op, "name_hint", value.op))


def blocks_gradients(value: Expr) -> bool:
    """Say whether a binding's expression passes a value on, and no gradient back."""
    return operator_name(value) == "grad.no_grad"


def _bindings_of(function: Any) -> list[Any]:
    if not isinstance(function.body, relax.SeqExpr):
        raise TunerError("`main` is not a sequence of bindings; import the model again")
    return [binding for block in function.body.blocks for binding in block.bindings]


def _walk_variables(expression: Expr) -> Iterable[Var]:
    if isinstance(expression, relax.Var):
        yield expression
    elif isinstance(expression, relax.TupleGetItem):
        yield from _walk_variables(expression.tuple_value)
    elif isinstance(expression, relax.Tuple):
        for field in expression.fields:
            yield from _walk_variables(field)
    elif isinstance(expression, relax.Call):
        for argument in expression.args:
            yield from _walk_variables(argument)
    elif isinstance(expression, relax.If | relax.Function | relax.SeqExpr):
        raise UnsupportedOperatorError(
            f"a {type(expression).__name__} was found inside `main`, and control flow cannot be cut or "
            "differentiated; import the model without it"
        )


def _fresh_names(variables: Iterable[Var], *, taken: Iterable[str]) -> dict[Var, str]:
    counts = dict.fromkeys(taken, 1)
    names = {}
    for variable in variables:
        name = _identifier(variable.name)
        while name in counts:
            counts[name] += 1
            name = f"{name}_{counts[name]}"
        counts[name] = 1
        names[variable] = name
    return names


def _identifier(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def _with_callees(value: Expr, builder: Any, functions: Mapping[str, Any]) -> Expr:
    """Bring the kernels that a call names into the module under construction."""
    if not isinstance(value, relax.Call):
        return value
    callees = [argument for argument in value.args if isinstance(argument, tvm.ir.GlobalVar)]
    if isinstance(value.op, tvm.ir.GlobalVar):
        raise UnsupportedOperatorError(
            f"`main` calls the Relax function {value.op.name_hint!r}, and a call cannot be cut; inline it "
            "first"
        )
    if not callees:
        return value
    moved = {callee: builder.add_func(functions[callee.name_hint], callee.name_hint) for callee in callees}
    arguments = [
        moved.get(argument, argument) if argument in callees else argument for argument in value.args
    ]
    return relax.Call(value.op, arguments, value.attrs, value.ty_args)
