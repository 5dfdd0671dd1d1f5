"""Arithmetic of torch, element by element: its promotion of types, its divisions and its powers.

TVM's converters divide whole numbers as whole numbers, leave out `alpha`, and take operands of two types at
their first one's. Here both are brought to the type that torch computes in. The sign of -0 is told apart by
its reciprocal, and that of NaN is not. Checked against torch in
tests/tuner/frontend/converters/test_elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of, is_constant

_SMALL = 0.3
"""Magnitude below which exp(x) - 1 is computed without a difference of nearly equal numbers."""

_MAX_POWER = 64
"""Whole exponents up to this are products; no model uses larger ones of whole numbers."""


def _unary(operator: Callable[..., Expr]) -> Converter:
    return lambda call: call.emit(operator(call.operand("self")))


def _staircase(operator: Callable[..., Expr]) -> Converter:
    """Convert a rounding, which leaves whole numbers as they are."""

    def convert(call: Call) -> Expr:
        x = call["self"]
        return x if not _is_float(dtype_of(x)) else call.emit(operator(x))

    return convert


def _binary(
    operator: Callable[..., Expr],
    on_truth: Callable[..., Expr] | None = None,
    *,
    names: tuple[str, str] = ("self", "other"),
) -> Converter:
    """Convert an operator of two operands, in the type of the result.

    Args:
        operator: of Relax, on numbers.
        on_truth: what it is on truth values.
    """

    def convert(call: Call) -> Expr:
        dtype = call.working_type(*names)
        left, right = (call.operand(name, dtype) for name in names)
        chosen = on_truth if dtype == "bool" and on_truth is not None else operator
        return call.cast(call.emit(chosen(left, right)), call.dtype)

    return convert


def _scaled(operator: Callable[..., Expr], *, is_reversed: bool = False) -> Converter:
    """Convert a sum or a difference, whose second operand has a factor `alpha`."""

    def convert(call: Call) -> Expr:
        dtype = call.working_type("self", "other", "alpha")
        if dtype == "bool":
            other = call.operand("other")
            if not call["alpha"]:
                other = call.emit(relax.op.logical_and(other, relax.const(False)))
            return call.emit(relax.op.logical_or(call.operand("self"), other))
        first, second = ("other", "self") if is_reversed else ("self", "other")
        left, right = call.operand(first, dtype), call.operand(second, dtype)
        alpha = call["alpha"]
        if alpha != 1:
            right = _product(call, right, call.cast(alpha, dtype))
        return call.cast(call.emit(operator(left, right)), call.dtype)

    return convert


def _multiply(call: Call) -> Expr:
    dtype = call.working_type("self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if dtype == "bool":
        return call.cast(call.emit(relax.op.logical_and(left, right)), call.dtype)
    return call.cast(_product(call, left, right), call.dtype)


def _product(call: Call, left: Expr, right: Expr) -> Expr:
    """Emit a product; TVM takes one with the number 0 for 0, which that of an infinity or NaN is not."""
    for factor, other in ((left, right), (right, left)):
        if _is_float(dtype_of(other)) and _is_zero(factor):
            return _zero_where(call, call.emit(relax.op.isfinite(other)), dtype_of(other))
    return call.emit(relax.op.multiply(left, right))


def _quotient(call: Call, left: Expr, right: Expr) -> Expr:
    """Emit a quotient; TVM takes that of the number 0 for 0, which one by 0 or NaN is not."""
    if _is_float(dtype_of(right)) and _is_zero(left):
        size = call.emit(relax.op.abs(right))
        is_one = call.emit(relax.op.greater(size, relax.const(0, dtype_of(right))))
        return _zero_where(call, is_one, dtype_of(right))
    return call.emit(relax.op.divide(left, right))


def _is_zero(value: Expr) -> bool:
    """Say whether a tensor is the number 0, which TVM puts into the code."""
    return is_constant(value) and not len(value.ty.shape) and not value.value.numpy()


def _zero_where(call: Call, condition: Expr, dtype: str) -> Expr:
    """Emit 0 where a condition holds, and NaN elsewhere."""
    return call.emit(relax.op.where(condition, relax.const(0, dtype), relax.const(float("nan"), dtype)))


def _divide(call: Call) -> Expr:
    """Emit a true division, or one rounded to whole numbers, down or towards zero."""
    mode = call["rounding_mode"] if call.has("rounding_mode") else None
    if mode == "floor":
        return _floor_divide(call)
    dtype = call.working_type("self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if mode is None or _is_float(dtype):
        quotient = _quotient(call, left, right)
        return call.cast(quotient if mode is None else call.emit(relax.op.trunc(quotient)), call.dtype)
    # Of whole numbers, Relax's division rounds down as well; towards zero it is that of magnitudes.
    return _towards_zero(call, left, right, dtype)


def _floor_divide(call: Call) -> Expr:
    dtype = call.working_type("self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if not _is_float(dtype):
        return call.emit(relax.op.floor_divide(left, right))
    return call.cast(call.emit(relax.op.floor(call.emit(relax.op.divide(left, right)))), call.dtype)


def _remainder(call: Call) -> Expr:
    """Emit the remainder with the divisor's sign."""
    dtype = call.working_type("self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if not _is_float(dtype):
        return call.emit(relax.op.floor_mod(left, right))
    quotient = call.emit(relax.op.floor(call.emit(relax.op.divide(left, right))))
    return call.cast(_rest(call, left, right, quotient), call.dtype)


def _fmod(call: Call) -> Expr:
    """Emit the remainder with the dividend's sign."""
    dtype = call.working_type("self", "other")
    left, right = call.operand("self", dtype), call.operand("other", dtype)
    if _is_float(dtype):
        quotient = call.emit(relax.op.trunc(call.emit(relax.op.divide(left, right))))
    else:
        quotient = _towards_zero(call, left, right, dtype)
    return call.cast(_rest(call, left, right, quotient), call.dtype)


def _rest(call: Call, left: Expr, right: Expr, quotient: Expr) -> Expr:
    return call.emit(relax.op.subtract(left, call.emit(relax.op.multiply(quotient, right))))


def _towards_zero(call: Call, left: Expr, right: Expr, dtype: str) -> Expr:
    """Emit the quotient of whole numbers, rounded towards zero."""
    if dtype == "uint8":
        return call.emit(relax.op.floor_divide(left, right))
    zero = relax.const(0, dtype)
    size = call.emit(relax.op.floor_divide(call.emit(relax.op.abs(left)), call.emit(relax.op.abs(right))))
    flipped = [call.emit(relax.op.less(x, zero)) for x in (left, right)]
    differs = call.emit(relax.op.not_equal(*(call.emit(relax.op.astype(x, "int8")) for x in flipped)))
    return call.emit(relax.op.where(differs, call.emit(relax.op.negative(size)), size))


def _power(call: Call) -> Expr:
    """Emit a power; small whole exponents are products, which are exact and take negative bases."""
    exponent = call["exponent"]
    dtype = call.working_type("self", "exponent")
    if isinstance(exponent, bool | int | float):
        base = call.operand("self", dtype)
        found = _known_power(call, base, exponent, dtype)
        if found is not None:
            return call.cast(found, call.dtype)
    if not _is_float(dtype):
        raise ValueError("its exponents are whole numbers that are not known before the model runs")
    base, exponent = call.operand("self", dtype), call.operand("exponent", dtype)
    return call.cast(call.emit(relax.op.power(base, exponent)), call.dtype)


def _known_power(call: Call, base: Expr, exponent: float, dtype: str) -> Expr | None:
    """Return a power by multiplications and roots; None where it is none of these."""
    match exponent:
        case 0.5:
            return call.emit(relax.op.sqrt(base))
        case -0.5:
            return call.emit(relax.op.rsqrt(base))
        case 0:
            return call.emit(relax.op.ones_like(base))
    if exponent != int(exponent) or abs(exponent) > (4 if _is_float(dtype) else _MAX_POWER):
        return None
    result: Expr | None = None
    square, remaining = base, abs(int(exponent))
    while remaining:
        if remaining & 1:
            result = square if result is None else call.emit(relax.op.multiply(result, square))
        remaining >>= 1
        if remaining:
            square = call.emit(relax.op.multiply(square, square))
    if exponent > 0:
        return result
    return call.emit(relax.op.divide(relax.const(1, dtype), result)) if _is_float(dtype) else None


def _reciprocal(call: Call) -> Expr:
    return call.emit(relax.op.divide(relax.const(1, call.dtype), call.operand("self")))


def _logarithm(base: float) -> Converter:
    """Convert a logarithm to a base, given by the base's own."""

    def convert(call: Call) -> Expr:
        found = call.emit(relax.op.log(call.operand("self")))
        return call.emit(relax.op.divide(found, relax.const(base, call.dtype)))

    return convert


def _log1p(call: Call) -> Expr:
    """Emit log(1 + x) without loss for small x: with u the rounded 1 + x, log(u) + (x - (u - 1)) / u.

    Differentiated, the second summand, a rounding error, gives nothing, and the first 1 / u. It is left out
    where u is 0 or infinite.

    Source: Hewlett-Packard, as in FreeBSD's s_log1p.c.
    """
    x = call.operand("self")
    one, zero = relax.const(1, call.dtype), relax.const(0, call.dtype)
    u = call.emit(relax.op.add(x, one))
    is_finite, is_other = call.emit(relax.op.isfinite(u)), call.emit(relax.op.not_equal(u, zero))
    has_error = call.emit(relax.op.logical_and(is_finite, is_other))
    error = call.emit(relax.op.subtract(x, call.emit(relax.op.subtract(u, one))))
    error = call.emit(relax.op.where(has_error, error, zero))
    correction = call.emit(relax.op.divide(error, call.emit(relax.op.where(has_error, u, one))))
    return call.emit(relax.op.add(call.emit(relax.op.log(u)), correction))


def _expm1(call: Call) -> Expr:
    """Emit exp(x) - 1; for small x by its series, since their difference would lose all digits."""
    x = call.operand("self")
    dtype = call.dtype
    size = call.emit(relax.op.abs(x))
    is_small = call.emit(relax.op.less(size, relax.const(_SMALL, dtype)))
    # That of others has powers that may be infinite; no gradient, which is 0 times theirs, passes there.
    small = call.emit(relax.op.where(is_small, x, relax.const(0, dtype)))
    # 1 + x/2 (1 + x/3 (1 + …)), nested: at most _SMALL**n / n! is left, below a unit of the last place.
    terms = 14 if dtype == "float64" else 8
    series = relax.const(1, dtype)
    for term in range(terms, 1, -1):
        scaled = call.emit(relax.op.multiply(small, relax.const(1 / term, dtype)))
        product = call.emit(relax.op.multiply(scaled, series))
        series = call.emit(relax.op.add(product, relax.const(1, dtype)))
    series = call.emit(relax.op.multiply(small, series))
    plain = call.emit(relax.op.subtract(call.emit(relax.op.exp(x)), relax.const(1, dtype)))
    return call.emit(relax.op.where(is_small, series, plain))


def _exp2(call: Call) -> Expr:
    return call.emit(relax.op.power(relax.const(2, call.dtype), call.operand("self")))


def _erfc(call: Call) -> Expr:
    return call.emit(
        relax.op.subtract(relax.const(1, call.dtype), call.emit(relax.op.erf(call.operand("self"))))
    )


def _extremum(operator: Callable[..., Expr], on_truth: Callable[..., Expr]) -> Converter:
    """Convert the larger or smaller of two tensors; NaN in either is NaN."""
    plain = _binary(operator, on_truth)

    def convert(call: Call) -> Expr:
        found = plain(call)
        if not _is_float(call.dtype):
            return found
        for x in (call.operand("self"), call.operand("other")):
            if not is_constant(x):
                found = call.emit(relax.op.where(call.emit(relax.op.isnan(x)), x, found))
        return found

    return convert


def _number_extremum(
    operator: Callable[..., Expr], on_truth: Callable[..., Expr], is_chosen: Callable[..., Expr]
) -> Converter:
    """Convert the larger or smaller of two tensors, passing over NaN; of equal ones the first is chosen."""
    plain = _binary(operator, on_truth)

    def convert(call: Call) -> Expr:
        if not _is_float(call.dtype):
            return plain(call)
        x, other = call.operand("self"), call.operand("other")
        condition = call.emit(is_chosen(x, other))
        if not is_constant(other):
            is_nan = call.emit(relax.op.isnan(other))
            condition = call.emit(relax.op.logical_or(condition, is_nan))
        return call.emit(relax.op.where(condition, x, other))

    return convert


def _clamp(*names: str) -> Converter:
    """Convert a clamp between bounds, of which one may be absent, by numbers or by tensors."""

    def convert(call: Call) -> Expr:
        x = call.operand("self")
        for name in names:
            x = _bounded(call, x, name) if call.has(name) else x
        return x

    return convert


def _bounded(call: Call, x: Expr, name: str) -> Expr:
    """Emit values kept on one side of a bound.

    By a choice rather than an extremum or a clip: torch's gradient passes to a value that equals its bound.
    """
    bound = call[name]
    if not _is_float(call.dtype):
        operator = relax.op.maximum if name == "min" else relax.op.minimum
        return call.emit(operator(x, call.cast(bound, call.dtype)))
    if isinstance(bound, int | float):
        # What is stored in bfloat16 is computed in float32, and compared with what bfloat16 makes of a bound.
        bound = torch.tensor(bound, dtype=call.results[0].dtype).item()
    limit = call.cast(bound, call.dtype)
    exceeds = relax.op.less if name == "min" else relax.op.greater
    return call.emit(relax.op.where(call.emit(exceeds(x, limit)), limit, x))


def _sign(call: Call) -> Expr:
    x = call["self"]
    return x if dtype_of(x) == "bool" else call.emit(relax.op.sign(x))


def _absolute(call: Call) -> Expr:
    x = call["self"]
    return x if dtype_of(x) in ("bool", "uint8") else call.emit(relax.op.abs(x))


def _copysign(call: Call) -> Expr:
    size = call.emit(relax.op.abs(call.operand("self")))
    is_negative = has_sign(call, call.operand("other"))
    return call.emit(relax.op.where(is_negative, call.emit(relax.op.negative(size)), size))


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _named(table: Mapping[str, Any], *overloads: str) -> dict[str, Any]:
    """Return a table with each name under each of the overloads."""
    return {f"{name}.{overload}": converter for name, converter in table.items() for overload in overloads}


_UNARY = {
    name: _unary(getattr(relax.op, name))
    for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "rsqrt",
        "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
    )
}  # fmt: skip

