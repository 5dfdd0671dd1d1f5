"""Distance of a query from the training range of a model, and the resulting widening of its interval.

Trees do not extrapolate: they predict for every larger program what they predict for the largest in training,
so errors grow with the distance. For each quantity (operations, working set, extents, threads, speeds of the
device) the model keeps the range of its training set, separately for matrix products, convolutions,
reductions and the rest. A query's *distance* is the number of doublings by which its farthest quantity lies
outside, beyond a quarter of a doubling; the half-width of its interval, in logarithms, grows in proportion to
it. The rate is calibrated with models trained without the largest or the smallest programs. Checked in
tests/cost_model/test_training_range.py; `tessel cost-model evaluate` shows the coverage on the largest
programs as the split `extrapolation`.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.features import FEATURE_NAMES

QUANTITIES = (
    "log_flops",
    "log_working_set",
    "log_m",
    "log_n",
    "log_k",
    "log_batch",
    "log_threads",
    "log_peak_gflops",
    "log_bandwidth",
)
"""Features that are logarithms to base 2 of what may be far larger or smaller than ever seen."""

SLACK_DOUBLINGS = 0.25
"""Outside by less is still near: a program a fifth larger, or a device measured again."""

ASSUMED_WIDENING = 0.35
"""Widening where too little was held out to calibrate it: half a doubling for each doubling of distance."""

LEAST_WIDENING = 0.05
"""A distance without any widening would claim what no training set can show."""

_COLUMNS = [FEATURE_NAMES.index(name) for name in QUANTITIES]
_KINDS = ("anchor_is_matmul", "anchor_is_conv", "anchor_is_reduction")
_KIND_COLUMNS = [FEATURE_NAMES.index(name) for name in _KINDS]
_NUM_GROUPS = len(_KINDS) + 1

Array = npt.NDArray[np.float64]


class TrainingRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The least and the greatest value of each quantity, for each kind of program.

    Attributes:
        quantities: names of the features, in order.
        low: of each kind, of each quantity; a kind that was never seen has the range of all.
        high: likewise.
    """

    quantities: tuple[str, ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shape = (_NUM_GROUPS, len(QUANTITIES))
        low, high = (np.asarray(values, dtype=np.float64) for values in (self.low, self.high))
        if self.quantities != QUANTITIES or low.shape != shape or high.shape != shape:
            raise ValueError("its ranges are not of the quantities that are looked at here")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError("a range ends before it begins")

    def doublings(self, features: np.ndarray) -> Array:
        """Return how far each query lies outside, by quantity; shape (num_queries, num_quantities), >= 0.

        Args:
            features: float32, shape (num_queries, num_features).
        """
        kinds = _kinds_of(features)
        values = features[:, _COLUMNS].astype(np.float64)
        low, high = np.asarray(self.low)[kinds], np.asarray(self.high)[kinds]
        outside = np.maximum(low - values, values - high)
        return np.asarray(np.maximum(outside - SLACK_DOUBLINGS, 0.0))

    def distance(self, features: np.ndarray) -> Array:
        """Return by how many doublings each query's farthest quantity lies outside, shape (num_queries,)."""
        return np.asarray(self.doublings(features).max(axis=1, initial=0.0))

    def names_outside(self, features: np.ndarray) -> list[tuple[str, ...]]:
        """Return the names of the quantities that lie outside, of each query, the farthest first."""
        found = self.doublings(features)
        order = np.argsort(-found, axis=1, kind="stable")
        return [
            tuple(quantity_name(QUANTITIES[index]) for index in columns if row[index] > 0)
            for row, columns in zip(found, order, strict=True)
        ]


def range_of(features: np.ndarray) -> TrainingRange:
    """Return the ranges of a training set, float32, shape (num_samples, num_features); it is not empty."""
    kinds, values = _kinds_of(features), features[:, _COLUMNS].astype(np.float64)
    low, high = [], []
    for kind in range(_NUM_GROUPS):
        chosen = values[kinds == kind] if (kinds == kind).any() else values
        low.append(tuple(map(float, chosen.min(axis=0))))
        high.append(tuple(map(float, chosen.max(axis=0))))
    return TrainingRange(quantities=QUANTITIES, low=tuple(low), high=tuple(high))


def extreme_parts(features: np.ndarray, share: float) -> list[npt.NDArray[np.bool_]]:
    """Return masks of the samples with most work, largest working set, and least work; `share` of each kind.

    Kinds are taken apart, so that every part has some of each.

    Args:
        features: float32, shape (num_samples, num_features).
    """
    kinds = _kinds_of(features)
    parts = []
    for name, sign in (("log_flops", 1.0), ("log_working_set", 1.0), ("log_flops", -1.0)):
        values = sign * features[:, FEATURE_NAMES.index(name)].astype(np.float64)
        part = np.zeros(len(values), dtype=np.bool_)
        for kind in range(_NUM_GROUPS):
            of_kind = kinds == kind
            if of_kind.any():
                part |= of_kind & (values > np.quantile(values[of_kind], 1 - share))
        parts.append(part)
    return parts


def quantity_name(feature: str) -> str:
    """Return what messages call a quantity."""
    return feature.removeprefix("log_").replace("_", " ")


def _kinds_of(features: np.ndarray) -> npt.NDArray[np.int64]:
    """Return the number of each query's kind; the last stands for all that no flag names."""
    flags = features[:, _KIND_COLUMNS] > 0
    return np.where(flags.any(axis=1), flags.argmax(axis=1), len(_KINDS)).astype(np.int64)
