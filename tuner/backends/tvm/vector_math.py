"""Exponentials, error functions and tangents as arithmetic, so that loops over them become vector code.

TVM lowers `exp`, `erf` and `tanh` of a vector to one call of the C library for each element, some 4 ns each.
Written as polynomials they cost a few instructions for a whole vector. Only float32 is rewritten. Checked
against NumPy and SciPy in tests/tuner/backends/tvm/test_vector_math.py.

Source: the rational approximations of erf and tanh in Eigen, odd over even (relative error below 5e-7 in
single precision); range reduction by powers of two with the Taylor polynomial of degree 7 on
[-ln 2 / 2, ln 2 / 2] (exp, relative error below 2e-7).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx

from tuner.graph.relax_types import PrimFunc

Expression: TypeAlias = Any
"""A TIR expression of float32."""

_MAX_EXPONENT = 89.0
"""Above the logarithm of the largest float32, 3.4e38: its power is infinite, as are those of all above."""

_SMALLEST_EXPONENT = -87.6
"""Below the logarithm of the smallest normal float32, 1.2e-38: its power is 0, as are those of all below."""

_LN2_HIGH = 0.693359375
"""ln 2 in ten bits, so that multiples of it are exact; `_LN2_LOW` is the rest."""

_LN2_LOW = math.log(2.0) - _LN2_HIGH

_ERF_BOUND = 4.0
"""Where the error function is 1 in single precision."""

_ERF_ABOVE = (
    -1.60960333262415e-02,
    -2.95459980854025e-03,
    -7.34990630326855e-04,
    -5.69250639462346e-05,
    -2.10102402082508e-06,
    2.77068142495902e-08,
    -2.72614225801306e-10,
)
_ERF_BELOW = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)

_TANH_BOUND = 7.90531110763549805
"""Where the hyperbolic tangent is 1 in single precision."""

_TANH_ABOVE = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
_TANH_BELOW = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)


def vectorise_math(kernel: PrimFunc) -> PrimFunc:
    """Return the kernel with exp, erf and tanh of float32 as arithmetic."""
    changed = tvm_ffi.structural_map(kernel, (tvm.ir.Call, _replace))
    return without_variables(changed) if holds_bfloat16(kernel) else changed


def without_variables(kernel: PrimFunc) -> PrimFunc:
    """Return the kernel with what variables of its expressions stand for in their places.

    Where a variable stands for something with a conversion from bfloat16 in it, TVM takes the bits for a
    number; what it rounds to bfloat16 it writes out twice, and refuses variables there. LLVM finds what is
    computed more than once.
    """

    def inlined(binding: Any) -> Any:
        variable, value = binding.var, binding.value
        return tvm_ffi.structural_map(
            binding.body, (tirx.Var, lambda each: value if each.same_as(variable) else each)
        )

    return tvm_ffi.structural_map(kernel, (tirx.Let, inlined))


def holds_bfloat16(kernel: PrimFunc) -> bool:
    """Say whether a kernel converts from or to bfloat16."""
    found: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.Cast, found.append))
    return any("bfloat16" in (str(cast.ty.dtype), str(cast.value.ty.dtype)) for cast in found)


def _replace(call: Any) -> Any:
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in _ARITHMETIC:
        return call
    return _bound(call.args[0], _ARITHMETIC[call.op.name]) if str(call.ty.dtype) == "float32" else call


def exponential(value: Any) -> Expression:
    """Return e to the power of a variable: infinite above the largest number, 0 below 1.7e-38, NaN of NaN."""
    clamped = _clamped(value, _SMALLEST_EXPONENT, _MAX_EXPONENT)
    power = tirx.floor(clamped * _float(1.0 / math.log(2.0)) + _float(0.5))
    return _bound(power, lambda power: _bound(_reduced(clamped, power), lambda rest: _scaled(rest, power)))


def error_function(value: Any) -> Expression:
    """Return the error function of a variable, within 5e-7 of its own size."""
    return _odd_fraction(value, _ERF_BOUND, _ERF_ABOVE, _ERF_BELOW)


def hyperbolic_tangent(value: Any) -> Expression:
    """Return the hyperbolic tangent of a variable, within 5e-7 of its own size."""
    return _odd_fraction(value, _TANH_BOUND, _TANH_ABOVE, _TANH_BELOW)


def _odd_fraction(
    value: Expression, bound: float, above: tuple[float, ...], below: tuple[float, ...]
) -> Expression:
    """Return x · above(x²) / below(x²) for x within a bound, and the bound's value beyond it."""
    near = _clamped(value, -bound, bound)

    def fraction(near: Expression) -> Expression:
        return _bound(
            near * near, lambda square: near * _polynomial(square, above) / _polynomial(square, below)
        )

    return _bound(near, fraction)


def _reduced(value: Expression, power: Expression) -> Expression:
    return value - power * _float(_LN2_HIGH) - power * _float(_LN2_LOW)


def _scaled(rest: Expression, power: Expression) -> Expression:
    """Return 2 e^rest · 2^(power - 1); the power less one becomes the exponent bits of a float.

    Less one, since 2^128 is no float32 though e^88.5 is; the bits of 2^-127 are those of 0.
    """
    polynomial = _polynomial(rest, tuple(2.0 / math.factorial(degree) for degree in range(8)))
    exponent_bits = (power.astype("int32") + tirx.const(126, "int32")) << tirx.const(23, "int32")
    return polynomial * tirx.reinterpret("float32", exponent_bits)


def _clamped(value: Expression, least: float, most: float) -> Expression:
    """Return a value within bounds, and NaN of NaN: TVM compiles `max(a, b)` to `a > b ? a : b`."""
    return tirx.max(_float(least), tirx.min(_float(most), value))


def _polynomial(value: Expression, coefficients: tuple[float, ...]) -> Expression:
    """Return the polynomial by Horner's rule; the constant term comes first."""
    result = _float(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * value + _float(coefficient)
    return result


def _bound(value: Expression, make: Any) -> Expression:
    """Return what `make` says of a variable that holds the value, so that it is computed once."""
    variable = tirx.Var("bound", "float32")
    return tirx.Let(variable, value, make(variable))


def _float(value: float) -> Expression:
    return tirx.const(value, "float32")


_ARITHMETIC = {
    "tirx.exp": exponential,
    "tirx.erf": error_function,
    "tirx.tanh": hyperbolic_tangent,
}
"""What replaces each of TVM's operators."""
