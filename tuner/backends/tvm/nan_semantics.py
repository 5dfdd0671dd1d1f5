"""Maxima and minima that pass NaN on, as torch's do, and begin at infinity; NaN differs from every number.

TVM compiles `max(a, b)` to `a > b ? a : b`, one instruction of x86 that gives `b` where either is NaN. So a
bound that is a number stands first, at no cost; of two values, `a` is taken where it is NaN as well, at the
cost of a comparison and a choice. An accumulator of TVM's begins at the least finite number, so that a
maximum of negative infinities is that number; here it begins at negative infinity. `a != b` is compiled to
an ordered comparison, which NaN fails, so that NaN would be no truth value either. Schedules recognise
reductions by TVM's own form, so this comes after them. On GPUs the extrema of reductions stay as they are:
TVM recognises those across threads by that form while it builds them. Checked against torch in
tests/tuner/backends/tvm/test_nan_semantics.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tuner.backends.tvm.vector_math import holds_bfloat16, is_not_a_number
from tuner.graph.relax_types import IRModule, PrimFunc

_EXTREMA = (tirx.Max, tirx.Min)

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def pass_nan_on(kernel: PrimFunc) -> PrimFunc:
    """Return a CPU kernel whose floating-point extrema give NaN where an operand is NaN, and `!=` true."""
    accumulators = _accumulators(kernel)

    def initialised(store: Any) -> Any:
        kind = next((kind for buffer, kind in accumulators if buffer.same_as(store.buffer)), None)
        if kind is None or not _is_identity(store.value, kind):
            return store
        infinity = math.inf if kind is tirx.Min else -math.inf
        return tirx.BufferStore(store.buffer, tirx.FloatImm(store.value.ty.dtype, infinity), store.indices)

    if accumulators:
        kernel = tvm_ffi.structural_map(kernel, (tirx.BufferStore, initialised))
    replace = _passing_nan_unbound if holds_bfloat16(kernel) else _passing_nan
    for kind in _EXTREMA:
        kernel = tvm_ffi.structural_map(kernel, (kind, replace))
    differ = _differing_unbound if holds_bfloat16(kernel) else _differing
    kernel = tvm_ffi.structural_map(kernel, (tirx.NE, differ))
    return _keep_negations(kernel)


def pass_nan_on_gpu(kernel: PrimFunc) -> PrimFunc:
    """Return a GPU kernel so, but for the extrema of reductions; CUDA's `!=` is true of NaN as it is."""

    def passing(store: Any) -> Any:
        if _is_accumulated(store):
            return store
        value = store.value
        for kind in _EXTREMA:
            value = tvm_ffi.structural_map(value, (kind, _passing_nan_on_gpu))
        return tirx.BufferStore(store.buffer, value, store.indices)

    return _keep_negations(tvm_ffi.structural_map(kernel, (tirx.BufferStore, passing)))


