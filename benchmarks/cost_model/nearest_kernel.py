"""The nearest measured kernel, which a model of few records must not be worse than.

Features are scaled by their spread in the training set, the same backend comes first, and what is carried
over is the ratio of the latency to the roofline bound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_model.features import FEATURE_NAMES

_OTHER_BACKEND = 1e3
"""Distance between backends: farther than any kernel of the same one."""

_LEAST_SPREAD = 1e-6
_CHUNK = 4096
_BACKEND_COLUMNS = [index for index, name in enumerate(FEATURE_NAMES) if name.startswith("backend_")]


def nearest_labels(features: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> npt.NDArray[np.float64]:
    """Return the label of the kernel that is nearest to each query, shape (num_queries,).

    Args:
        features: of known kernels, float32, shape (num_kernels, num_features).
        labels: of these, shape (num_kernels,).
        asked: of queries, float32, shape (num_queries, num_features).
    """
    spread = features.std(axis=0)
    scales = np.where(spread > _LEAST_SPREAD, 1 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    scales[_BACKEND_COLUMNS] = _OTHER_BACKEND
    known = features * scales
    squares = (known.astype(np.float64) ** 2).sum(axis=1)
    found = np.zeros(len(asked))
    for first in range(0, len(asked), _CHUNK):
        queries = asked[first : first + _CHUNK] * scales
        # |a - b|² less |a|², which is the same for all kernels; in float64, since backends are far apart.
        distances = squares[None, :] - 2 * (queries.astype(np.float64) @ known.astype(np.float64).T)
        found[first : first + _CHUNK] = labels[distances.argmin(axis=1)]
    return found
