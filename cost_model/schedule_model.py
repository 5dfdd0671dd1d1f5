"""Which schedules of a kernel are likely to be fast: learnt from trials of other kernels, and its own.

A tuner asks for the order of thousands of candidate schedules, not for their latency, so the trees learn how
far a trial is from the best of its own kernel. What they see are the features that TVM's tuner extracts of
every store of a scheduled program; a program's stores are put together as the sum and the largest of each
feature. Trials of the kernel at hand weigh more than those of others. Trials that failed are left out.
Checked in tests/cost_model/test_schedule_model.py; compared with TVM's own model in
`benchmarks.schedule_cost_model`.

Source: the features are Ansor's (Zheng et al., OSDI 2020, section 4.4), as TVM's MetaSchedule extracts them;
learning across kernels follows TenSet (Zheng et al., NeurIPS 2021, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from cost_model.errors import CostModelError

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

    booster: Any  # xgboost.Booster: the distribution ships no types
    num_trials: int

    def score(self, features: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
        """Return how good each schedule is likely to be, shape (num_schedules,): larger is faster.

        Args:
            features: of each schedule, shape (num_stores, num_features).
        """
        if not features:
            return np.zeros(0)
        predicted = self.booster.inplace_predict(_rows(features))
        return np.asarray(predicted, dtype=np.float64)


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
    features = _rows([each for task in tasks for each in task.features])
    labels = np.concatenate([_labels(task) for task in tasks])
    weights = np.concatenate([_weights(task, current, num_trials) for task in tasks])
    settings = {**_PARAMETERS, "seed": seed, "nthread": num_threads, "base_score": float(np.mean(labels))}
    matrix = xgboost.DMatrix(features, labels, weight=weights)
    return ScheduleModel(xgboost.train(settings, matrix, num_boost_round=_ROUNDS), num_trials)


def _rows(features: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return one row a schedule: sum and largest of each feature over its stores, and their number."""
    return np.stack(
        [
            np.concatenate([each.sum(axis=0), each.max(axis=0), np.asarray([len(each)])]).astype(np.float32)
            for each in features
        ]
    )


def _labels(task: Trials) -> npt.NDArray[np.float64]:
    """Return the best latency over each one: 1 for the best, towards 0 for what is much slower."""
    latencies = np.asarray(task.latencies_us, dtype=np.float64)
    return np.asarray(latencies.min(initial=np.inf) / latencies)


def _weights(task: Trials, current: str | None, num_trials: int) -> npt.NDArray[np.float64]:
    """Return a weight for each trial: the rarer the current kernel's are, the more each counts."""
    own = len(task.latencies_us)
    weight = max(1.0, (num_trials - own) / own) ** 0.5 if task.task == current and own else 1.0
    return np.full(own, weight)
