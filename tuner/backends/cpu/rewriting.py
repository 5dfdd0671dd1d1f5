"""Write a function anew, binding by binding, some of them otherwise.

Checked in tests/tuner/backends/cpu/test_hoist_pooling.py and test_roundings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tvm import relax

from tuner.graph.relax_source import replace_variables
from tuner.graph.relax_types import Expression, RelaxFunction

Renamed: TypeAlias = Callable[[Expression], Expression]
"""Gives an expression of the old function in variables of the new one."""

Write: TypeAlias = Callable[[Any, Renamed], Expression]
"""Takes the builder of the new function, and returns what stands for a variable there."""


def values_of(function: RelaxFunction) -> dict[Expression, Expression]:
    """Return what each variable of a function is bound to, in order."""
    return {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}


def rewritten(function: RelaxFunction, writers: Mapping[Expression, Write | None]) -> RelaxFunction:
    """Return the function with some variables bound otherwise, and all others as they were.

    Args:
        function: has one data-flow block.
        writers: what writes such a variable; None for one that is left out, since nothing reads it any more.
    """
    builder = relax.BlockBuilder()
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
    written: dict[Expression, Expression] = dict(zip(function.params, parameters, strict=True))

    def renamed(expression: Expression) -> Expression:
        return replace_variables(expression, lambda read: written[read])

    with builder.function("main", parameters):
        with builder.dataflow():
            for variable, value in values_of(function).items():
                if variable not in writers:
                    written[variable] = builder.emit(renamed(value))
                elif (write := writers[variable]) is not None:
                    written[variable] = write(builder, renamed)
            result = builder.emit_output(renamed(function.body.body))
        builder.emit_func_output(result)
    found = builder.get()["main"]
    return found.with_attrs(dict(function.attrs)) if function.attrs else found
