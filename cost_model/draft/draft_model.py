"""Rank candidates of any kernel by their decisions; learnt from measured trials.

The label of a trial is the logarithm of its speed relative to the best of its own kernel, so that trials of
kernels of any size are on one scale; what is far off is clipped, since how bad it is does not matter. Four
forests are trained, each without a quarter of the kernels. Their mean is the prediction, and their spread
says where they know little. When trials of the kernel at hand are known, they weigh more, and belong to every
forest. A model is trained from the records whenever one is needed, and never saved. Checked in
tests/cost_model/draft/test_draft_model.py; compared in `benchmarks.proposers`.

Source: labels relative to the best of a task are those of Ansor (Zheng et al., OSDI 2020, section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_features import Caches, decision_features
from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.draft.gpu_decision_features import within_limits
from cost_model.errors import CostModelError
from cost_model.forests.boosting import train_forest

Array = npt.NDArray[np.float64]

MIN_TRIALS = 32
"""Below this the order would be a guess."""

NUM_FORESTS = 4

_WORST = -3.0
"""Logarithm of the least relative speed that is told apart: a twentieth of the best."""

_FAILED = _WORST

_OWN_WEIGHT = 1.0
"""Weight of all trials of the kernel at hand over that of all others."""

_MAX_OWN_WEIGHT = 32.0

_PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.1,
    "max_depth": 7,
    "min_child_weight": 2.0,
    "subsample": 0.8,
    "colsample_bytree": 0.4,
    "tree_method": "hist",
    "max_bin": 64,
}
_ROUNDS = 120


@dataclass(frozen=True, slots=True)
class DraftTrials:
    """Measured candidates of one kernel in one space.

    Attributes:
        latencies_us: of each, positive; infinite where it failed.
    """

    task: str
    space: DecisionSpace
    rows: Rows
    latencies_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.latencies_us):
            raise ValueError(
                f"{len(self.rows)} candidates have {len(self.latencies_us)} latencies; give one for each"
            )
        if any(not latency > 0 for latency in self.latencies_us):
            raise ValueError("a latency is not positive; a failed trial has an infinite one")

    @property
    def best_us(self) -> float:
        """The lowest latency; infinite where nothing succeeded."""
        return min(self.latencies_us, default=np.inf)


@dataclass(frozen=True, slots=True)
class DraftPrediction:
    """Logarithms of candidates' speed relative to the best of the kernel.

    Attributes:
        mean: the prediction; larger is faster.
        spread: how far the forests differ, as a standard deviation.
    """

    mean: Array
    spread: Array


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A trained model; `train_draft_model` makes it.

    Attributes:
        forests: boosters of XGBoost, whose distribution ships no types.
        caches: sizes that features compare with.
    """

    forests: tuple[Any, ...]
    caches: Caches

    def predict(self, space: DecisionSpace, rows: Rows) -> DraftPrediction:
        """Return the predictions of candidates, beyond a GPU's limits the lowest; 8 000 take some 0.3 s."""
        if not len(rows):
            return DraftPrediction(np.zeros(0), np.zeros(0))
        found = self.predict_features(decision_features(space, rows, self.caches))
        if not space.is_for_gpu:
            return found
        return DraftPrediction(np.where(within_limits(space, rows), found.mean, 2 * _WORST), found.spread)

    def predict_features(self, features: npt.NDArray[np.float32]) -> DraftPrediction:
        """Return the same for features as `decision_features` returns them, one row at least."""
        found = np.stack([forest.inplace_predict(features) for forest in self.forests]).astype(np.float64)
        return DraftPrediction(found.mean(axis=0), found.std(axis=0))


def train_draft_model(
    trials: Sequence[DraftTrials],
    *,
    caches: Caches,
    current: str | None = None,
    seed: int = 0,
    num_threads: int = 1,
) -> DraftModel:
    """Return a model of all trials; equal trials and seed give equal models.

    Args:
        trials: of any kernels; a kernel may have several spaces.
        current: the kernel whose candidates it will be asked for.
        seed: of the folds and the trees.
        num_threads: threads of the training, on which the result does not depend.

    Raises:
        CostModelError: there are fewer than `MIN_TRIALS` trials.
    """
    labelled = _labelled(trials, caches, current)
    if len(labelled.labels) < MIN_TRIALS:
        raise CostModelError(
            f"the records hold {len(labelled.labels)} trials of kernels that are tiled in levels, a draft "
            f"model needs at least {MIN_TRIALS}; measure more with `tessel language collect`"
        )
    forests = []
    for index in range(NUM_FORESTS):
        is_apart = labelled.folds(seed) == index
        learnt = ~is_apart if is_apart.any() and not is_apart.all() else np.ones_like(is_apart)
        # A weight is a number of copies, since `train_forest` knows no weights; the trees are the same.
        copies = np.repeat(np.flatnonzero(learnt), labelled.weights[learnt])
        forests.append(
            train_forest(
                _PARAMETERS,
                _ROUNDS,
                labelled.features[copies],
                labelled.labels[copies],
                seed=seed + index,
                num_threads=num_threads,
            )
        )
    return DraftModel(tuple(forests), caches)


@dataclass(frozen=True, slots=True)
class _Labelled:
    features: npt.NDArray[np.float32]
    labels: Array
    weights: npt.NDArray[np.int64]
    tasks: tuple[str, ...]
    current: str | None

    def folds(self, seed: int) -> npt.NDArray[np.int64]:
        """Return the fold of each trial: that of its kernel; the current kernel is in none."""
        names = sorted(set(self.tasks) - {self.current})
        order = np.random.default_rng(seed).permutation(len(names))
        fold = {name: int(place) % NUM_FORESTS for name, place in zip(names, order, strict=True)}
        return np.asarray([fold.get(task, -1) for task in self.tasks], dtype=np.int64)


def _labelled(trials: Sequence[DraftTrials], caches: Caches, current: str | None) -> _Labelled:
    best: dict[str, float] = {}
    for each in trials:
        best[each.task] = min(best.get(each.task, np.inf), each.best_us)
    known = [each for each in trials if len(each.rows) and np.isfinite(best[each.task])]
    if not known:
        return _Labelled(np.zeros((0, 0), np.float32), np.zeros(0), np.zeros(0, np.int64), (), current)
    features = np.concatenate([decision_features(each.space, each.rows, caches) for each in known])
    labels = np.concatenate([_labels(each, best[each.task]) for each in known])
    tasks = tuple(each.task for each in known for _ in each.latencies_us)
    own = sum(task == current for task in tasks)
    weight = min(_MAX_OWN_WEIGHT, _OWN_WEIGHT * (len(tasks) - own) / own) if own else 1.0
    weights = np.asarray([max(1, round(weight)) if task == current else 1 for task in tasks])
    return _Labelled(features, labels, weights, tasks, current)


def _labels(trials: DraftTrials, best_us: float) -> Array:
    latencies = np.asarray(trials.latencies_us, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(best_us / latencies), _FAILED)
