"""Narrow tensors between the parts of a program: what one part widens for others, these widen themselves.

The importer computes operators of bfloat16 in float32: it widens what each reads and rounds what it gives
(`tuner.frontend.converters.bfloat16`). A partition may end between the two, and then writes 4 bytes where 2
say the same, or widens a weight for ever. Here such a partition gives the narrow tensor, and each that reads
it widens it as it reads, within its kernel; no number changes. Only where all who read it are compiled by
TVM: a library's call takes what it was found with. What one operator computes in float32 and does not round,
such as the scores of attention, stays. Checked in tests/tuner/lowering/test_narrow_parts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tuner.graph.relax_source import replace_variables
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule, RelaxFunction

_WIDE, _NARROW = "float32", ("bfloat16", "float16")
_COMPILED = ("tvm", "metaschedule")
"""Backends whose partitions are TVM's kernels, which take a conversion more."""

_MOVING = ("permute_dims", "reshape", "expand_dims", "squeeze", "flatten", "broadcast_to", "take")
"""Operators that move the elements of one tensor."""


def narrow_parts(module: IRModule) -> IRModule:
    """Return the module with no tensor widened by one partition for others where all of them can do so.

    Args:
        module: functions in one block of bindings; the public ones call partitions.
    """
    for variable, function in module.functions_items():
        # Private functions prepare weights: their callers know them by the variable that they have.
        if isinstance(function, relax.Function) and "global_symbol" in dict(function.attrs or {}):
            module = _with_narrow_calls(module, variable.name_hint, function)
    return relax.transform.DeadCodeElimination()(module)


def _with_narrow_calls(module: IRModule, name: str, function: RelaxFunction) -> IRModule:
    bindings = _bindings_of(function)
    rest = module.clone()
    del rest[name]
    builder = relax.BlockBuilder(rest)
    new: dict[Any, Any] = {}
    twins: dict[Any, Any] = {}
    takes = _who_takes_narrow(module, function)
    with builder.function(name, list(function.params), attrs=dict(function.attrs or {})):
        with builder.dataflow():
            for binding in bindings:
                value = replace_variables(binding.value, lambda each: new.get(each, each))
                callee = _partition(builder.get(), value)
                if callee is not None and any(each in twins for each in value.args):
                    callee = _widening(callee, [twins.get(each) for each in value.args])
                    arguments = [twins.get(each, each) for each in value.args]
                    value = relax.Call(builder.add_func(callee, value.op.name_hint), arguments)
                variable = new[binding.var] = builder.emit(value, binding.var.name)
                if not takes[binding.var]:
                    continue
                if callee is None:
                    twin = _narrow({variable: value}, variable, twins)
                else:
                    twin = _called_for_narrow(builder, callee, value)
                if twin is not None:
                    twins[variable] = twin if isinstance(twin, relax.Var) else builder.emit(twin)
            result = builder.emit_output(
                replace_variables(function.body.body, lambda each: new.get(each, each))
            )
        builder.emit_func_output(result)
    return builder.get()


def _who_takes_narrow(module: IRModule, function: RelaxFunction) -> dict[Any, bool]:
    """Return of each variable whether it is wide, and whatever reads it could widen it itself."""
    bindings = _bindings_of(function)
    found: dict[Any, bool] = {}
    for binding in reversed(bindings):
        readers = [each for each in bindings if binding.var in relax.analysis.free_vars(each.value)]
        is_result = binding.var in relax.analysis.free_vars(function.body.body)
        found[binding.var] = (
            getattr(binding.var.ty, "dtype", None) == _WIDE
            and bool(readers)
            and not is_result
            and all(
                _partition(module, each.value) is not None or (_is_moving(each.value) and found[each.var])
                for each in readers
            )
        )
    return found


def _called_for_narrow(builder: Any, callee: RelaxFunction, call: Any) -> Any | None:
    """Return what gives the tensor that a partition widens at its end; None where it does not."""
    values = {each.var: each.value for each in _bindings_of(callee)}
    made = _narrow(values, callee.body.body, {})
    if made is None:
        return None
    for parameter, argument in zip(callee.params, call.args, strict=True):
        if parameter.same_as(made):
            return argument
    return relax.Call(builder.add_func(_again(callee, {}, made), call.op.name_hint), call.args)


def _narrow(values: Mapping[Any, Any], variable: Any, twins: Mapping[Any, Any]) -> Any:
    """Return an expression of the tensor of which a variable is the widened one; None if it is not such."""
    if variable in twins:
        return twins[variable]
    value: Any = values.get(variable)
    if isinstance(value, relax.Var):
        return _narrow(values, value, twins)
    if _name_of(value) == "relax.astype":
        (source,) = value.args
        is_widened = str(value.ty.dtype) == _WIDE and str(source.ty.dtype) in _NARROW
        return source if is_widened else None
    if not _is_moving(value):
        return None
    moved = _narrow(values, value.args[0], twins)
    return None if moved is None else relax.Call(value.op, [moved, *value.args[1:]], value.attrs)


def _widening(callee: RelaxFunction, narrow: Sequence[Any | None]) -> RelaxFunction:
    """Return a partition that widens those of its parameters that have a narrow argument."""
    parameters, given = [], {}
    for parameter, argument in zip(callee.params, narrow, strict=True):
        ty = parameter.ty if argument is None else relax.TensorType(parameter.ty.shape, argument.ty.dtype)
        parameters.append(relax.Var(parameter.name, ty))
        given[parameter] = parameters[-1] if argument is None else relax.op.astype(parameters[-1], _WIDE)
    return _again(callee, given, callee.body.body, parameters)


def _again(
    callee: RelaxFunction, given: Mapping[Any, Any], result: Any, parameters: Sequence[Any] | None = None
) -> RelaxFunction:
    """Return a partition built again, with another result, or other expressions for its parameters."""
    builder = relax.BlockBuilder()
    parameters = (
        [relax.Var(each.name, each.ty) for each in callee.params] if parameters is None else parameters
    )
    new: dict[Any, Any] = {}
    with builder.function("part", list(parameters), attrs=dict(callee.attrs)):
        with builder.dataflow():
            for old, own in zip(callee.params, parameters, strict=True):
                value = given.get(old, own)
                new[old] = value if isinstance(value, relax.Var) else builder.emit(value)
            for binding in _bindings_of(callee):
                new[binding.var] = builder.emit(
                    replace_variables(binding.value, lambda each: new.get(each, each))
                )
            made = builder.emit_output(replace_variables(result, lambda each: new.get(each, each)))
        builder.emit_func_output(made)
    return relax.transform.DeadCodeElimination(["part"])(builder.get())["part"].without_attr("global_symbol")


def _bindings_of(function: RelaxFunction) -> list[Any]:
    return [each for block in function.body.blocks for each in block.bindings]


def _partition(module: IRModule, value: Any) -> RelaxFunction | None:
    """Return the partition of TVM's kernels that a value calls."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.GlobalVar):
        return None
    callee = module[value.op]
    return callee if _backend_of(callee) in _COMPILED else None


def _backend_of(function: Any) -> str | None:
    attributes = function.attrs if isinstance(function, relax.Function) else None
    found = attributes.get(PARTITION_ATTRIBUTE) if attributes else None
    return None if found is None else str(found)


def _is_moving(value: Any) -> bool:
    return _name_of(value) in [f"relax.{name}" for name in _MOVING]


def _name_of(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))
