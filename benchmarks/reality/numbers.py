"""Numbers of tables as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def mean_of(values: Iterable[float]) -> float:
    """Return the mean."""
    return statistics.fmean(values)


def percent(value: float) -> str:
    """Return a ratio as text."""
    return f"{value * 100:.1f} %"


def signed(value: float) -> str:
    """Return a ratio with its sign."""
    return f"{value * 100:+.1f} %"
