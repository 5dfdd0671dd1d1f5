"""Latency of a pipeline stage (forward, backward or a half of it) from the latencies of its parts.

A stage is measured as one program of several parts, each a sub-graph run by one backend; its record names
them. The plain estimate is their sum plus a call each. What it ignores (whether inputs are in the cache,
allocation of intermediate tensors by the virtual machine) is learnt: a few small trees correct the logarithm
of measured over plain. The interval is conformal, from errors on stages of networks held out from training.
Parts may be measured or predicted; where they are predicted, their own uncertainty is added. It is saved in
the kernel model's folder, with its own manifest. Checked in tests/cost_model/test_stage_model.py.

Source: reference point is the plain sum of kernels as nn-Meter (Zhang et al., MobiSys 2021, section 5.3) uses
it; the correction and its features are our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cost_model.dataset import device_key, device_speeds, split_folds
from cost_model.errors import CostModelError
from cost_model.forests.boosting import pseudo_huber, train_forest
from cost_model.forests.model_files import (
    ModelManifest,
    load_booster,
    load_manifest,
    provenance_of,
    save_model,
)
from cost_model.intervals import MAX_WIDTH
from cost_model.kernel_model import Prediction
from cost_model.roofline import DeviceSpeed
from records import Record, Status, Workload
from records.backend_names import current_name, kept_name

PARTS_PARAMETER = "parts"

MIN_STAGES = 30
"""Below this the correction would be a guess; the plain sum then stands as it is."""

_PARAMETERS = {
    **pseudo_huber(0.2),
    "eta": 0.06,
    "max_depth": 3,
    "min_child_weight": 3.0,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "tree_method": "hist",
}
_ROUNDS = 120
_NUM_FOLDS = 5
_SHORT_US = 10.0
_BACKENDS = ("tvm", "blas", "torch")

MANIFEST, _BOOSTER = "stage_manifest.json", "stage"

SCHEMA_VERSION = 2
FEATURES_VERSION = 1
FEATURE_NAMES = (
    "log_plain_us",
    "log_runs",
    "call_share",
    *(f"share_{name}" for name in _BACKENDS),
    "share_short",
    "largest_share",
    "log_weight_bytes",
    "log_input_bytes",
    "log_output_bytes",
    "log_intermediate_bytes",
    "traffic_share",
    "work_share",
    "num_backends",
)
"""What the trees see, in order; raise the version with every change."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A sub-graph that a stage runs so many times: its workload, its backend with settings."""

    workload_fingerprint: str
    backend: str
    settings: str
    occurrences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageQuery:
    """A stage to be priced.

    Attributes:
        workload: the stage, of role `stage`.
        part_latencies_us: parts by backend: (backend, microseconds of one run, runs).
        speed: what the device can do at best.
    """

    workload: Workload
    part_latencies_us: tuple[tuple[str, float, int], ...]
    speed: DeviceSpeed

    @property
    def plain_us(self) -> float:
        """The sum of the parts, and a call for each."""
        return sum((us + self.speed.call_us) * runs for _, us, runs in self.part_latencies_us)


@dataclass(frozen=True, slots=True)
class StageSample:
    """A stage with its measured latency, and the record of it."""

    query: StageQuery
    latency_us: float
    group: str
    record_id: int = 0


