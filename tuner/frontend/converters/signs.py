"""Signs of numbers: that of -0 is told apart by its reciprocal, and that of NaN is not.

Checked against torch in tests/tuner/frontend/converters/test_elementwise.py.
"""

from __future__ import annotations

from tvm import relax

from tuner.frontend.converters.call import Call, Expr, dtype_of


def has_sign(call: Call, x: Expr) -> Expr:
    """Emit where a number is negative, or is -0."""
    zero = relax.const(0, dtype_of(x))
    is_negative = call.emit(relax.op.less(x, zero))
    if "float" not in dtype_of(x):
        return is_negative
    reciprocal = call.emit(relax.op.divide(relax.const(1, dtype_of(x)), x))
    is_below = call.emit(relax.op.less(reciprocal, zero))
    return call.emit(relax.op.logical_or(is_negative, is_below))
