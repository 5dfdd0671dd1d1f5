"""Comparison of a program's results with its reference's.

Checked in tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.numerical_error import Deviation, compare_outputs, worst


def compare_results(
    results: Sequence[np.ndarray], expected: Sequence[np.ndarray], *, nan_agrees: bool = False
) -> Deviation:
    """Return the result with the largest error against the reference's, named by its position.

    Args:
        results: what a program returned.
        expected: what the reference returned.
        nan_agrees: whether results without a number in equal places are equal.
    """
    found = worst(compare_outputs(_numbered(results), _numbered(expected), nan_agrees=nan_agrees))
    return found or Deviation(tensor="nothing", relative_error=0.0)


def _numbered(results: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"output {position}": array for position, array in enumerate(results)}
