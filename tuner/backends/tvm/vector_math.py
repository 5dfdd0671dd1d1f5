"""Exponentials, logarithms and the like as arithmetic, so that loops over them become vector code.

TVM lowers each of these of a vector to one call of the C library for each element, 2 to 4 ns each. Written as
polynomials they cost a few instructions for a whole vector. Only float32 is rewritten. Checked against NumPy
and SciPy in tests/tuner/backends/tvm/test_vector_math.py.

Source: the rational approximations of erf and tanh in Eigen, odd over even (relative error below 5e-7 in
single precision); range reduction by powers of two with the Taylor polynomial of degree 7 on
[-ln 2 / 2, ln 2 / 2] (exp, relative error below 2e-7), and with Moshier's polynomial between the roots of 1/2
and 2 (log, in the Cephes library; 2e-7).
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

_LOG_TERMS = (
    3.3333331174e-1,
    -2.4999993993e-1,
    2.0000714765e-1,
    -1.6668057665e-1,
    1.4249322787e-1,
    -1.2420140846e-1,
    1.1676998740e-1,
    -1.1514610310e-1,
    7.0376836292e-2,
)
"""Of log(1 + x), from the cube of x on."""

_SMALLEST_NORMAL = 2.0**-126

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
    """Return the kernel with `_ARITHMETIC`'s functions of float32 as arithmetic."""
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
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    if name == "tirx.isnan":
        return is_not_a_number(call.args[0])
    is_power_of_two = (
        name == "tirx.pow" and isinstance(call.args[0], tirx.FloatImm) and call.args[0].value == 2
    )
    if not (is_power_of_two or name in _ARITHMETIC) or str(call.ty.dtype) != "float32":
        return call
    if is_power_of_two:
        return _bound(call.args[1], power_of_two)
    return _bound(call.args[0], _ARITHMETIC[name])


def is_not_a_number(value: Any) -> Expression:
    """Return whether a value is NaN, by its bits: TVM takes a vector that it is asked for to pieces."""
    if str(value.ty.dtype) != "float32":
        return tirx.isnan(value)
    magnitude = tirx.reinterpret("int32", value) & tirx.const(0x7FFFFFFF, "int32")
    return magnitude > tirx.const(0x7F800000, "int32")


def exponential(value: Any) -> Expression:
    """Return e to the power of a variable: infinite above the largest number, 0 below 1.7e-38, NaN of NaN."""
    clamped = _clamped(value, _SMALLEST_EXPONENT, _MAX_EXPONENT)
    power = tirx.floor(clamped * _float(1.0 / math.log(2.0)) + _float(0.5))
    return _bound(power, lambda power: _bound(_reduced(clamped, power), lambda rest: _scaled(rest, power)))


def power_of_two(value: Any) -> Expression:
    """Return 2 to the power of a variable: infinite from 128 on, 0 below -125.5, NaN of NaN."""
    clamped = _clamped(value, -126.0, 128.0)
    power = tirx.floor(clamped + _float(0.5))
    return _bound(
        power,
        lambda power: _bound((clamped - power) * _float(math.log(2.0)), lambda rest: _scaled(rest, power)),
    )


def sigmoid(value: Any) -> Expression:
    """Return 1 / (1 + e^-x) of a variable; 0 below -88."""
    return _bound(_float(0.0) - value, lambda negative: _float(1.0) / (_float(1.0) + exponential(negative)))


def inverse_root(value: Any) -> Expression:
    """Return 1 over the square root of a variable, both of which are instructions."""
    return _float(1.0) / tirx.sqrt(value)


def logarithm(value: Any) -> Expression:
    """Return the natural logarithm of a variable: of 0 -infinity, of what is below NaN."""
    is_small = value < _float(_SMALLEST_NORMAL)
    scaled = tirx.Select(is_small, value * _float(2.0**24), value)
    return _bound(
        scaled,
        lambda normal: _ends_of_logarithm(
            value, _logarithm_of_normal(normal, tirx.Select(is_small, _float(-24.0), _float(0.0)))
        ),
    )


def _logarithm_of_normal(value: Expression, more: Expression) -> Expression:
    """Return the logarithm of a positive normal number, times 2 to the power of `more`."""
    bits = tirx.reinterpret("int32", value)
    mantissa = tirx.reinterpret(
        "float32", (bits & tirx.const(0x7FFFFF, "int32")) | tirx.const(0x3F000000, "int32")
    )
    exponent = ((bits >> tirx.const(23, "int32")) - tirx.const(126, "int32")).astype("float32") + more

    def of_half_to_one(half: Expression) -> Expression:
        is_low = half < _float(math.sqrt(0.5))
        rest = tirx.Select(is_low, half + half, half) - _float(1.0)
        power = tirx.Select(is_low, exponent - _float(1.0), exponent)
        return _bound(rest, lambda rest: _bound(power, lambda power: of_rest(rest, power)))

    def of_rest(rest: Expression, power: Expression) -> Expression:
        square = rest * rest
        small = _polynomial(rest, _LOG_TERMS) * rest * square + power * _float(_LN2_LOW)
        return (small - _float(0.5) * square) + rest + power * _float(_LN2_HIGH)

    return _bound(mantissa, of_half_to_one)


def _ends_of_logarithm(value: Expression, inside: Expression) -> Expression:
    """Return the logarithm where it is one of a positive number, and what it is elsewhere."""
    infinite = tirx.const(math.inf, "float32")
    of_zero = tirx.Select(value.equal(_float(0.0)), -infinite, tirx.const(math.nan, "float32"))
    # Of what is not a number no comparison holds.
    positive = tirx.Select(value < infinite, inside, value)
    return tirx.Select(value > _float(0.0), positive, tirx.Select(value <= _float(0.0), of_zero, value))


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
    "tirx.log": logarithm,
    "tirx.rsqrt": inverse_root,
    "tirx.sigmoid": sigmoid,
    "tirx.erf": error_function,
    "tirx.tanh": hyperbolic_tangent,
}
"""What replaces each of TVM's operators."""
