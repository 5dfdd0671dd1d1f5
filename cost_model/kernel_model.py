"""Absolute latency of a (sub-graph, backend, target), with a calibrated prediction interval.

Gradient-boosted trees learn log(latency / roofline bound): an analytic bound extrapolates to unseen shapes,
and the trees correct it. A second, smaller forest predicts the size of the first one's error; its scale is
calibrated on out-of-fold residuals (normalised conformal prediction), so that a share `coverage` of intervals
contains the true latency. Each width has the same total weight, because a new network brings new widths
rather than new kernels. The error grows with a program's distance from the training set, so residuals are
computed, and intervals calibrated, separately for each *novelty*: a known combination of operators around a
known shape, a known combination around a new shape, and a new combination. Checked in
tests/cost_model/test_kernel_model.py.

Source: Chen and Guestrin, "XGBoost", KDD 2016; Lei et al., "Distribution-free predictive inference for
regression", JASA 2018, section 5.2 (locally weighted conformal intervals); Vovk et al., "Algorithmic learning
in a random world", 2005, section 4.5 (calibration by classes); Dunn, Wasserman and Ramdas,
"Distribution-free prediction sets for two-layer hierarchical models", JASA 2023 (calibration over groups).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from cost_model.boosting import num_idle_cores, train_forest, xgboost
from cost_model.dataset import (
    MIN_SAMPLES,
    Dataset,
    combination_groups,
    extent_groups,
    shape_groups,
    split_folds,
    workload_groups,
)
from cost_model.errors import CostModelError
from cost_model.features import (
    FEATURE_NAMES,
    FEATURES_VERSION,
    Query,
    anchor_key,
    feature_matrix,
    roofline_vector,
    shape_key,
)
from cost_model.model_files import check_features, digest_of, load_booster, load_manifest, save_model
from cost_model.training_range import (
    ASSUMED_WIDENING,
    LEAST_WIDENING,
    TrainingRange,
    extreme_parts,
    range_of,
)
from records import Workload

SCHEMA_VERSION = 3

TargetKind = Literal["roofline_ratio", "log_latency"]

_MANIFEST = "manifest.json"

_MEAN_PARAMETERS = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 1.0,
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
_QUICK_ETA, _QUICK_ROUNDS = 0.18, 107
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
_NUM_FOLDS = 4
_NOVELTIES = (workload_groups, shape_groups, combination_groups)
"""What is held out to learn the errors of each novelty: a workload, its shape, its combination."""

_LONG_US = 100.0
"""Short kernels are timed less exactly, and have a calibration of their own."""

_FEW_SCORES = 40
"""Below this a class's quantile would be a guess; all of its novelty stand for it."""

MAX_WIDTH = 25.0
"""Half of the widest interval, in logarithms: ten powers of ten to either side say nothing more."""

_HELD_OUT_SHARE = 0.25
"""Share of the largest, or smallest, programs that are held out to learn how errors grow with distance."""

_LEAST_DISTANCE = 0.25
"""Doublings; an error over a smaller distance says more about chance than about the distance."""

_MAX_LOGARITHM = 100.0
"""No latency is beyond e¹⁰⁰ microseconds."""

_LEAST_ERROR = 0.005
"""Residuals below half a percent are measurement noise; flooring them keeps their logarithm tame."""


