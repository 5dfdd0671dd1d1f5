"""Absolute latency of a (sub-graph, backend, target), with an interval that says how sure it is.

Gradient-boosted trees learn log(latency / roofline bound): an analytic bound carries over to shapes never
seen, and the trees correct it. A second, smaller forest learns how large the first one's error is likely to
be; its scale is calibrated on out-of-fold residuals (normalised split-conformal prediction), so that a share
`coverage` of intervals holds the truth where new programs are like those measured. Checked in
tests/cost_model/test_kernel_model.py.

Source: Chen and Guestrin, "XGBoost", KDD 2016; Lei et al., "Distribution-free predictive inference for
regression", JASA 2018, section 5.2 (locally weighted conformal intervals).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import xgboost

from cost_model.dataset import MIN_SAMPLES, Dataset, combination_groups, shape_groups, split_folds
from cost_model.errors import CostModelError
from cost_model.features import FEATURE_NAMES, FEATURES_VERSION, Query, feature_matrix, roofline_vector

SCHEMA_VERSION = 1

TargetKind = Literal["roofline_ratio", "log_latency"]

_MEAN_PARAMETERS = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.3,
    "eta": 0.06,
    "max_depth": 7,
    "min_child_weight": 2.0,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 128,
}
_MEAN_ROUNDS = 320
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
_NUM_FOLDS = 5
_LEAST_ERROR = 0.005
"""Residuals below half a percent are measurement noise; flooring them keeps their logarithm tame."""


class Prediction(msgspec.Struct, frozen=True):
    """A predicted latency and the interval that holds it with the model's coverage, in microseconds."""

    latency_us: float
    low_us: float
    high_us: float


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved model needs to be trusted again.

    Attributes:
        features_version: version of the features it was trained on.
        feature_names: their names in order.
        target: what the trees learn.
        coverage: share of intervals meant to hold the truth.
        conformal_quantile: factor from predicted scale to half-width, calibrated.
        num_samples: keys trained on.
        records_digest: names the set of record ids it rests on.
        last_record_id: newest record it rests on.
        backends: backends it has seen; others are refused.
        versions: versions of what trained it.
        seed: seed of its training.
    """

    features_version: int
    feature_names: tuple[str, ...]
    target: TargetKind
    coverage: float
    conformal_quantile: float
    num_samples: int
    records_digest: str
    last_record_id: int
    backends: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    seed: int
    schema_version: int = SCHEMA_VERSION


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
        latency, low, high = self.predict_arrays(queries)
        return tuple(Prediction(*map(float, values)) for values in zip(latency, low, high, strict=True))

    def predict_arrays(self, queries: Sequence[Query]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return latency, low and high end in microseconds, float64, each of shape (num_queries,).

        Raises:
            CostModelError: a backend was not among those trained on.
        """
        if not queries:
            empty = np.zeros(0)
            return empty, empty, empty
        unseen = sorted({query.backend for query in queries} - set(self.manifest.backends))
        if unseen:
            raise CostModelError(
                f"the cost model was trained without the backend {unseen[0]} (it knows "
                f"{', '.join(self.manifest.backends)}); measure some of its kernels and train again"
            )
        bounds = roofline_vector(queries)
        return self.predict_features(feature_matrix(queries), bounds)

    def predict_features(
        self, features: np.ndarray, bounds_us: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return latency, low and high end from features, for callers that keep them.

        Args:
            features: float32, shape (num_queries, num_features).
            bounds_us: float64, shape (num_queries,), the roofline bounds.
        """
        base = _base(bounds_us, self.manifest.target)
        centre = self.mean.inplace_predict(features).astype(np.float64) + base
        width = self.manifest.conformal_quantile * np.exp(self.scale.inplace_predict(features))
        return np.exp(centre), np.exp(centre - width), np.exp(centre + width)

    def save(self, folder: Path) -> None:
        """Write the forests in XGBoost's own JSON and the manifest beside them; files appear whole.

        The manifest is written last, so a folder with a manifest is a whole model.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        for name, booster in (("mean", self.mean), ("scale", self.scale)):
            _write_whole(folder / f"{name}.json", bytes(booster.save_raw("json")))
        text = msgspec.json.format(msgspec.json.encode(self.manifest, order="sorted"), indent=1)
        _write_whole(folder / "manifest.json", text)


def load_kernel_model(folder: Path) -> KernelModel:
    """Read a saved model.

    Raises:
        CostModelError: it is missing, unreadable, or made with other features.
    """
    manifest = _load_manifest(folder)
    if (manifest.features_version, manifest.feature_names) != (FEATURES_VERSION, FEATURE_NAMES):
        raise CostModelError(
            f"the model in {folder} has features of version {manifest.features_version}, this installation "
            f"makes version {FEATURES_VERSION}; train it again with `tessel cost-model train`"
        )
    boosters = []
    for name in ("mean", "scale"):
        booster = xgboost.Booster()
        try:
            booster.load_model(bytearray((folder / f"{name}.json").read_bytes()))
        except (OSError, ValueError, xgboost.core.XGBoostError) as error:
            raise CostModelError(
                f"{folder / name}.json cannot be read as a model ({_first_line(error)}); train it again with "
                "`tessel cost-model train`"
            ) from error
        boosters.append(booster)
    return KernelModel(boosters[0], boosters[1], manifest)


def train_kernel_model(
    dataset: Dataset,
    *,
    seed: int = 0,
    coverage: float = 0.9,
    target: TargetKind = "roofline_ratio",
    columns: Sequence[int] | None = None,
    num_threads: int | None = None,
) -> KernelModel:
    """Return a model trained on the samples; equal samples and seed give equal models.

    Args:
        dataset: at least `MIN_SAMPLES` samples.
        seed: seed of folds and trees.
        coverage: share of intervals meant to hold the truth.
        target: what the trees learn; `log_latency` is there for the ablation.
        columns: features that count, the others are blanked; all if None. For the ablation.
        num_threads: threads of the training; all cores if None.

    Raises:
        CostModelError: there are too few samples.
    """
    if len(dataset.samples) < MIN_SAMPLES:
        raise CostModelError(
            f"the records hold {len(dataset.samples)} usable keys, a model needs at least {MIN_SAMPLES}; "
            "gather more with `tessel records collect` or by tuning models"
        )
    features = feature_matrix(dataset.queries)
    if columns is not None:
        blank = np.setdiff1d(np.arange(features.shape[1]), np.asarray(columns))
        features[:, blank] = 0
    labels = np.log(dataset.latencies_us) - _base(roofline_vector(dataset.queries), target)
    threads = num_threads or os.cpu_count() or 1
    residuals = _out_of_fold_errors(dataset, features, labels, seed=seed, num_threads=threads)
    log_errors = np.log(np.maximum(residuals, _LEAST_ERROR))
    scale = _train(_SCALE_PARAMETERS, _SCALE_ROUNDS, features, log_errors, seed, threads)
    return KernelModel(
        mean=_train(_MEAN_PARAMETERS, _MEAN_ROUNDS, features, labels, seed, threads),
        scale=scale,
        manifest=Manifest(
            features_version=FEATURES_VERSION,
            feature_names=FEATURE_NAMES,
            target=target,
            coverage=coverage,
            conformal_quantile=_conformal_quantile(
                dataset, features, residuals, log_errors, coverage=coverage, seed=seed, num_threads=threads
            ),
            num_samples=len(dataset.samples),
            records_digest=_digest(dataset),
            last_record_id=max(max(sample.record_ids) for sample in dataset.samples),
            backends=tuple(sorted({query.backend for query in dataset.queries})),
            versions=(("numpy", np.__version__), ("xgboost", xgboost.__version__)),
            seed=seed,
        ),
    )


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
    settings = {**parameters, "seed": seed, "nthread": num_threads, "base_score": float(np.median(labels))}
    return xgboost.train(settings, xgboost.DMatrix(features, labels), num_boost_round=rounds)


def _out_of_fold_errors(
    dataset: Dataset, features: np.ndarray, labels: np.ndarray, *, seed: int, num_threads: int
) -> np.ndarray:
    """Return |error| of each sample under a model that saw neither its shape nor, half the time, its like.

    New programs are partly new shapes of known combinations and partly new combinations; folds by shape alone
    would promise too narrow intervals for the latter, so half the folds are drawn by each.
    """
    rng = np.random.default_rng(seed)
    by_shape = split_folds(shape_groups(dataset), num_folds=_NUM_FOLDS, rng=rng)
    by_combination = split_folds(combination_groups(dataset), num_folds=_NUM_FOLDS, rng=rng)
    pick = rng.random(len(labels)) < 0.5
    errors = np.zeros(len(labels))
    for folds, wanted in ((by_shape, ~pick), (by_combination, pick)):
        for fold in range(_NUM_FOLDS):
            held_out = folds == fold
            if not (held_out & wanted).any() or held_out.all():
                continue
            # Half the rounds: errors only calibrate the width, and training stays within its time.
            model = _train(
                {**_MEAN_PARAMETERS, "eta": 0.1},
                _MEAN_ROUNDS // 2,
                features[~held_out],
                labels[~held_out],
                seed,
                num_threads,
            )
            chosen = held_out & wanted
            errors[chosen] = np.abs(model.inplace_predict(features[chosen]) - labels[chosen])
    return errors


def _conformal_quantile(
    dataset: Dataset,
    features: np.ndarray,
    errors: np.ndarray,
    log_errors: np.ndarray,
    *,
    coverage: float,
    seed: int,
    num_threads: int,
) -> float:
    """Return the factor that makes a share `coverage` of out-of-fold errors fall within predicted widths."""
    folds = split_folds(shape_groups(dataset), num_folds=3, rng=np.random.default_rng(seed + 1))
    scores = np.zeros(len(errors))
    for fold in range(3):
        held_out = folds == fold
        if not held_out.any() or held_out.all():
            continue
        model = _train(
            _SCALE_PARAMETERS, _SCALE_ROUNDS, features[~held_out], log_errors[~held_out], seed, num_threads
        )
        scores[held_out] = errors[held_out] / np.exp(model.inplace_predict(features[held_out]))
    level = min(1.0, np.ceil((len(scores) + 1) * coverage) / len(scores))
    return float(np.quantile(scores, level, method="higher"))


def _digest(dataset: Dataset) -> str:
    text = ",".join(str(number) for sample in dataset.samples for number in sample.record_ids)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _load_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise CostModelError(
            f"{folder} holds no cost model ({error.strerror or error}); make one with "
            "`tessel cost-model train`"
        ) from error
    except msgspec.MsgspecError as error:
        raise CostModelError(
            f"{path} is not a cost model's manifest: {error}; make one with `tessel cost-model train`"
        ) from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise CostModelError(
            f"{path} has schema_version {manifest.schema_version}, this installation reads {SCHEMA_VERSION}; "
            "train the model again"
        )
    return manifest


def _write_whole(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
