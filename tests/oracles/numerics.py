"""The largest error of a program's results, for tests that say how small it must be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.measuring.worker.comparison import compare_results


def relative_error(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest error over all results; what no number can say fails at once."""
    found = compare_results(results, expected)
    assert found.relative_error is not None, f"{found.tensor} {found.fault}"
    return found.relative_error
