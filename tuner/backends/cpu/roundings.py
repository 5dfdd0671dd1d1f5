"""Drop what rounds a float32 to a shorter type only for it to be widened again.

The importer has each operator of bfloat16 widen what it reads and round what it gives
(`tuner.frontend.converters.bfloat16`). Between two operators of one partition that is no more than a loss of
time and digits, and hides from a convolution what follows it. Checked in
tests/tuner/backends/cpu/test_roundings.py.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tuner.backends.cpu.rewriting import Write, rewritten, values_of
from tuner.graph.relax_types import Expression, RelaxFunction


def without_roundings(function: RelaxFunction) -> RelaxFunction:
    """Return the function in which whoever widens a rounded float32 reads it as it was before.

    Results that are rounded stay so; the function itself where nothing is widened again.
    """
    values = values_of(function)
    writers = {
        variable: _as(source)
        for variable, value in values.items()
        if _converts(value, "float32") and (source := _before_rounding(values, value.args[0])) is not None
    }
    return relax.analysis.remove_all_unused(rewritten(function, writers)) if writers else function


def _as(source: Expression) -> Write:
    return lambda _builder, renamed: renamed(source)


def _before_rounding(values: dict[Expression, Expression], expression: Expression) -> Expression | None:
    """Return the float32 that an expression is the rounding of, or None."""
    while isinstance(values.get(expression), relax.Var):
        expression = values[expression]
    value = values.get(expression)
    if value is None or not _converts(value, "bfloat16", "float16"):
        return None
    source = value.args[0]
    return source if isinstance(source, relax.Var) and str(source.ty.dtype) == "float32" else None


def _converts(value: Expression, *dtypes: str) -> bool:
    """Say whether a value is a conversion to one of some types."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    return value.op.name == "relax.astype" and str(value.ty.dtype) in dtypes
