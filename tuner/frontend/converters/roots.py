"""Roots of sums of powers, which norms, distances, deviations and magnitudes are.

A root's slope is infinite at 0. torch's autograd gives what a norm of zeros was made from a gradient of 0: so
the root is taken of another number there. Checked in tests/tuner/stages/gradients/test_borders.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from tuner.frontend.converters.call import Call, Expr, dtype_of


def root_of_sum(call: Call, total: Expr, root: Callable[[Expr], Expr] = relax.op.sqrt) -> Expr:
    """Emit the root of a tensor that is at least 0; where it is 0, no gradient passes."""
    zero, one = (relax.const(number, dtype_of(total)) for number in (0, 1))
    is_zero = call.emit(relax.op.equal(total, zero))
    found = call.emit(root(call.emit(relax.op.where(is_zero, one, total))))
    return call.emit(relax.op.where(is_zero, zero, found))
