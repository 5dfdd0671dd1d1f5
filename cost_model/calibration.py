"""Calibrate intervals on errors of what a model had not seen: by novelty, and by the distance from its range.

Checked in tests/cost_model/test_kernel_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cost_model.dataset import Dataset, extent_groups, shape_groups, split_folds
from cost_model.forests.kernel_forests import QUICK_ROUNDS, train_quick_mean, train_scale
from cost_model.gaussian_process import (
    MAX_PROCESS_SAMPLES,
    GaussianProcess,
    ProcessKernel,
    mean_answer,
)
from cost_model.intervals import (
    LONG_US,
    MAX_WIDTH,
    NOVELTIES,
    Widths,
    centres_and_widths,
    group_quantile,
    scale_features,
)
from cost_model.training_range import ASSUMED_WIDENING, LEAST_WIDENING, extreme_parts, range_of

_NUM_FOLDS, _NUM_FOLDS_OF_FEW = 4, 8
"""A model of three quarters of a few hundred samples errs much more than that of all of them."""

FEW_SCORES = 40
"""Below this a class's quantile would be a guess; all of its novelty stand for it."""

_FEW_GROUPS = 20
"""Below this the quantile of groups that count alike is that of the one or two worst."""

_SHARPNESSES = (0.0, 0.25, 0.5, 0.75, 1.0)

_HELD_OUT_SHARE = 0.25
"""Share of the largest, or smallest, programs that are held out to learn how errors grow with distance."""

_LEAST_DISTANCE = 0.25
"""Doublings; an error over a smaller distance says more about chance than about the distance."""

_LEAST_ERROR = 0.005
"""Residuals below half a percent are measurement noise; flooring them keeps their logarithm tame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a kernel model is trained on.

    Attributes:
        features: float32, shape (num_samples, num_features).
        labels: float64, shape (num_samples,), what the first forest learns.
        base: float64, same shape, what is added to it for the logarithm of a latency.
        kernel: hyperparameters of the process that a forest of few samples is blended with, fitted to all of
            them; None for none.
    """

    dataset: Dataset
    features: np.ndarray
    labels: np.ndarray
    base: np.ndarray
    kernel: ProcessKernel | None
    seed: int
    num_threads: int

    def quick_mean(self, chosen: np.ndarray, *, rounds: int = QUICK_ROUNDS) -> Any:  # xgboost.Booster
        """Return a quickly trained first forest of the chosen samples alone."""
        return train_quick_mean(
            self.features[chosen],
            self.labels[chosen],
            seed=self.seed,
            num_threads=self.num_threads,
            rounds=rounds,
        )

    @property
    def is_few(self) -> bool:
        """Whether there are few enough samples for a process."""
        return len(self.labels) <= MAX_PROCESS_SAMPLES

    @property
    def num_folds(self) -> int:
        """In how many parts samples are held out."""
        return _NUM_FOLDS_OF_FEW if self.is_few else _NUM_FOLDS

    def score_groups(self, groups: np.ndarray) -> np.ndarray:
        """Return the groups whose scores count alike, whatever their sizes: each sample, where they are few.

        Few samples hold most groups once or twice: the rare ones, which are the hardest to predict, would
        count as much as all others.
        """
        return np.arange(len(groups)) if self.is_few else groups

    def process(self, chosen: np.ndarray) -> GaussianProcess | None:
        """Return a process of the chosen samples alone, but for its hyperparameters; None for none."""
        if self.kernel is None:
            return None
        return GaussianProcess(self.kernel, self.features[chosen], self.labels[chosen])


class OutOfFold(NamedTuple):
    """What models that had not seen a sample made of it; rows for all samples, once for each novelty.

    Attributes:
        features: of the second forest, float32, shape (num_novelties × num_samples, `num_scale_features`).
        corrections: what the models said, shape (num_novelties × num_samples,).
        errors: |error| of the logarithm, same shape.
        novelty: which novelty a row is of, same shape.
    """

    features: np.ndarray
    corrections: np.ndarray
    errors: np.ndarray
    novelty: np.ndarray

    @property
    def log_errors(self) -> np.ndarray:
        """Logarithms of the errors, floored."""
        floored: np.ndarray = np.maximum(self.errors, _LEAST_ERROR)
        return np.asarray(np.log(floored))


