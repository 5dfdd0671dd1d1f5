"""The interface of a gradient rule, with the constants and tables that gradients use.

A gradient is a function of a call and of its result's gradient that gives one expression for each argument,
or None where an argument has none (integers, shapes). What a gradient reads is what a forward must save, so
those of this package prefer an operator's input, which is often saved already, and recompute what is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import relax

from tuner.stages.program import Expr, Var

Parts: TypeAlias = Sequence[Expr | None] | None
"""One gradient for each argument; None altogether where this rule does not cover the call."""

Gradient: TypeAlias = Callable[[Var, Any, Expr], Parts]
"""Takes the result's variable, the call and the result's gradient; gives each argument's."""


def constant_like(value: Expr, number: float) -> Expr:
    """Give a scalar constant of a tensor's type of number."""
    return relax.const(number, value.ty.dtype)


def shape_of(value: Expr) -> tuple[int, ...]:
    """Give a tensor's static shape."""
    return tuple(int(extent) for extent in value.ty.shape)
