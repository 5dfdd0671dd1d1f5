"""The two forests of a kernel model: one says how long a kernel takes, the other how far off that may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_model.forests.boosting import pseudo_huber, train_forest

_MEAN_PARAMETERS = {
    **pseudo_huber(1.0),
    "eta": 0.06,
    "max_depth": 10,
    "min_child_weight": 2.0,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 128,
}
_MEAN_ROUNDS = 400
QUICK_ROUNDS = 107
_QUICK_ETA = 0.18
"""Fewer, larger steps, for forests whose errors only calibrate the width: training stays within its time."""

_SCALE_PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.08,
    "max_depth": 4,
    "min_child_weight": 8.0,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "tree_method": "hist",
    "max_bin": 64,
}
_SCALE_ROUNDS = 60


def train_mean(features: np.ndarray, labels: np.ndarray, *, seed: int, num_threads: int) -> Any:
    """Return the forest, an `xgboost.Booster`, of the labels; see `train_forest`."""
    return train_forest(_MEAN_PARAMETERS, _MEAN_ROUNDS, features, labels, seed=seed, num_threads=num_threads)


def train_quick_mean(
    features: np.ndarray, labels: np.ndarray, *, seed: int, num_threads: int, rounds: int = QUICK_ROUNDS
) -> Any:
    """Return such a forest of fewer trees, whose errors stand for those of the whole one."""
    parameters = {**_MEAN_PARAMETERS, "eta": _QUICK_ETA}
    return train_forest(parameters, rounds, features, labels, seed=seed, num_threads=num_threads)


def train_scale(features: np.ndarray, log_errors: np.ndarray, *, seed: int, num_threads: int) -> Any:
    """Return the forest, an `xgboost.Booster`, of the logarithms of errors."""
    return train_forest(
        _SCALE_PARAMETERS, _SCALE_ROUNDS, features, log_errors, seed=seed, num_threads=num_threads
    )
