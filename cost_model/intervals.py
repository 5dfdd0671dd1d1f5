"""Intervals of a kernel model's predictions: how wide, by the second forest, the novelty and the distance.

Checked in tests/cost_model/test_kernel_model.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cost_model.dataset import combination_groups, shape_groups, workload_groups
from cost_model.features import FEATURE_NAMES
from cost_model.gaussian_process import GaussianProcess, mean_answer

NOVELTIES = (workload_groups, shape_groups, combination_groups)
"""What is held out to learn the errors of each novelty: a workload, its shape, its combination."""

LONG_US = 100.0
"""Short kernels are timed less exactly, and have a calibration of their own."""

MAX_WIDTH = 25.0
"""Half of the widest interval, in logarithms: ten powers of ten to either side say nothing more."""


class Widths(NamedTuple):
    """What turns a predicted size of the error into half a width.

    Attributes:
        quantiles: factors for short and for long kernels of each novelty.
        sharpness: the power that the predicted size counts with: 1 as it is, 0 not at all.
    """

    quantiles: tuple[tuple[float, float], ...]
    sharpness: float


def centres_and_widths(
    forests: tuple[Any, Any],  # xgboost.Booster: mean and scale
    process: GaussianProcess | None,
    widths: Widths,
    features: np.ndarray,
    base: np.ndarray,
    novelty: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted logarithms of latencies, and half the widths of their intervals within the range."""
    mean, scale = forests
    correction, log_deviations = mean_answer(mean, process, features)
    centre = correction + base
    is_long = (centre >= np.log(LONG_US)).astype(np.int64)
    asked = scale_features(features, correction, novelty, log_deviations)
    log_scale = scale.inplace_predict(asked).astype(np.float64)
    factor = np.asarray(widths.quantiles)[novelty, is_long]
    size = np.exp(widths.sharpness * np.minimum(log_scale, MAX_WIDTH))
    return centre, np.minimum(factor * size, MAX_WIDTH)


def scale_features(
    features: np.ndarray, corrections: np.ndarray, novelty: np.ndarray, log_deviations: np.ndarray | None
) -> np.ndarray:
    """Return what the second forest sees, float32, shape (num_queries, `num_scale_features`).

    These are the features, the correction, the novelty, and what a process says of its own error, if any.
    """
    one_hot = np.eye(len(NOVELTIES), dtype=np.float32)[novelty]
    columns = [corrections] if log_deviations is None else [corrections, log_deviations]
    return np.concatenate([features, np.stack(columns, axis=1).astype(np.float32), one_hot], axis=1)


def num_scale_features(*, has_process: bool) -> int:
    """Return how many features the second forest sees."""
    return len(FEATURE_NAMES) + 1 + has_process + len(NOVELTIES)


def group_quantile(scores: np.ndarray, groups: np.ndarray, coverage: float) -> float:
    """Return the score that a share `coverage` of scores stays within, all groups counting alike.

    What a new network draws are groups, not rows: many rows of one group are hardly more than one.
    """
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(scores)
    share = np.cumsum(1 / counts[inverse[order]]) / len(counts)
    # As with rows, one more group that scored infinitely high stands for the one to come.
    level = coverage * (1 + 1 / len(counts))
    return float(scores[order][min(int(np.searchsorted(share, level)), len(scores) - 1)])
