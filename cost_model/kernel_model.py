"""Absolute latency of a (sub-graph, backend, target), with a calibrated prediction interval.

Gradient-boosted trees learn log(latency / roofline bound): an analytic bound extrapolates to unseen shapes,
and the trees correct it. A second, smaller forest predicts the size of the first one's error; its scale is
calibrated on out-of-fold residuals (normalised conformal prediction), so that a share `coverage` of intervals
contains the true latency. Each width has the same total weight, because a new network brings new widths
rather than new kernels. The error grows with a program's distance from the training set, so residuals are
computed, and intervals calibrated, separately for each *novelty*: a known combination of operators around a
known shape, a known combination around a new shape, and a new combination. With few records a Gaussian
process counts too (`gaussian_process`). Checked in tests/cost_model/test_kernel_model.py.

Source: Chen and Guestrin, "XGBoost", KDD 2016; Lei et al., "Distribution-free predictive inference for
regression", JASA 2018, section 5.2 (locally weighted conformal intervals); Vovk et al., "Algorithmic learning
in a random world", 2005, section 4.5 (calibration by classes); Dunn, Wasserman and Ramdas,
"Distribution-free prediction sets for two-layer hierarchical models", JASA 2023 (calibration over groups).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

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
from cost_model.forests.model_files import ModelManifest, load_booster, load_manifest, save_model
from cost_model.gaussian_process import GaussianProcess, ProcessTable, solved
from cost_model.intervals import MAX_WIDTH, NOVELTIES, Widths, centres_and_widths, num_scale_features
from cost_model.training_range import TrainingRange
from records import Workload
from records.backend_names import current_name

SCHEMA_VERSION = 5

_OLDER_VERSIONS = (3, 4)
"""Without a process, which they were calibrated without; 3 without sharpness too, which counts as 1."""

TargetKind = Literal["roofline_ratio", "log_latency"]

_MANIFEST = "manifest.json"

_MAX_LOGARITHM = 100.0
"""No latency is beyond e¹⁰⁰ microseconds."""


class Prediction(msgspec.Struct, frozen=True):
    """A predicted latency and the interval that holds it with the model's coverage, in microseconds.

    `out_of_range` names the quantities that lie far outside of what the model was trained on, the farthest
    first; the interval is wider for it.
    """

    latency_us: float
    low_us: float
    high_us: float
    out_of_range: tuple[str, ...] = ()


class Manifest(ModelManifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved model needs to be trusted again.

    Attributes:
        features_version: version of the features it was trained on.
        feature_names: their names in order.
        target: what the trees learn.
        coverage: share of intervals meant to hold the truth.
        conformal_quantiles: factor from predicted scale to half-width, calibrated; of short and of long
            kernels for each novelty.
        sharpness: the power that the predicted scale counts with.
        known_shapes: names of the anchors with their shapes that it has seen, hashed.
        known_combinations: names of the combinations of operators that it has seen, hashed.
        training_range: of quantities that a query may be far outside of.
        widening: what an interval's half-width grows by with each doubling of that distance, in logarithms.
        process: a Gaussian process over the kernels trained on, where they are few; None otherwise.
        neighbours: of version 4, whose models of few kernels had a table here; they are to be trained again.
        num_samples: keys trained on.
        records_digest: names the set of record ids it rests on.
        last_record_id: newest record it rests on.
        backends: backends it has seen; others are refused.
        versions: versions of what trained it.
        seed: seed of its training.
        digests: of the forests' files by name; empty until the model is saved.
    """

    target: TargetKind
    conformal_quantiles: tuple[tuple[float, float], ...]
    sharpness: float = 1.0
    known_shapes: frozenset[str]
    known_combinations: frozenset[str]
    training_range: TrainingRange
    widening: float
    process: ProcessTable | None = None
    neighbours: None = None
    backends: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        quantiles = np.asarray([*map(list, self.conformal_quantiles)], dtype=np.float64)
        if quantiles.shape != (len(NOVELTIES), 2) or not ((quantiles >= 0) & (quantiles < 1e9)).all():
            raise ValueError("its intervals have no widths that were ever calibrated")
        if not (0 < self.coverage < 1 and 0 <= self.widening <= MAX_WIDTH and 0 <= self.sharpness <= 1):
            raise ValueError("its coverage or sharpness is no share, or its widening no width")


@dataclass(frozen=True, slots=True)
class KernelModel:
    """A trained model; `train_kernel_model` and `load_kernel_model` make it."""

    mean: Any  # xgboost.Booster: the distribution ships no types
    scale: Any  # xgboost.Booster
    manifest: Manifest
    process: GaussianProcess | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "process", solved(self.manifest.process))

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
        if short_hash(shape_key(workload)) not in self.manifest.known_combinations:
            return 2
        return int(short_hash(anchor_key(workload)) not in self.manifest.known_shapes)

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
        centre, width = centres_and_widths(
            (self.mean, self.scale),
            self.process,
            Widths(self.manifest.conformal_quantiles, self.manifest.sharpness),
            features,
            base_of(bounds_us, self.manifest.target),
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
    manifest = load_manifest(
        folder,
        _MANIFEST,
        Manifest,
        schema_version=SCHEMA_VERSION,
        older=_OLDER_VERSIONS,
        features=(FEATURES_VERSION, FEATURE_NAMES),
    )
    backends = tuple(sorted(map(current_name, manifest.backends)))
    manifest = msgspec.structs.replace(manifest, backends=backends)
    return KernelModel(
        mean=load_booster(folder, "mean", num_features=len(FEATURE_NAMES), digests=manifest.digests),
        scale=load_booster(
            folder,
            "scale",
            num_features=num_scale_features(has_process=manifest.process is not None),
            digests=manifest.digests,
        ),
        manifest=manifest,
    )


def base_of(bounds_us: np.ndarray, target: TargetKind) -> np.ndarray:
    """Return what is added to the first forest's answer for the logarithm of a latency."""
    return np.log(bounds_us) if target == "roofline_ratio" else np.zeros_like(bounds_us)


def short_hash(text: str) -> str:
    """Name a text by 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