def out_of_fold(training: Training, *, rounds: int = QUICK_ROUNDS) -> OutOfFold:
    """Return predictions of each sample by models that saw neither it nor its like, for each novelty."""
    features, labels = training.features, training.labels
    rng = np.random.default_rng(training.seed)
    corrections = np.zeros((len(NOVELTIES), len(labels)))
    log_deviations = np.zeros_like(corrections) if training.kernel else None
    for novelty, groups_of in enumerate(NOVELTIES):
        folds = split_folds(groups_of(training.dataset), num_folds=training.num_folds, rng=rng)
        for fold in range(training.num_folds):
            held_out = folds == fold
            if not held_out.any():
                continue
            # Where all samples are of one group, what saw them has to do.
            rest = ~held_out if not held_out.all() else held_out
            mean, process = training.quick_mean(rest, rounds=rounds), training.process(rest)
            answer = mean_answer(mean, process, features[held_out])
            corrections[novelty, held_out] = answer.labels
            if log_deviations is not None:
                log_deviations[novelty, held_out] = answer.log_deviations
    novelties = np.repeat(np.arange(len(NOVELTIES)), len(labels))
    stacked = scale_features(
        np.tile(features, (len(NOVELTIES), 1)),
        corrections.ravel(),
        novelties,
        None if log_deviations is None else log_deviations.ravel(),
    )
    errors = np.abs(corrections - labels).ravel()
    return OutOfFold(stacked, corrections.ravel(), errors, novelties)


def calibrated_widths(training: Training, held_out: OutOfFold, *, coverage: float) -> Widths:
    """Return what makes a share `coverage` of out-of-fold errors fall within widths, and these narrow.

    Of few samples the second forest learns little more than noise, and trusting it makes intervals wide where
    they need not be. Of several sharpnesses, each with the factors that keep the coverage, the one with the
    least mean logarithm of widths is chosen.
    """
    log_scales = _out_of_fold_scales(training, held_out)
    is_long = held_out.corrections + np.tile(training.base, len(NOVELTIES)) >= np.log(LONG_US)
    extents = np.tile(np.unique(extent_groups(training.dataset), return_inverse=True)[1], len(NOVELTIES))
    classes = [
        _class_members(held_out.novelty == novelty, is_long == long, extents)
        for novelty in range(len(NOVELTIES))
        for long in (False, True)
    ]
    found = []
    for sharpness in _SHARPNESSES:
        scales = np.exp(sharpness * log_scales)
        factors = [
            group_quantile((held_out.errors / scales)[m], training.score_groups(extents[m]), coverage)
            for m, _ in classes
        ]
        logarithms = [
            np.log(np.maximum(factor * scales[own], _LEAST_ERROR))
            for factor, (_, own) in zip(factors, classes, strict=True)
        ]
        pairs = tuple(zip(factors[::2], factors[1::2], strict=True))
        found.append((float(np.concatenate(logarithms).mean()), Widths(pairs, sharpness)))
    return min(found, key=lambda pair: pair[0])[1]


def _class_members(
    of_novelty: np.ndarray, of_length: np.ndarray, extents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples whose quantile a class takes, and its own; of few, all of its novelty stand."""
    own = of_novelty & of_length
    is_enough = own.sum() >= FEW_SCORES and len(np.unique(extents[own])) >= _FEW_GROUPS
    return (own if is_enough else of_novelty), own


def _out_of_fold_scales(training: Training, held_out: OutOfFold) -> np.ndarray:
    """Return logarithms of errors, as second forests predict them that had not seen the shape."""
    rng = np.random.default_rng(training.seed + 1)
    folds = np.tile(split_folds(shape_groups(training.dataset), num_folds=3, rng=rng), len(NOVELTIES))
    log_scales = np.zeros(len(folds))
    for fold in range(3):
        tested = folds == fold
        if not tested.any():
            continue
        rest = ~tested if not tested.all() else tested
        model = train_scale(
            held_out.features[rest],
            held_out.log_errors[rest],
            seed=training.seed,
            num_threads=training.num_threads,
        )
        log_scales[tested] = model.inplace_predict(held_out.features[tested])
    return log_scales


def calibrated_widening(
    training: Training,
    scale: Any,  # xgboost.Booster
    widths: Widths,
    *,
    coverage: float,
) -> float:
    """Return what half-widths must grow by with each doubling of distance, as held-out extremes say.

    Models without the largest or smallest programs are asked for these. What their errors exceed the interval
    by that a new shape has anyway, over the distance, is a score; a share `coverage` of scores stays within.
    """
    features, labels, base = training.features, training.labels, training.base
    extents = np.asarray(extent_groups(training.dataset))
    scores, groups = [], []
    for part in extreme_parts(features, _HELD_OUT_SHARE):
        if part.all() or not part.any():
            continue
        rest = ~part
        distance = range_of(features[rest]).distance(features[part])
        forests, process = (training.quick_mean(rest), scale), training.process(rest)
        new_shape = np.ones(int(part.sum()), dtype=np.int64)
        centre, width = centres_and_widths(forests, process, widths, features[part], base[part], new_shape)
        errors = np.abs(centre - (labels + base)[part])
        is_far = distance > _LEAST_DISTANCE
        scores.append(np.maximum(errors - width, 0)[is_far] / distance[is_far])
        groups.append(extents[part][is_far])
    found = np.concatenate(scores) if scores else np.zeros(0)
    if len(found) < FEW_SCORES:
        return ASSUMED_WIDENING
    widening = group_quantile(found, training.score_groups(np.concatenate(groups)), coverage)
    return float(np.clip(widening, LEAST_WIDENING, MAX_WIDTH))