def module_passing_nan(module: IRModule) -> IRModule:
    """Return a module with all its kernels so."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            changed.update_func(variable, pass_nan_on(function))
    return changed


def _keep_negations(kernel: PrimFunc) -> PrimFunc:
    """Return a kernel in which no negation of a comparison is taken for the opposite one, on any device."""
    return tvm_ffi.structural_map(kernel, (tirx.Not, _negated))


def _accumulators(kernel: PrimFunc) -> list[tuple[Any, Any]]:
    """Return buffers whose elements are replaced by their maximum or minimum with another value."""
    found: list[tuple[Any, Any]] = []

    def visit(store: Any) -> None:
        if _is_accumulated(store):
            found.append((store.buffer, type(store.value)))

    tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, visit))
    return found


def _is_accumulated(store: Any) -> bool:
    """Say whether an element is replaced by its own maximum or minimum with another value."""
    if not isinstance(store.value, _EXTREMA) or not _is_float(store.value):
        return False
    return any(
        isinstance(each, tvm.ir.TensorLoad) and each.source.same_as(store.buffer)
        for each in (store.value.a, store.value.b)
    )


def _is_identity(value: Any, kind: Any) -> bool:
    """Say whether a value is the finite number that TVM begins a maximum or minimum with."""
    if not isinstance(value, tirx.FloatImm):
        return False
    least = tirx.min_value if kind is tirx.Max else tirx.max_value
    return float(value.value) == float(least(str(value.ty.dtype)).value)


def _passing_nan(extremum: Any) -> Any:
    """Return what passes NaN on, with operands that are computed bound to names.

    What is but read is read again, which costs nothing: TVM's elimination of common subexpressions breaks
    kernels with such names (attention of as many keys as fill a vector).
    """
    operands = (extremum.a, extremum.b)
    is_bound = _is_float(extremum) and not any(map(_is_number, operands))
    is_bound = is_bound and not all(isinstance(each, tvm.ir.TensorLoad) for each in operands)
    if not is_bound or str(extremum.ty.dtype) == "bfloat16":  # TVM widens a value, and not its variable
        return _passing_nan_unbound(extremum)
    one, other = tirx.Var("first", extremum.ty.dtype), tirx.Var("second", extremum.ty.dtype)
    chosen = _passing_nan_unbound(type(extremum)(one, other))
    return tirx.Let(one, extremum.a, tirx.Let(other, extremum.b, chosen))


def _passing_nan_unbound(extremum: Any) -> Any:
    """Return what passes NaN on, with its operands written out as often as they are needed."""
    kind, one, other = type(extremum), extremum.a, extremum.b
    if not _is_float(extremum) or _is_number(one):
        return extremum
    if _is_number(other):
        return kind(other, one)
    wins = one > other if kind is tirx.Max else one < other
    # TVM's `isnan` knows nothing of bfloat16.
    asked = one.astype("float32") if str(extremum.ty.dtype) == "bfloat16" else one
    return tirx.Select(tirx.any(wins, is_not_a_number(asked)), one, other)


def _passing_nan_on_gpu(extremum: Any) -> Any:
    """Return NaN where an operand is NaN: CUDA's own maxima and minima give the other one."""
    operands = [each for each in (extremum.a, extremum.b) if not _is_number(each)]
    if not _is_float(extremum):
        return extremum
    if any(str(each.ty.dtype) == "bfloat16" for each in operands):
        return _nan_or(extremum, operands)
    variables = [tirx.Var("operand", each.ty.dtype) for each in operands]
    named = dict(zip(operands, variables, strict=True))
    found = _nan_or(
        type(extremum)(named.get(extremum.a, extremum.a), named.get(extremum.b, extremum.b)), variables
    )
    for variable, operand in zip(variables, operands, strict=True):
        found = tirx.Let(variable, operand, found)
    return found


def _nan_or(extremum: Any, operands: Sequence[Any]) -> Any:
    found = extremum
    for each in operands:
        asked = each.astype("float32") if str(each.ty.dtype) in ("bfloat16", "float16") else each
        found = tirx.Select(tirx.isnan(asked), each, found)
    return found


def _differing(comparison: Any) -> Any:
    """Return whether two values differ, each written out once."""
    one, other = comparison.a, comparison.b
    if not _is_float(one):
        return comparison
    if _is_number(one) or _is_number(other):
        value, number = (other, one) if _is_number(one) else (one, other)
        variable = tirx.Var("value", value.ty.dtype)
        return tirx.Let(variable, value, _differing_unbound(tirx.NE(variable, number)))
    first, second = tirx.Var("first", one.ty.dtype), tirx.Var("second", other.ty.dtype)
    chosen = _differing_unbound(tirx.NE(first, second))
    return tirx.Let(first, one, tirx.Let(second, other, chosen))


def _differing_unbound(comparison: Any) -> Any:
    """Return whether two values differ, as NaN does from all, with its operands written out twice."""
    if not _is_float(comparison.a):
        return comparison
    unknown = [
        is_not_a_number(each.astype("float32") if str(each.ty.dtype) == "bfloat16" else each)
        for each in (comparison.a, comparison.b)
        if not _is_number(each)
    ]
    return tirx.any(comparison, *unknown)


def _negated(negation: Any) -> Any:
    """Return a negation that is not taken for the opposite comparison, which NaN fails as well."""
    compared: list[Any] = []
    for kind in _COMPARISONS:
        tvm_ffi.structural_walk(negation.a, (kind, compared.append))
    if not any(_is_float(each.a) for each in compared):
        return negation
    return tirx.EQ(tirx.Cast("int8", negation.a), tirx.IntImm("int8", 0))


def _is_float(expression: Any) -> bool:
    return "float" in str(expression.ty.dtype)


def _is_number(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm)
