"""How far named tensors are from what they should be, so that nothing passes for equal uncompared.

A tensor that is missing, has another shape or type, or holds NaN is infinitely far off; infinities must be
the same at the same places. The error of a tensor is its largest absolute difference over the largest
absolute value expected of it, or over a share of the largest in any of its kind where that is more: what
should be zero (the gradient of a bias that softmax cancels) is nothing but rounding errors of large terms.
Checked in tests/tuner/test_difference.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

NEGLIGIBLE = 1e-3
"""Share of the largest value of any tensor below which a whole tensor counts as rounding errors."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """The worst of some tensors.

    Attributes:
        error: its relative error; infinite where there is no number for it.
        tensor: its name; empty where nothing differs or nothing was compared.
        reason: why the error is infinite; empty otherwise.
    """

    error: float
    tensor: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Say which tensor differs, and how."""
        how = self.reason or f"differs by {self.error:.1e} of the largest value"
        return f"{self.tensor} {how}"


NONE = Difference(0.0)
"""Nothing differs."""


def largest_difference(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    *,
    negligible: float = NEGLIGIBLE,
    checks_types: bool = False,
) -> Difference:
    """Return the tensor that differs most; the first of equals, in the order in which they are expected.

    Args:
        expected: what each tensor should be.
        found: what each is; a tensor too many is an error, too.
        negligible: see `NEGLIGIBLE`; zero compares each tensor with itself alone.
        checks_types: whether data types must be equal.
    """
    differences = []
    largest = {name: _largest(array) for name, array in expected.items()}
    least = negligible * max(largest.values(), default=0.0)
    for name, wanted in expected.items():
        if name not in found:
            differences.append(Difference(math.inf, name, "is missing"))
            continue
        scale = max(largest[name], least) or 1.0
        differences.append(
            _difference(name, np.asarray(wanted), np.asarray(found[name]), scale, checks_types)
        )
    unexpected = (Difference(math.inf, name, "is not expected") for name in found if name not in expected)
    return worst([*differences, *unexpected])


def worst(differences: Iterable[Difference]) -> Difference:
    """Return the largest of some differences, the first of equals; none is no difference."""
    largest = NONE
    for difference in differences:
        if difference.error > largest.error:
            largest = difference
    return largest


def _difference(
    name: str, wanted: np.ndarray, got: np.ndarray, scale: float, checks_types: bool
) -> Difference:
    if wanted.shape != got.shape:
        return Difference(math.inf, name, f"has shape {got.shape} instead of {wanted.shape}")
    exact, inexact = wanted.astype(np.float64), got.astype(np.float64)
    for array, whose in ((inexact, "holds"), (exact, "should hold")):
        num_nan = int(np.isnan(array).sum())
        if num_nan:
            return Difference(math.inf, name, f"{whose} NaN at {num_nan} of {array.size} places")
    if checks_types and wanted.dtype != got.dtype:
        return Difference(math.inf, name, f"is of type {got.dtype} instead of {wanted.dtype}")
    finite = np.isfinite(exact)
    if not np.array_equal(exact[~finite], inexact[~finite]) or not np.isfinite(inexact[finite]).all():
        return Difference(math.inf, name, "is infinite where it should not be, or the other way round")
    error = float(np.abs(inexact[finite] - exact[finite]).max(initial=0.0)) / scale
    return Difference(error, name) if error > 0 else NONE


def _largest(array: np.ndarray) -> float:
    """Return the largest finite magnitude."""
    magnitudes = np.abs(np.asarray(array).astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))
