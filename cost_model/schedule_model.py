"""Rank the schedules of a kernel, learnt from its own trials and those of other kernels.

A tuner needs a ranking of thousands of candidate schedules, not their latency, so the trees learn how far a
trial is from the best of its own kernel: one forest the ratio, which separates the good ones, another its
logarithm, which separates the bad ones. Their inputs are the features that TVM's tuner extracts from every
store of a scheduled program; a program's stores are aggregated as the sum and the maximum of each feature,
those of the busiest store, and the sum over the others. Trials of the current kernel weigh four times as much
as all others together. Failed trials are ignored. Checked in tests/cost_model/test_schedule_model.py;
compared with TVM's own model in `benchmarks.schedule_cost_model`.

Source: the features are Ansor's (Zheng et al., OSDI 2020, section 4.4), as TVM's MetaSchedule extracts them;
learning across kernels follows TenSet (Zheng et al., NeurIPS 2021, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.errors import CostModelError
from cost_model.forests.boosting import xgboost

MIN_TRIALS = 32
"""Below this the order would be a guess."""

_PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.1,
    "max_depth": 6,
    "min_child_weight": 2.0,
    "subsample": 0.8,
    "colsample_bytree": 0.3,
    "tree_method": "hist",
    "max_bin": 64,
}
_ROUNDS = 150

_OWN_WEIGHT = 4.0
"""Weight of the kernel's own trials over that of all others: of 0.25, 1, 4 and 16 the best in replays."""

_NUM_COUNTS = 16
"""The first features of a store count its operations, on a scale of logarithms."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Schedules of one kernel that were measured.

    Attributes:
        task: names the kernel.
        features: of each schedule, shape (num_stores, num_features).
        latencies_us: of each schedule, positive.
    """

    task: str
    features: tuple[npt.NDArray[np.float32], ...]
    latencies_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.latencies_us):
            raise ValueError(
                f"{len(self.features)} schedules have {len(self.latencies_us)} latencies; give one for each"
            )


@dataclass(frozen=True, slots=True)
class ScheduleModel:
    """A trained model; `train_schedule_model` makes it."""

    ratio: Any  # xgboost.Booster: the distribution ships no types
    log_ratio: Any  # xgboost.Booster
    num_trials: int

    def score(self, features: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
        """Return the best latency over each schedule's, as predicted: larger is faster, and none is negative.

        Args:
            features: of each schedule, shape (num_stores, num_features).
        """
        return self.score_rows(rows_of(features)) if features else np.zeros(0)

    def score_rows(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the same for schedules as `rows_of` puts them, one at least."""
        ratio = self.ratio.inplace_predict(rows).astype(np.float64)
        from_log = np.exp(self.log_ratio.inplace_predict(rows).astype(np.float64))
        return np.asarray((np.maximum(ratio, 0.0) + from_log) / 2)


def train_schedule_model(
    tasks: Sequence[Trials], *, current: str | None = None, seed: int = 0, num_threads: int = 1
) -> ScheduleModel:
    """Return a model of all trials; equal trials and seed give equal models.

    Args:
        tasks: trials by kernel.
        current: the kernel whose schedules it will be asked for.
        seed: seed of the trees.
        num_threads: threads of the training.

    Raises:
        CostModelError: there are fewer than `MIN_TRIALS` trials.
    """
    num_trials = sum(len(task.latencies_us) for task in tasks)
    if num_trials < MIN_TRIALS:
        raise CostModelError(
            f"the records hold {num_trials} trials of schedules, an order of them needs at least "
            f"{MIN_TRIALS}; tune more kernels first"
        )
    features = rows_of([each for task in tasks for each in task.features])
    ratios = np.concatenate([_ratios(task) for task in tasks])
    weights = np.concatenate([_weights(task, current, num_trials) for task in tasks])
    forests = []
    for labels in (ratios, np.log(ratios)):
        mean = float(np.average(labels, weights=weights))
        settings = {**_PARAMETERS, "seed": seed, "nthread": num_threads, "base_score": mean}
        matrix = xgboost.DMatrix(features, labels, weight=weights)
        forests.append(xgboost.train(settings, matrix, num_boost_round=_ROUNDS))
    return ScheduleModel(ratio=forests[0], log_ratio=forests[1], num_trials=num_trials)


def rows_of(features: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return one row per schedule, shape (num_schedules, 4 × num_features + 1)."""
    return np.stack([_row(each) for each in features])


def _row(stores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    total = stores.sum(axis=0)
    busiest = stores[int(np.argmax(stores[:, :_NUM_COUNTS].sum(axis=1)))]
    parts = [total, stores.max(axis=0), busiest, total - busiest, np.asarray([len(stores)])]
    return np.concatenate(parts).astype(np.float32)


def _ratios(task: Trials) -> npt.NDArray[np.float64]:
    """Return the best latency over each one: 1 for the best, towards 0 for what is much slower."""
    latencies = np.asarray(task.latencies_us, dtype=np.float64)
    return np.asarray(latencies.min(initial=np.inf) / latencies)


def _weights(task: Trials, current: str | None, num_trials: int) -> npt.NDArray[np.float64]:
    """Return a weight for each trial: the rarer the current kernel's are, the more each counts."""
    own = len(task.latencies_us)
    weight = max(1.0, _OWN_WEIGHT * (num_trials - own) / own) if task.task == current and own else 1.0
    return np.full(own, weight)
