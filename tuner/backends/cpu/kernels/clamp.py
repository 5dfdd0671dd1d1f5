"""Bounds of a kernel's results as they leave the registers, which ReLU and clips are.

Checked in tests/tuner/backends/cpu/test_nhwc.py and kernels/test_depthwise.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.tirx.script.builder import ir as script

from tuner.backends.cpu.kernels.memory import Vector
from tuner.graph.relax_types import Expression


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a result; infinite where there is none.

    Attributes:
        lower: what smaller results become.
        upper: what larger results become; not below `lower`.
    """

    lower: float = -math.inf
    upper: float = math.inf

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(
                f"no result lies within {self.lower} and {self.upper}; give the lower bound first"
            )

    def emit(self, value: Vector, lanes: int) -> Vector:
        """Return a vector of so many results within the bounds, NaN where the value is.

        TVM compiles `max(a, b)` to `a > b ? a : b`, so that NaN passes where the bound stands first.
        """
        if math.isfinite(self.lower):
            value = script.max(script.Broadcast(script.float32(self.lower), lanes), value)
        if math.isfinite(self.upper):
            value = script.min(script.Broadcast(script.float32(self.upper), lanes), value)
        return value


UNBOUNDED = Bounds()
RELU = Bounds(lower=0.0)


def bounds_of(value: Expression) -> Bounds | None:
    """Return what a call of `relu` or `clip` does; None for any other expression."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name == "relax.nn.relu":
        return RELU
    if value.op.name != "relax.clip":
        return None
    lower, upper = (float(bound.value) for bound in value.args[1:])
    return Bounds(lower, upper) if lower <= upper else None