class Prediction(msgspec.Struct, frozen=True):
    """A predicted latency and the interval that holds it with the model's coverage, in microseconds.

    `out_of_range` names the quantities that lie far outside of what the model was trained on, the farthest
    first; the interval is wider for it.
    """

    latency_us: float
    low_us: float
    high_us: float
    out_of_range: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved model needs to be trusted again.

    Attributes:
        features_version: version of the features it was trained on.
        feature_names: their names in order.
        target: what the trees learn.
        coverage: share of intervals meant to hold the truth.
        conformal_quantiles: factor from predicted scale to half-width, calibrated; of short and of long
            kernels for each novelty.
        known_shapes: names of the anchors with their shapes that it has seen, hashed.
        known_combinations: names of the combinations of operators that it has seen, hashed.
        training_range: of quantities that a query may be far outside of.
        widening: what an interval's half-width grows by with each doubling of that distance, in logarithms.
        num_samples: keys trained on.
        records_digest: names the set of record ids it rests on.
        last_record_id: newest record it rests on.
        backends: backends it has seen; others are refused.
        versions: versions of what trained it.
        seed: seed of its training.
        digests: of the forests' files by name; empty until the model is saved.
    """

    features_version: int
    feature_names: tuple[str, ...]
    target: TargetKind
    coverage: float
    conformal_quantiles: tuple[tuple[float, float], ...]
    known_shapes: frozenset[str]
    known_combinations: frozenset[str]
    training_range: TrainingRange
    widening: float
    num_samples: int
    records_digest: str
    last_record_id: int
    backends: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    seed: int
    digests: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        quantiles = np.asarray([*map(list, self.conformal_quantiles)], dtype=np.float64)
        if quantiles.shape != (len(_NOVELTIES), 2) or not ((quantiles >= 0) & (quantiles < 1e9)).all():
            raise ValueError("its intervals have no widths that were ever calibrated")
        if not (0 < self.coverage < 1 and 0 <= self.widening <= MAX_WIDTH):
            raise ValueError("its coverage is no share, or its widening no width")


@dataclass(frozen=True, slots=True)
class KernelModel:
    """A trained model; `train_kernel_model` and `load_kernel_model` make it."""

    mean: Any  # xgboost.Booster: the distribution ships no types
    scale: Any  # xgboost.Booster
    manifest: Manifest

    def predict(self, queries: Sequence[Query]) -> tuple[Prediction, ...]:
        """Return a prediction for every query, in order.

        Raises:
            CostModelError: a backend was not among those trained on.
        """
        if not queries:
            return ()
        self._check_backends(queries)
        features = feature_matrix(queries)
        arrays = self.predict_features(features, roofline_vector(queries), self.novelty(queries))
        outside = self.manifest.training_range.names_outside(features)
        return tuple(
            Prediction(float(us), float(low_us), float(high_us), names)
            for us, low_us, high_us, names in zip(*arrays, outside, strict=True)
        )

    def predict_arrays(self, queries: Sequence[Query]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return latency, low and high end in microseconds, float64, each of shape (num_queries,).

        Raises:
            CostModelError: a backend was not among those trained on.
        """
        if not queries:
            empty = np.zeros(0)
            return empty, empty, empty
        self._check_backends(queries)
        return self.predict_features(feature_matrix(queries), roofline_vector(queries), self.novelty(queries))

    def _check_backends(self, queries: Sequence[Query]) -> None:
        unseen = sorted({query.backend for query in queries} - set(self.manifest.backends))
        if unseen:
            raise CostModelError(
                f"the cost model was trained without the backend {unseen[0]} (it knows "
                f"{', '.join(self.manifest.backends)}); measure some of its kernels and train again"
            )

    def novelty(self, queries: Sequence[Query]) -> np.ndarray:
        """Return how far each query is from what was trained on, int64, shape (num_queries,).

        0 for a known combination around a known shape, 1 for a new shape, 2 for a new combination.
        """
        found: dict[int, int] = {}
        for query in queries:
            workload = query.workload
            if id(workload) not in found:
                found[id(workload)] = self._novelty(workload)
        return np.array([found[id(query.workload)] for query in queries], dtype=np.int64)

    def _novelty(self, workload: Workload) -> int:
        if _short_hash(shape_key(workload)) not in self.manifest.known_combinations:
            return 2
        return int(_short_hash(anchor_key(workload)) not in self.manifest.known_shapes)

    def predict_features(
        self, features: np.ndarray, bounds_us: np.ndarray, novelty: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return latency, low and high end from features, for callers that keep them.

        Args:
            features: float32, shape (num_queries, num_features).
            bounds_us: float64, shape (num_queries,), the roofline bounds.
            novelty: int64, shape (num_queries,), as `novelty` returns it.

        Raises:
            CostModelError: what the trees say is no latency, so that they are not of this project's training.
        """
        centre, width = _centres_and_widths(
            (self.mean, self.scale),
            self.manifest.conformal_quantiles,
            features,
            _base(bounds_us, self.manifest.target),
            novelty,
        )
        width = np.minimum(
            width + self.manifest.widening * self.manifest.training_range.distance(features), MAX_WIDTH
        )
        if not (np.abs(centre) < _MAX_LOGARITHM).all():
            raise CostModelError(
                "the cost model predicts what is no latency; train it again with `tessel cost-model train`"
            )
        return np.exp(centre), np.exp(centre - width), np.exp(centre + width)

    def save(self, folder: Path) -> None:
        """Write the forests in XGBoost's own JSON and the manifest beside them; files appear whole."""
        save_model(folder, _MANIFEST, self.manifest, {"mean": self.mean, "scale": self.scale})


def load_kernel_model(folder: Path) -> KernelModel:
    """Read a saved model.

    Raises:
        CostModelFileError: it is missing, damaged, or made with other features.
    """
    manifest = load_manifest(folder, _MANIFEST, Manifest, schema_version=SCHEMA_VERSION)
    check_features(
        folder, (manifest.features_version, manifest.feature_names), (FEATURES_VERSION, FEATURE_NAMES)
    )
    return KernelModel(
        mean=load_booster(folder, "mean", num_features=len(FEATURE_NAMES), digests=manifest.digests),
        scale=load_booster(
            folder,
            "scale",
            num_features=len(FEATURE_NAMES) + 1 + len(_NOVELTIES),
            digests=manifest.digests,
        ),
        manifest=manifest,
    )


def train_kernel_model(
    dataset: Dataset,
    *,
    seed: int = 0,
    coverage: float = 0.9,
    target: TargetKind = "roofline_ratio",
    columns: Sequence[int] | None = None,
    calibrated: bool = True,
    num_threads: int | None = None,
) -> KernelModel:
    """Return a model trained on the samples; equal samples and seed give equal models.

    Args:
        dataset: at least `MIN_SAMPLES` samples.
        seed: seed of folds and trees.
        coverage: share of intervals meant to hold the truth.
        target: what the trees learn; `log_latency` is there for the ablation.
        columns: features that count, the others are blanked; all if None. For the ablation.
        calibrated: whether intervals are learnt, which takes most of the time; they have no width if not.
        num_threads: threads of the training, on which the result does not depend; one for each core that is
            idle if None.

    Raises:
        CostModelError: there are too few samples.
    """
    if len(dataset.samples) < MIN_SAMPLES:
        raise CostModelError(
            f"the records hold {len(dataset.samples)} usable keys, a model needs at least {MIN_SAMPLES}; "
            "gather more with `tessel records collect` or by tuning models"
        )
    features = feature_matrix(dataset.queries)
    training_range = range_of(features)
    if columns is not None:
        blank = np.setdiff1d(np.arange(features.shape[1]), np.asarray(columns))
        features[:, blank] = 0
    labels = np.log(dataset.latencies_us) - _base(roofline_vector(dataset.queries), target)
    threads = num_threads or num_idle_cores()
    held_out = _out_of_fold(
        dataset, features, labels, seed=seed, num_threads=threads, rounds=_QUICK_ROUNDS if calibrated else 1
    )
    scale = _train(_SCALE_PARAMETERS, _SCALE_ROUNDS, held_out.features, held_out.log_errors, seed, threads)
    base = _base(roofline_vector(dataset.queries), target)
    quantiles, widening = ((0.0, 0.0),) * len(_NOVELTIES), 0.0
    if calibrated:
        bases = np.tile(base, len(_NOVELTIES))
        quantiles = _conformal_quantiles(
            dataset, held_out, bases, coverage=coverage, seed=seed, num_threads=threads
        )
        widening = _calibrated_widening(
            features,
            labels,
            base,
            extent_groups(dataset),
            scale,
            quantiles,
            coverage=coverage,
            seed=seed,
            num_threads=threads,
        )
    return KernelModel(
        mean=_train(_MEAN_PARAMETERS, _MEAN_ROUNDS, features, labels, seed, threads),
        scale=scale,
        manifest=Manifest(
            features_version=FEATURES_VERSION,
            feature_names=FEATURE_NAMES,
            target=target,
            coverage=coverage,
            conformal_quantiles=quantiles,
            training_range=training_range,
            widening=widening,
            known_shapes=frozenset(map(_short_hash, shape_groups(dataset))),
            known_combinations=frozenset(map(_short_hash, combination_groups(dataset))),
            num_samples=len(dataset.samples),
            records_digest=digest_of(number for sample in dataset.samples for number in sample.record_ids),
            last_record_id=max(max(sample.record_ids) for sample in dataset.samples),
            backends=tuple(sorted({query.backend for query in dataset.queries})),
            versions=(("numpy", np.__version__), ("xgboost", xgboost.__version__)),
            seed=seed,
        ),
    )


class _OutOfFold(NamedTuple):
    """What models that had not seen a sample made of it; rows for all samples, once for each novelty.

    Attributes:
        features: float32, shape (num_novelties × num_samples, num_features + 1 + num_novelties).
        corrections: what the trees said, shape (num_novelties × num_samples,).
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


def _base(bounds_us: np.ndarray, target: TargetKind) -> np.ndarray:
    return np.log(bounds_us) if target == "roofline_ratio" else np.zeros_like(bounds_us)


def _train(
    parameters: dict[str, Any],  # XGBoost's own mixture of numbers and names
    rounds: int,
    features: np.ndarray,
    labels: np.ndarray,
    seed: int,
    num_threads: int,
) -> Any:  # xgboost.Booster
    return train_forest(parameters, rounds, features, labels, seed=seed, num_threads=num_threads)


def _out_of_fold(
    dataset: Dataset,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    num_threads: int,
    rounds: int,
) -> _OutOfFold:
    """Return predictions of each sample by models that saw neither it nor its like, for each novelty."""
    rng = np.random.default_rng(seed)
    rows = []
    for novelty, groups_of in enumerate(_NOVELTIES):
        folds = split_folds(groups_of(dataset), num_folds=_NUM_FOLDS, rng=rng)
        corrections = np.zeros(len(labels))
        for fold in range(_NUM_FOLDS):
            held_out = folds == fold
            if not held_out.any():
                continue
            # Where all samples are of one group, what saw them has to do.
            rest = ~held_out if not held_out.all() else held_out
            # Fewer, larger steps: errors only calibrate the width, and training stays within its time.
            model = _train(
                {**_MEAN_PARAMETERS, "eta": _QUICK_ETA},
                rounds,
                features[rest],
                labels[rest],
                seed,
                num_threads,
            )
            corrections[held_out] = model.inplace_predict(features[held_out])
        of_rows = np.full(len(labels), novelty)
        rows.append((_scale_features(features, corrections, of_rows), corrections, of_rows))
    stacked, corrections, novelties = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    errors = np.abs(corrections - np.tile(labels, len(_NOVELTIES)))
    return _OutOfFold(stacked, corrections, errors, novelties)


def _scale_features(features: np.ndarray, corrections: np.ndarray, novelty: np.ndarray) -> np.ndarray:
    """Return what the second forest sees: the features, the first one's answer, and the novelty."""
    one_hot = np.eye(len(_NOVELTIES), dtype=np.float32)[novelty]
    return np.concatenate([features, corrections[:, None].astype(np.float32), one_hot], axis=1)


def _conformal_quantiles(
    dataset: Dataset,
    held_out: _OutOfFold,
    bases: np.ndarray,
    *,
    coverage: float,
    seed: int,
    num_threads: int,
) -> tuple[tuple[float, float], ...]:
    """Return the factors that make a share `coverage` of out-of-fold errors fall within predicted widths."""
    rng = np.random.default_rng(seed + 1)
    folds = np.tile(split_folds(shape_groups(dataset), num_folds=3, rng=rng), len(_NOVELTIES))
    scores = np.zeros(len(folds))
    for fold in range(3):
        tested = folds == fold
        if not tested.any():
            continue
        rest = ~tested if not tested.all() else tested
        model = _train(
            _SCALE_PARAMETERS,
            _SCALE_ROUNDS,
            held_out.features[rest],
            held_out.log_errors[rest],
            seed,
            num_threads,
        )
        scores[tested] = held_out.errors[tested] / np.exp(model.inplace_predict(held_out.features[tested]))
    is_long = held_out.corrections + bases >= np.log(_LONG_US)
    extents = np.tile(np.unique(extent_groups(dataset), return_inverse=True)[1], len(_NOVELTIES))
    quantiles = []
    for novelty in range(len(_NOVELTIES)):
        of_novelty = held_out.novelty == novelty
        pair = []
        for long in (False, True):
            chosen = of_novelty & (is_long == long)
            chosen = chosen if chosen.sum() >= _FEW_SCORES else of_novelty
            pair.append(_group_quantile(scores[chosen], extents[chosen], coverage))
        quantiles.append((pair[0], pair[1]))
    return tuple(quantiles)


def _centres_and_widths(
    forests: tuple[Any, Any],  # xgboost.Booster: mean and scale
    quantiles: tuple[tuple[float, float], ...],
    features: np.ndarray,
    base: np.ndarray,
    novelty: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted logarithms of latencies, and half the widths of their intervals within the range."""
    mean, scale = forests
    correction = mean.inplace_predict(features).astype(np.float64)
    centre = correction + base
    is_long = (centre >= np.log(_LONG_US)).astype(np.int64)
    log_scale = scale.inplace_predict(_scale_features(features, correction, novelty)).astype(np.float64)
    factor = np.asarray(quantiles)[novelty, is_long]
    return centre, np.minimum(factor * np.exp(np.minimum(log_scale, MAX_WIDTH)), MAX_WIDTH)


def _calibrated_widening(
    features: np.ndarray,
    labels: np.ndarray,
    base: np.ndarray,
    extents: Sequence[str],
    scale: Any,  # xgboost.Booster
    quantiles: tuple[tuple[float, float], ...],
    *,
    coverage: float,
    seed: int,
    num_threads: int,
) -> float:
    """Return what half-widths must grow by with each doubling of distance, as held-out extremes say.

    Models without the largest or smallest programs are asked for these. What their errors exceed the interval
    by that a new shape has anyway, over the distance, is a score; a share `coverage` of scores stays within.
    """
    scores, groups = [], []
    for part in extreme_parts(features, _HELD_OUT_SHARE):
        if part.all() or not part.any():
            continue
        rest = ~part
        distance = range_of(features[rest]).distance(features[part])
        parameters = {**_MEAN_PARAMETERS, "eta": _QUICK_ETA}
        mean = _train(parameters, _QUICK_ROUNDS, features[rest], labels[rest], seed, num_threads)
        new_shape = np.ones(int(part.sum()), dtype=np.int64)
        centre, width = _centres_and_widths((mean, scale), quantiles, features[part], base[part], new_shape)
        errors = np.abs(centre - (labels + base)[part])
        is_far = distance > _LEAST_DISTANCE
        scores.append(np.maximum(errors - width, 0)[is_far] / distance[is_far])
        groups.append(np.asarray(extents)[part][is_far])
    found = np.concatenate(scores) if scores else np.zeros(0)
    if len(found) < _FEW_SCORES:
        return ASSUMED_WIDENING
    widening = _group_quantile(found, np.concatenate(groups), coverage)
    return float(np.clip(widening, LEAST_WIDENING, MAX_WIDTH))


def _group_quantile(scores: np.ndarray, groups: np.ndarray, coverage: float) -> float:
    """Return the score that a share `coverage` of scores stays within, all groups counting alike.

    What a new network draws are groups, not rows: many rows of one group are hardly more than one.
    """
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(scores)
    share = np.cumsum(1 / counts[inverse[order]]) / len(counts)
    # As with rows, one more group that scored infinitely high stands for the one to come.
    level = coverage * (1 + 1 / len(counts))
    return float(scores[order][min(int(np.searchsorted(share, level)), len(scores) - 1)])


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