_ROUNDING = {name: _staircase(getattr(relax.op, name)) for name in ("ceil", "floor", "round", "trunc")}

_BINARY = {
    "mul": _multiply,
    "div": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "add": _scaled(relax.op.add),
    "sub": _scaled(relax.op.subtract),
    "rsub": _scaled(relax.op.subtract, is_reversed=True),
}

_EXTREMA = {
    "maximum.default": _extremum(relax.op.maximum, relax.op.logical_or),
    "minimum.default": _extremum(relax.op.minimum, relax.op.logical_and),
    "fmax.default": _number_extremum(relax.op.maximum, relax.op.logical_or, relax.op.greater_equal),
    "fmin.default": _number_extremum(relax.op.minimum, relax.op.logical_and, relax.op.less_equal),
}

ELEMENTWISE: Mapping[str, Converter] = {
    **_named(_UNARY | _ROUNDING, "default"),
    **_named(_BINARY, "Tensor", "Scalar", "default", "Tensor_mode", "Scalar_mode"),
    **_EXTREMA,
    "max.other": _EXTREMA["maximum.default"],
    "min.other": _EXTREMA["minimum.default"],
    "abs.default": _absolute,
    "neg.default": _unary(relax.op.negative),
    "sign.default": _sign,
    "sgn.default": _sign,
    "square.default": _unary(relax.op.square),
    "reciprocal.default": _reciprocal,
    "log2.default": _logarithm(0.6931471805599453),
    "log10.default": _logarithm(2.302585092994046),
    "log1p.default": _log1p,
    "expm1.default": _expm1,
    "exp2.default": _exp2,
    "erfc.default": _erfc,
    "special_erfc.default": _erfc,
    "pow.Tensor_Tensor": _power,
    "pow.Tensor_Scalar": _power,
    "pow.Scalar": _power,
    "atan2.default": _binary(relax.op.atan2),
    "copysign.Tensor": _copysign,
    **_named({"clamp": _clamp("min", "max")}, "default", "Tensor"),
    **_named({"clamp_min": _clamp("min"), "clamp_max": _clamp("max")}, "default", "Tensor"),
}
"""Converter by name of operator and overload."""


def has_sign(call: Call, x: Expr) -> Expr:
    """Emit where a number is negative, or is -0."""
    zero = relax.const(0, dtype_of(x))
    is_negative = call.emit(relax.op.less(x, zero))
    if "float" not in dtype_of(x):
        return is_negative
    reciprocal = call.emit(relax.op.divide(relax.const(1, dtype_of(x)), x))
    is_below = call.emit(relax.op.less(reciprocal, zero))
    return call.emit(relax.op.logical_or(is_negative, is_below))
