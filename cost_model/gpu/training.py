"""Train a model of GPU kernels, and learn its intervals from devices and sizes that are held out.

Checked in tests/cost_model/gpu/test_kernel_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cost_model.errors import CostModelError
from cost_model.forests.boosting import num_idle_cores, pseudo_huber, train_forest
from cost_model.forests.model_files import provenance_of
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.features import FEATURES_VERSION, feature_matrix
from cost_model.gpu.kernel_model import (
    Array,
    FamilyCalibration,
    GpuKernelModel,
    GpuManifest,
    GpuQuery,
    all_feature_names,
    bounds_of,
    without_device,
)
from cost_model.gpu.kernels import Family, kernel_of
from records import Record, Status

MIN_SAMPLES = 50

_PARAMETERS = {
    **pseudo_huber(0.5),
    "eta": 0.08,
    "max_depth": 8,
    "min_child_weight": 5.0,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "lambda": 1.0,
    "tree_method": "hist",
}
_ROUNDS = 400
_QUICK_ROUNDS, _QUICK_ETA, _QUICK_SAMPLES = 100, 0.2, 12_000
"""For forests that calibrate widths, or are averaged."""

_OVERHEAD_QUANTILE = 0.01
_OVERHEAD_SHARE = 0.9
"""The fastest calls still do some work."""
_LEAST_WORK_SHARE = 0.02
_HELD_OUT_SHARE = 0.1
_BLIND_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares that are tried of the forest which does not see the device."""
_LEAST_WIDENING = 0.1


class GpuSample(NamedTuple):
    """A measured kernel: the query, its median latency in microseconds, and the record's id."""

    query: GpuQuery
    latency_us: float
    record_id: int


