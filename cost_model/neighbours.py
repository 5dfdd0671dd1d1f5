"""The nearest measured kernel, and its blend with a forest: what few records allow.

A forest needs thousands of kernels; with a few hundred, the kernel that is most alike may say more. Each
quantity is scaled by its spread in the training set, the same backend comes first, and what is carried over
is the ratio of the latency to the roofline bound. How much of it counts is chosen on out-of-fold predictions
(`best_share`): 0 leaves the forest alone, 1 is the nearest neighbour. Checked in
tests/cost_model/test_neighbours.py.

Source: Wolpert, "Stacked generalization", Neural Networks 1992 (weights from out-of-fold predictions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.features import FEATURE_NAMES

MAX_NEIGHBOURS = 2000
"""Of larger training sets the forest alone is better, and faster."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the nearest neighbour that are tried."""

_OTHER_BACKEND = 1e3
"""Distance between backends: farther than any kernel of the same one."""

_LEAST_SPREAD = 1e-6
_MAX_LABEL = 100.0
_CHUNK = 4096
_BACKEND_COLUMNS = [index for index, name in enumerate(FEATURE_NAMES) if name.startswith("backend_")]

Array = npt.NDArray[np.float64]


class Neighbours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kernels to look among, and what their answer counts.

    Attributes:
        share: of the nearest one's answer; the rest is the forest's.
        scales: what each feature is multiplied by, float32, shape (num_features,).
        features: of the kernels, float32, shape (num_kernels, num_features).
        labels: logarithms of their latencies over their bounds, float32, shape (num_kernels,).
    """

    share: float
    scales: bytes
    features: bytes
    labels: bytes

    def __post_init__(self) -> None:
        count = len(self.labels) // 4
        width = len(FEATURE_NAMES)
        fits = len(self.labels) == 4 * count and len(self.scales) == 4 * width
        if not (fits and 0 < count <= MAX_NEIGHBOURS and len(self.features) == 4 * count * width):
            raise ValueError("its neighbours are no table of kernels and features")
        values = [np.frombuffer(part, np.float32) for part in (self.scales, self.features, self.labels)]
        if not (all(np.isfinite(part).all() for part in values) and 0 <= self.share <= 1):
            raise ValueError("its neighbours hold what is no number, or count for what is no share")
        if (np.abs(values[2]) > _MAX_LABEL).any():
            raise ValueError("its neighbours hold a ratio that is none of a latency")

    def predict(self, features: np.ndarray) -> Array:
        """Return the label of each query's nearest kernel, shape (num_queries,).

        Args:
            features: float32, shape (num_queries, num_features).
        """
        scales = np.frombuffer(self.scales, np.float32)
        known = np.frombuffer(self.features, np.float32).reshape(-1, len(FEATURE_NAMES)) * scales
        labels = np.frombuffer(self.labels, np.float32)
        found = [
            labels[_nearest(features[first : first + _CHUNK] * scales, known)]
            for first in range(0, len(features), _CHUNK)
        ]
        return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


@dataclass(frozen=True, slots=True)
class Blend:
    """A forest and neighbours, asked as a forest is.

    Attributes:
        forest: `xgboost.Booster`.
        neighbours: None where the forest is alone.
    """

    forest: Any
    neighbours: Neighbours | None

    def inplace_predict(self, features: np.ndarray) -> np.ndarray:
        """Return the blended label of each query, shape (num_queries,)."""
        answer: np.ndarray = self.forest.inplace_predict(features)
        if self.neighbours is None or self.neighbours.share == 0:
            return answer
        return blended(answer, self.neighbours.predict(features), self.neighbours.share)


def neighbours_of(features: np.ndarray, labels: np.ndarray, *, share: float = 1.0) -> Neighbours | None:
    """Return the kernels as neighbours; None where there are too many to look among.

    Args:
        features: float32, shape (num_kernels, num_features).
        labels: shape (num_kernels,).
        share: what the nearest one's answer counts.
    """
    if not 0 < len(labels) <= MAX_NEIGHBOURS:
        return None
    spread = features.std(axis=0)
    scales = np.where(spread > _LEAST_SPREAD, 1 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    scales[_BACKEND_COLUMNS] = _OTHER_BACKEND
    return Neighbours(
        share=share,
        scales=scales.astype(np.float32).tobytes(),
        features=np.ascontiguousarray(features, np.float32).tobytes(),
        labels=labels.astype(np.float32).tobytes(),
    )


def blended(forest: np.ndarray, nearest: np.ndarray, share: float) -> np.ndarray:
    """Return the answers of both, the nearest one's counting the share."""
    return np.asarray((1 - share) * forest + share * nearest)


def best_share(forest: np.ndarray, nearest: np.ndarray, labels: np.ndarray) -> float:
    """Return the share with the least mean error of out-of-fold answers; of equals the smallest.

    Args:
        forest: answers of forests that had not seen the sample, shape (num_samples,).
        nearest: of neighbours without the sample, same shape.
        labels: the truth, same shape.
    """
    errors = [float(np.abs(np.expm1(blended(forest, nearest, share) - labels)).mean()) for share in SHARES]
    return SHARES[int(np.argmin(errors))]


def _nearest(queries: np.ndarray, known: np.ndarray) -> npt.NDArray[np.int64]:
    squares = (known.astype(np.float64) ** 2).sum(axis=1)
    # |a - b|² less |a|², which is the same for all kernels; in float64, since backends are far apart.
    distances = squares[None, :] - 2 * (queries.astype(np.float64) @ known.astype(np.float64).T)
    return np.asarray(distances.argmin(axis=1), dtype=np.int64)
