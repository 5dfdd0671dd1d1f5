"""What became of one step of one architecture: equal to torch, or why not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from tuner.frontend.model import Model
from tuner.lowering.workload_of import workload_of
from tuner.numerical_error import Deviation, compare_tensor, tolerance_of, worst


def _today() -> str:
    return time.strftime("%Y-%m-%d")


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What became of one step.

    Attributes:
        outcome: `equal` to torch, `wrong` beside torch, `refused` with an error, or `inapplicable`.
        error: largest error over the largest value of the same tensor; None where there is no number.
        reason: why it is not equal, or what was changed so that it is.
        date: day of the comparison.
    """

    outcome: Literal["equal", "wrong", "refused", "inapplicable"]
    error: float | None = None
    reason: str = ""
    date: str = msgspec.field(default_factory=_today)

    @classmethod
    def of_error(cls, error: Exception, place: str = "") -> Finding:
        """Return what an exception says, on one line."""
        lines = str(error).strip().splitlines() or [""]
        # TVM's own errors end in what is wrong; others begin with it.
        line = lines[-1] if type(error).__module__.startswith("tvm") else lines[0]
        return cls(outcome="refused", reason=f"{place}{type(error).__name__}: {line}")

    @classmethod
    def of_deviation(cls, deviation: Deviation, limit: float) -> Finding:
        """Say whether a deviation is within a limit."""
        if deviation.is_within(limit):
            return cls(outcome="equal", error=deviation.relative_error)
        return cls(
            outcome="wrong",
            error=deviation.relative_error,
            reason=f"{deviation.tensor} {deviation.describe(limit)}",
        )


def limit_of(model: Model) -> float:
    """Return the largest error that a model may have: that of the coarsest type that it computes in."""
    workload = workload_of(model.module["main"], "model", module=model.module)
    return tolerance_of(tensor.dtype for tensor in workload.values)


def compared(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], limit: float) -> Finding:
    """Compare what a program gives with what torch gives; their types have to agree as well."""
    if len(found) != len(expected):
        return Finding(outcome="wrong", reason=f"gives {len(found)} tensors in place of {len(expected)}")
    deviations = [
        compare_tensor(f"output {index}", mine, true, infinity_agrees=True, same_types=True)
        for index, (mine, true) in enumerate(zip(found, expected, strict=True))
    ]
    return Finding.of_deviation(worst(deviations) or Deviation(tensor="nothing", relative_error=0.0), limit)