class StageManifest(ModelManifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved correction needs to be trusted again.

    Attributes:
        features_version: version of the features it was trained on.
        feature_names: their names in order.
        coverage: share of intervals meant to hold the truth.
        half_width: of the interval, in logarithms.
        num_samples: stages trained on.
        records_digest: names the set of record ids it rests on.
        last_record_id: newest record it rests on.
        versions: versions of what trained it.
        seed: seed of its training.
        digests: of the forest's file; empty until it is saved.
    """

    half_width: float
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not (0 < self.coverage < 1 and 0 <= self.half_width < MAX_WIDTH):
            raise ValueError("its interval has no width that was ever calibrated")


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How good corrections are on stages whose operators were held out, and how good the plain sum is.

    Attributes:
        num_samples: stages that count.
        median_ape: median absolute percentage error, as a share.
        mape: mean absolute percentage error, as a share.
        coverage_90: share of measured latencies inside their interval.
        plain_median_ape: median error of the plain sum.
        plain_mape: mean error of the plain sum.
    """

    num_samples: int
    median_ape: float
    mape: float
    coverage_90: float
    plain_median_ape: float
    plain_mape: float


@dataclass(frozen=True, slots=True)
class StageModel:
    """A trained correction; `train_stage_model` makes it."""

    booster: Any  # xgboost.Booster: the distribution ships no types
    manifest: StageManifest

    @property
    def half_width(self) -> float:
        """Half of the interval's width, in logarithms."""
        return self.manifest.half_width

    @property
    def num_samples(self) -> int:
        """Stages trained on."""
        return self.manifest.num_samples

    def predict(self, queries: Sequence[StageQuery]) -> tuple[Prediction, ...]:
        """Return the latency of each stage whose parts' latencies are certain, in order."""
        if not queries:
            return ()
        corrections = self.booster.inplace_predict(stage_features(queries)).astype(np.float64)
        plain = np.array([query.plain_us for query in queries])
        centre = plain * np.exp(corrections)
        factor = math.exp(self.half_width)
        return tuple(Prediction(float(us), float(us) / factor, float(us) * factor) for us in centre)

    def save(self, folder: Path) -> None:
        """Write the trees in XGBoost's own JSON and the manifest beside them; files appear whole."""
        save_model(folder, MANIFEST, self.manifest, {_BOOSTER: self.booster})


def load_stage_model(folder: Path) -> StageModel:
    """Read a saved correction.

    Raises:
        CostModelFileError: it is missing, damaged, or made with other features.
    """
    manifest = load_manifest(
        folder,
        MANIFEST,
        StageManifest,
        schema_version=SCHEMA_VERSION,
        features=(FEATURES_VERSION, FEATURE_NAMES),
    )
    booster = load_booster(folder, _BOOSTER, num_features=len(FEATURE_NAMES), digests=manifest.digests)
    return StageModel(booster, manifest)


def parts_parameter(parts: Iterable[Part]) -> tuple[str, str]:
    """Return the workload parameter that names a stage's parts, sorted."""
    kept = sorted(replace(part, backend=kept_name(part.backend)) for part in parts)
    lines = (
        f"{part.workload_fingerprint} {part.occurrences} {part.backend} {part.settings}".strip()
        for part in kept
    )
    return PARTS_PARAMETER, ";".join(lines)


def parts_of(workload: Workload) -> tuple[Part, ...]:
    """Return the parts that a stage's workload names.

    Raises:
        CostModelError: it names none, or in another form.
    """
    text = dict(workload.parameters).get(PARTS_PARAMETER, "")
    parts = []
    for line in text.split(";") if text else ():
        fields = line.split(" ", 3)
        if len(fields) < 3 or not fields[1].isdigit():
            raise CostModelError(
                f"stage {workload.fingerprint} names a part {line!r}, which is no fingerprint, number and "
                "backend; measure the stage again"
            )
        settings = fields[3] if len(fields) > 3 else ""
        parts.append(Part(fields[0], current_name(fields[2]), settings, int(fields[1])))
    if not parts:
        raise CostModelError(
            f"stage {workload.fingerprint} does not say which parts it has; measure it again"
        )
    return tuple(parts)


def load_stages(found: Iterable[Record]) -> tuple[StageSample, ...]:
    """Return every measured stage all of whose parts are measured on the same device.

    Stages of equal operators, such as the same layer by other backends, are of one group.

    Raises:
        CostModelError: no device has its probes measured.
    """
    kernels: dict[tuple[str, str, str, str], float] = {}
    kernel_records: dict[str, list[Record]] = {}
    stages: list[Record] = []
    probes: dict[str, list[Record]] = {}
    for record in found:
        measurement = record.measurement
        if measurement.status is not Status.OK:
            continue
        device = device_key(measurement.environment)
        if record.workload.role == "device":
            probes.setdefault(device, []).append(record)
        elif record.workload.role == "kernel":
            key = device, measurement.workload_fingerprint, measurement.backend, measurement.settings
            kernels[key] = measurement.latency_us
            kernel_records.setdefault(device, []).append(record)
        elif record.workload.role == "stage" and PARTS_PARAMETER in dict(record.workload.parameters):
            stages.append(record)
    speeds = device_speeds(probes, kernel_records)
    samples = (_sample(record, kernels, speeds) for record in stages)
    return tuple(sample for sample in samples if sample is not None)


def train_stage_model(
    samples: Sequence[StageSample], *, seed: int = 0, coverage: float = 0.9, num_threads: int = 1
) -> StageModel:
    """Return a correction learnt from measured stages; equal samples and seed give equal models.

    Raises:
        CostModelError: there are too few stages.
    """
    if len(samples) < MIN_STAGES:
        raise CostModelError(
            f"the records hold {len(samples)} measured stages with their parts, a correction needs at least "
            f"{MIN_STAGES}; measure more with `tessel stages` or `tessel records collect --stages`"
        )
    corrections = held_out_corrections(samples, seed=seed, num_threads=num_threads)
    errors = np.sort(np.abs(corrections - _labels(samples)))
    level = min(1.0, math.ceil((len(errors) + 1) * coverage) / len(errors))
    return StageModel(
        booster=_train(samples, seed=seed, num_threads=num_threads),
        manifest=StageManifest(
            features_version=FEATURES_VERSION,
            feature_names=FEATURE_NAMES,
            coverage=coverage,
            half_width=float(np.quantile(errors, level, method="higher")),
            num_samples=len(samples),
            seed=seed,
            **provenance_of(sample.record_id for sample in samples),
        ),
    )


def evaluate_stages(
    samples: Sequence[StageSample], *, min_latency_us: float = 100.0, seed: int = 0
) -> StageFigures:
    """Return figures over the stages of at least `min_latency_us`, of operators held out in turn.

    Raises:
        CostModelError: there are too few stages, or none long enough to count.
    """
    half_width = train_stage_model(samples, seed=seed).half_width
    truth = np.array([sample.latency_us for sample in samples])
    counted = truth >= min_latency_us
    if not counted.any():
        raise CostModelError(
            "no stage is long enough to count; gather more records or lower --min-latency-us"
        )
    plain = np.array([sample.query.plain_us for sample in samples])
    corrections = held_out_corrections(samples, seed=seed)
    errors, plain_errors = (
        np.abs(guess[counted] / truth[counted] - 1) for guess in (plain * np.exp(corrections), plain)
    )
    inside = np.abs(corrections - np.log(truth / plain)) <= half_width
    return StageFigures(
        num_samples=int(counted.sum()),
        median_ape=float(np.median(errors)),
        mape=float(errors.mean()),
        coverage_90=float(inside[counted].mean()),
        plain_median_ape=float(np.median(plain_errors)),
        plain_mape=float(plain_errors.mean()),
    )


def held_out_corrections(
    samples: Sequence[StageSample], *, seed: int = 0, num_threads: int = 1
) -> np.ndarray:
    """Return the logarithmic correction of each stage by trees that saw no stage of its operators."""
    rng = np.random.default_rng(seed)
    folds = split_folds([sample.group for sample in samples], num_folds=_NUM_FOLDS, rng=rng)
    corrections = np.zeros(len(samples))
    for fold in range(_NUM_FOLDS):
        inside = np.flatnonzero(folds == fold)
        rest = [sample for sample, own in zip(samples, folds, strict=True) if own != fold]
        if len(inside) and rest:
            booster = _train(rest, seed=seed, num_threads=num_threads)
            queries = [samples[int(index)].query for index in inside]
            corrections[inside] = booster.inplace_predict(stage_features(queries))
    return corrections


def stage_features(queries: Sequence[StageQuery]) -> np.ndarray:
    """Return features of every stage, float32, shape (num_queries, num_features)."""
    return np.array([_features(query) for query in queries], dtype=np.float32)


def _features(query: StageQuery) -> list[float]:
    parts = query.part_latencies_us
    plain_us = query.plain_us
    runs = sum(count for _, _, count in parts)
    workload = query.workload
    results = set(workload.results)
    intermediate = sum(
        tensor.num_bytes
        for number, tensor in enumerate(workload.values)
        if number >= len(workload.inputs) and number not in results
    )

    def share(*, backend: str | None = None, below_us: float = math.inf) -> float:
        chosen = ((us, n) for name, us, n in parts if backend in (None, name) and us < below_us)
        return sum(us * n for us, n in chosen) / plain_us

    return [
        math.log2(plain_us),
        math.log2(runs + 1),
        runs * query.speed.call_us / plain_us,
        *(share(backend=name) for name in _BACKENDS),
        share(below_us=_SHORT_US),
        max((us for _, us, _ in parts), default=0.0) / plain_us,
        math.log2(workload.constant_bytes + 1),
        math.log2(workload.input_bytes + 1),
        math.log2(workload.output_bytes + 1),
        math.log2(intermediate + 1),
        (workload.constant_bytes + workload.input_bytes + intermediate)
        / query.speed.bandwidth_gb_s
        / 1e3
        / plain_us,
        workload.flops / query.speed.peak_gflops / 1e3 / plain_us,
        float(len({name for name, _, _ in parts})),
    ]


def _labels(samples: Sequence[StageSample]) -> np.ndarray:
    return np.array([math.log(sample.latency_us / sample.query.plain_us) for sample in samples])


def _train(samples: Sequence[StageSample], *, seed: int, num_threads: int) -> Any:  # xgboost.Booster
    features = stage_features([sample.query for sample in samples])
    return train_forest(_PARAMETERS, _ROUNDS, features, _labels(samples), seed=seed, num_threads=num_threads)


def _sample(
    record: Record,
    kernels: Mapping[tuple[str, str, str, str], float],
    speeds: Mapping[str, DeviceSpeed],
) -> StageSample | None:
    device = device_key(record.measurement.environment)
    parts = parts_of(record.workload)
    found = [(p, kernels.get((device, p.workload_fingerprint, p.backend, p.settings))) for p in parts]
    if device not in speeds or any(us is None for _, us in found):
        return None
    query = StageQuery(
        workload=record.workload,
        part_latencies_us=tuple((p.backend, us, p.occurrences) for p, us in found if us is not None),
        speed=speeds[device],
    )
    operators = ";".join(operator.name for operator in record.workload.operators)
    return StageSample(query, record.measurement.latency_us, operators, record.record_id)