@dataclass(frozen=True)
class _Training:
    features: np.ndarray
    labels: Array
    bounds: Array
    devices: np.ndarray
    extents: np.ndarray
    seed: int
    num_threads: int

    def forest(self, chosen: np.ndarray, *, quick: bool) -> Any:  # xgboost.Booster
        """Return a forest of the chosen samples."""
        chosen = self._some(chosen) if quick else chosen
        return self._trained(self.features[chosen], self.labels[chosen], quick=quick)

    @property
    def device_names(self) -> list[str]:
        """The devices, in order."""
        return [str(name) for name in np.unique(self.devices)]

    @cached_property
    def blind_answers(self) -> dict[str, Array]:
        """What a forest of each single device, blind to its features, says of all samples: logarithms."""
        features = without_device(self.features)
        answers = {}
        for name in self.device_names:
            chosen = self._some(self.devices == name)
            answers[name] = self._trained(features[chosen], self.labels[chosen]).inplace_predict(features)
        return answers

    def blind_forest(self) -> Any:  # xgboost.Booster
        """Return one forest that stands for the mean of those of single devices."""
        mean = np.mean([*self.blind_answers.values()], axis=0)
        return self._trained(without_device(self.features), mean)

    def held_out_errors(self, held_out: np.ndarray) -> Array:
        """Return absolute errors, logarithms, of a forest that did not see the chosen samples."""
        found: Array = np.abs(self._held_out(held_out))
        return found

    def errors_on_new_devices(self) -> tuple[float, dict[str, Array]]:
        """Return the best share of the blind forest, and with it the absolute errors on each device.

        Each device is predicted by forests that did not see it; devices count alike.
        """
        if len(self.device_names) < 2:
            return 0.0, {}
        pairs = {}
        for name in self.device_names:
            held_out = self.devices == name
            others = [answer[held_out] for other, answer in self.blind_answers.items() if other != name]
            pairs[name] = self._held_out(held_out), np.mean(others, axis=0) - self.labels[held_out]
        by_share = {
            share: {name: np.abs((1 - share) * own + share * blind) for name, (own, blind) in pairs.items()}
            for share in _BLIND_SHARES
        }
        best = min(
            _BLIND_SHARES, key=lambda share: np.mean([errors.mean() for errors in by_share[share].values()])
        )
        return best, by_share[best]

    def _held_out(self, held_out: np.ndarray) -> Array:
        found: Array = self.forest(~held_out, quick=True).inplace_predict(self.features[held_out])
        errors: Array = found - self.labels[held_out]
        return errors

    def _some(self, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of at most `_QUICK_SAMPLES` of the chosen samples."""
        if chosen.sum() <= _QUICK_SAMPLES:
            return chosen
        rng = np.random.default_rng(self.seed)
        mask = np.zeros_like(chosen)
        mask[rng.choice(np.flatnonzero(chosen), _QUICK_SAMPLES, replace=False)] = True
        return mask

    def _trained(self, features: np.ndarray, labels: np.ndarray, *, quick: bool = True) -> Any:
        return train_forest(
            {**_PARAMETERS, "eta": _QUICK_ETA} if quick else _PARAMETERS,
            _QUICK_ROUNDS if quick else _ROUNDS,
            features,
            labels,
            seed=self.seed,
            num_threads=self.num_threads,
        )


def load_gpu_samples(found: Iterable[Record]) -> tuple[GpuSample, ...]:
    """Return the kernels measured on GPUs that the model can learn from; others are passed over."""
    samples = []
    for record in found:
        measurement = record.measurement
        if measurement.environment.device_kind != "cuda" or measurement.status is not Status.OK:
            continue
        try:
            query = GpuQuery(kernel_of(record.workload), find_gpu(measurement.environment.device_model))
        except CostModelError:
            continue
        samples.append(GpuSample(query, measurement.latency_us, record.record_id))
    return tuple(samples)


def train_gpu_model(
    samples: Sequence[GpuSample], *, seed: int = 0, coverage: float = 0.9, num_threads: int | None = None
) -> GpuKernelModel:
    """Return a model of the families with `MIN_SAMPLES` samples; equal input gives equal models.

    Args:
        samples: measured kernels; of one kernel on one device the median counts.
        seed: seed of trees and folds.
        coverage: share of intervals meant to hold the truth.
        num_threads: threads of the training; one for each idle core if None.

    Raises:
        CostModelError: no family has enough samples.
    """
    num_threads = num_threads or num_idle_cores()
    forests, blind_forests, families = {}, {}, {}
    for family in Family:
        of_family = [sample for sample in samples if sample.query.kernel.family == family]
        if len(of_family) < MIN_SAMPLES:
            continue
        forests[family], blind_forests[family], families[family] = _train_family(
            of_family, seed, coverage, num_threads
        )
    if not forests:
        raise CostModelError(
            f"the records hold {len(samples)} kernels measured on GPUs, a family needs {MIN_SAMPLES}; import "
            "measurements with `tessel records import`"
        )
    manifest = GpuManifest(
        features_version=FEATURES_VERSION,
        feature_names=all_feature_names(),
        coverage=coverage,
        num_samples=sum(family.num_samples for family in families.values()),
        seed=seed,
        families=families,
        **provenance_of(sample.record_id for sample in samples),
    )
    return GpuKernelModel(forests, blind_forests, manifest)


def _train_family(
    samples: Sequence[GpuSample], seed: int, coverage: float, num_threads: int
) -> tuple[Any, Any, FamilyCalibration]:
    queries, latencies = _medians(samples)
    names = np.array([query.device.name for query in queries])
    overheads = {
        str(name): _OVERHEAD_SHARE * float(np.quantile(latencies[names == name], _OVERHEAD_QUANTILE))
        for name in np.unique(names)
    }
    bounds = bounds_of(queries)
    work = latencies - np.array([overheads[name] for name in names])
    work = np.maximum(work, _LEAST_WORK_SHARE * latencies)
    training = _Training(
        features=feature_matrix([query.kernel for query in queries], [query.device for query in queries]),
        labels=np.log(work / bounds),
        bounds=bounds,
        devices=names,
        extents=np.unique([query.kernel.extents for query in queries], axis=0, return_inverse=True)[1],
        seed=seed,
        num_threads=num_threads,
    )
    share, on_new_devices = training.errors_on_new_devices()
    known_width, unknown_width, widening = _widths(training, on_new_devices, coverage)
    calibration = FamilyCalibration(
        overheads_us=overheads,
        bounds_us=(float(bounds.min()), float(bounds.max())),
        known_width=known_width,
        unknown_width=unknown_width,
        widening=widening,
        blind_share=share,
        new_device_error=float(np.mean([each.mean() for each in on_new_devices.values()] or [0.0])),
        num_samples=len(queries),
    )
    everything = np.ones(len(queries), dtype=bool)
    return training.forest(everything, quick=False), training.blind_forest(), calibration


def _medians(samples: Sequence[GpuSample]) -> tuple[list[GpuQuery], Array]:
    by_query: dict[GpuQuery, list[float]] = {}
    for sample in samples:
        by_query.setdefault(sample.query, []).append(sample.latency_us)
    return list(by_query), np.array([float(np.median(values)) for values in by_query.values()])


def _widths(
    training: _Training, on_new_devices: Mapping[str, Array], coverage: float
) -> tuple[float, float, float]:
    """Return half-widths on known and unknown devices, and the widening out of range."""
    rng = np.random.default_rng(training.seed)
    # A new kernel is new on every device: all measurements of its extents are held out together.
    is_held_out = rng.random(training.extents.max() + 1) < _HELD_OUT_SHARE
    known = float(np.quantile(training.held_out_errors(is_held_out[training.extents]), coverage))
    by_device = [float(np.quantile(errors, coverage)) for errors in on_new_devices.values()]
    # A device is one draw, however many kernels of it were measured.
    unknown = max(known, float(np.median(by_device))) if by_device else 2 * known
    largest = training.bounds >= np.quantile(training.bounds, 1 - _HELD_OUT_SHARE)
    if largest.all():
        return known, unknown, _LEAST_WIDENING
    distance = np.log2(training.bounds[largest] / training.bounds[~largest].max())
    far = distance > distance.mean()
    excess = np.maximum(training.held_out_errors(largest) - known, 0)
    widening = float(np.quantile((excess / np.maximum(distance, 1e-3))[far], coverage)) if far.any() else 0.0
    return known, unknown, max(widening, _LEAST_WIDENING)
