"""Durations that vary from step to step: a stated distribution, or one that was measured.

Every block of every micro-batch draws a factor of its own, whose mean is 1: `lognormal:0.1` has a standard
deviation of about 0.1, `uniform:0.2` lies within 0.8 and 1.2, measured ones are drawn as they were seen. A
slow device, slow in all its blocks, is another matter (`tessel check --trace`). Checked in
tests/tessel/search/batches/test_greedy.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessel.errors import UsageError, shown

FloatArray = npt.NDArray[np.float64]

MAX_SPREAD = {"lognormal": 2.0, "uniform": 1.0}
"""Widest spread of each distribution."""

QUANTILES = (50, 95, 99)
"""Percentiles of steps and makespans that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution of factors of durations.

    Attributes:
        kind: `lognormal`, `uniform` or `measured`.
        size: sigma, of all blocks or as an array that broadcasts to factors; half of the width; or the
            standard deviation of measured ones.
        seen: of measured ones: durations over the mean of their kind.
        source: the file that holds them.
    """

    kind: str
    size: float | FloatArray
    seen: tuple[float, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, text: str) -> Spread:
        """Return the distribution that a user wrote.

        Raises:
            UsageError: the text is none.
        """
        match = re.fullmatch(r"(lognormal|uniform):(\d*\.?\d+)", text.strip())
        if match is None or not 0 < float(match[2]) <= MAX_SPREAD[match[1]]:
            raise UsageError(
                f"--spread {shown(text)!r} is no distribution; write lognormal:0.1 (to 2), uniform:0.2 "
                "(to 1), or a file of recorded steps or records"
            )
        return cls(kind=match[1], size=float(match[2]))

    def factors(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Return independent factors with mean 1; float64."""
        if self.seen:
            return rng.choice(np.array(self.seen), shape)
        if self.kind == "uniform":
            return rng.uniform(1 - self.size, 1 + self.size, shape)
        return np.exp(self.size * rng.standard_normal(shape) - self.size**2 / 2)

    def __str__(self) -> str:
        """Return it as it is written; of what was measured, how much of what."""
        if self.seen:
            return f"measured ({len(self.seen)} samples of {shown(self.source)}, deviation {self.size:.1%})"
        return f"{self.kind}:{self.size:g}"
