"""Exponentials, error functions and tangents as arithmetic, so that loops over them become vector code.

TVM lowers `exp`, `erf` and `tanh` of a vector to one call of the C library for each element, some 4 ns each.
Written as polynomials they cost a few instructions for a whole vector. Only float32 is rewritten. Checked
against NumPy and SciPy in tests/tuner/backends/test_vector_math.py.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 (erf, absolute error below 1.5e-7);
range reduction by powers of two with the Taylor polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2] (exp,
relative error below 2e-7).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx

PrimFunc: TypeAlias = Any
"""A `tvm.tirx.PrimFunc`; TVM ships no types."""

Expression: TypeAlias = Any
"""A TIR expression of float32."""

_LARGEST_EXPONENT = 88.0
"""Near the logarithm of the largest float32, 3.4e38: a larger argument gives this one's result."""

_SMALLEST_EXPONENT = -87.0
"""Near the logarithm of the smallest normal float32, 1.2e-38: a smaller argument gives this one's result."""

_LN2_HIGH = 0.693359375
"""ln 2 in ten bits, so that multiples of it are exact; `_LN2_LOW` is the rest."""

_LN2_LOW = math.log(2.0) - _LN2_HIGH

_ERF_SLOPE = 0.3275911
_ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def vectorise_math(kernel: PrimFunc) -> PrimFunc:
    """Return the kernel with exp, erf and tanh of float32 as arithmetic."""
    return tvm_ffi.structural_map(kernel, (tvm.ir.Call, _replace))


def _replace(call: Any) -> Any:
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in _ARITHMETIC:
        return call
    return _bound(call.args[0], _ARITHMETIC[call.op.name]) if str(call.ty.dtype) == "float32" else call


def exponential(value: Any) -> Expression:
    """Return e to the power of a variable."""
    clamped = tirx.max(tirx.min(value, _float(_LARGEST_EXPONENT)), _float(_SMALLEST_EXPONENT))
    power = tirx.floor(clamped * _float(1.0 / math.log(2.0)) + _float(0.5))
    return _bound(power, lambda power: _bound(_reduced(clamped, power), lambda rest: _scaled(rest, power)))


def error_function(value: Any) -> Expression:
    """Return the error function of a variable."""
    magnitude = tirx.abs(value)
    fraction = _float(1.0) / (_float(1.0) + _float(_ERF_SLOPE) * magnitude)
    tail = _bound(fraction, lambda fraction: fraction * _polynomial(fraction, _ERF_COEFFICIENTS))
    positive = _float(1.0) - tail * _bound(-value * value, exponential)
    return _bound(positive, lambda result: tirx.Select(value < _float(0.0), -result, result))


def hyperbolic_tangent(value: Any) -> Expression:
    """Return the hyperbolic tangent of a variable: 1 - 2 / (e^2|x| + 1), with the sign of x.

    Its absolute error is below 2e-7; near zero its relative error is larger.
    """
    double = _float(2.0) * tirx.abs(value)
    positive = _float(1.0) - _float(2.0) / (_bound(double, exponential) + _float(1.0))
    return _bound(positive, lambda result: tirx.Select(value < _float(0.0), -result, result))


def _reduced(value: Expression, power: Expression) -> Expression:
    return value - power * _float(_LN2_HIGH) - power * _float(_LN2_LOW)


def _scaled(rest: Expression, power: Expression) -> Expression:
    """Return e^rest · 2^power; the power becomes the exponent bits of a float."""
    polynomial = _polynomial(rest, tuple(1.0 / math.factorial(degree) for degree in range(8)))
    exponent_bits = (power.astype("int32") + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return polynomial * tirx.reinterpret("float32", exponent_bits)


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
