"""Train a model of GPU kernels, and learn its intervals from devices and sizes that are held out.

Checked in tests/cost_model/gpu/test_kernel_model.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from cost_model.errors import CostModelError
from cost_model.forests.boosting import num_idle_cores, pseudo_huber, train_forest
from cost_model.forests.model_files import provenance_of
from cost_model.gpu.consistency import PRODUCTS, devices_in_another_state, width_between_tables
from cost_model.gpu.devices import find_gpu
from cost_model.gpu.features import FEATURES_VERSION, feature_matrix
from cost_model.gpu.kernel_model import (
    NUM_FORESTS,
    Array,
    FamilyCalibration,
    GpuKernelModel,
    GpuManifest,
    GpuQuery,
    all_feature_names,
    bounds_of,
    doublings_outside,
    quantities_of,
    without_device,
)
from cost_model.gpu.kernels import HALVES, Family, kernel_of
from records import Record, Status

MIN_SAMPLES = 50

_OTHER_TYPES = HALVES | {"float8_e4m3fn", "float8_e5m2", "uint4", "int4"}
"""Kernels in these run on tensor cores, and tell nothing of those in float32."""

_PARAMETERS = {
    **pseudo_huber(0.5),
    "eta": 0.2,
    "max_depth": 8,
    "min_child_weight": 5.0,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "lambda": 1.0,
    "tree_method": "hist",
}
_ROUNDS = 120
"""Several such forests, averaged, were as good on new extents as one of 400 rounds at a lower rate."""
_QUICK_ROUNDS, _QUICK_SAMPLES = 100, 12_000
"""For forests that calibrate widths, or of which the median counts."""

_OVERHEAD_QUANTILE = 0.01
_OVERHEAD_SHARE = 0.9
"""The fastest calls still do some work."""
_LEAST_WORK_SHARE = 0.02
_NUM_FOLDS = 4
_BLIND_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares that are tried of the forest which does not see the device."""
_LEAST_WIDENING = 0.02
"""A distance without any widening would claim what no training set can show."""
_EXTREME_SHARE = 0.25
"""Share of the kernels with the largest extents that are held out to learn how errors grow with distance."""
_LEAST_DISTANCE = 0.25
"""Doublings; an error over a smaller distance says more about chance than about the distance."""
_FEW_ERRORS = 20
"""Below this a device's quantile would be a guess; those of all devices stand for it."""

_ELEMENTWISE_GROWTH = 0.5
"""Power of the distance that element-wise kernels' errors grow with: all that is large takes what its traffic
takes. With it, outer halves of the training kernels, held out by rows, columns and volume, are covered in 96,
95 and 91 %; with 1 in 98, 96 and 98 %, with 0 in 95, 94 and 73 %. In other families 1 is nearest to 90 %."""

_ROW_WISE = (Family.LAYER_NORM, Family.SOFTMAX)
"""Families of which a thread block computes a row. With its own widening, 75 % of the outer half of softmaxes
by columns are covered, with the wider of both 92 % (rows 96 and 97, volume 88 and 91 %; layer norms hardly
change)."""

_MEMORY_BOUND = (Family.ELEMENTWISE, Family.LAYER_NORM, Family.SOFTMAX)
"""Families whose kernels take what their traffic takes, not their arithmetic."""


class GpuSample(NamedTuple):
    """A measured kernel: the query, its median latency in microseconds, and the record's id."""

    query: GpuQuery
    latency_us: float
    record_id: int


@dataclass(frozen=True, kw_only=True)
class _Training:
    """Kernels of one family; arrays have a row for each.

    Attributes:
        features: float32, shape (kernels, names).
        latencies: microseconds.
        overheads: microseconds of a call, by device.
        bounds: microseconds.
        quantities: shape (kernels, quantities), see `quantities_of`.
    """

    features: np.ndarray
    latencies: Array
    overheads: Mapping[str, float]
    bounds: Array
    devices: np.ndarray
    quantities: Array
    seed: int
    num_threads: int

    @cached_property
    def labels(self) -> Array:
        """Logarithms of what kernels take beyond a call, over their bounds."""
        work = self.latencies - np.array([self.overheads[name] for name in self.devices])
        found: Array = np.log(np.maximum(work, _LEAST_WORK_SHARE * self.latencies) / self.bounds)
        return found

    def forests(self) -> tuple[Any, ...]:  # of xgboost.Booster
        """Return forests of all samples, of one seed each."""
        return tuple(
            self._trained(self.features, self.labels, quick=False, seed=self.seed + number)
            for number in range(NUM_FORESTS)
        )

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
        """Return one forest that stands for the median of those of single devices."""
        median = np.median([*self.blind_answers.values()], axis=0)
        return self._trained(without_device(self.features), median)

    def held_out_errors(self, held_out: np.ndarray) -> Array:
        """Return absolute errors, logarithms of latencies, of a forest without the chosen samples."""
        overheads = np.array([self.overheads[name] for name in self.devices[held_out]])
        return self._errors(held_out, self._held_out(held_out), overheads)

    def errors_on_new_devices(self) -> tuple[float, dict[str, Array]]:
        """Return the best share of the blind forest, and with it the absolute errors on each device.

        Each device is predicted by forests that did not see it, and with the least overhead of the others;
        devices count alike. Errors are logarithms of latencies, overheads and all, as intervals are.
        """
        if len(self.device_names) < 2:
            return 0.0, {}
        by_share: dict[float, dict[str, Array]] = {share: {} for share in _BLIND_SHARES}
        for name in self.device_names:
            held_out = self.devices == name
            others = [answer[held_out] for other, answer in self.blind_answers.items() if other != name]
            own, blind = self._held_out(held_out), np.median(others, axis=0)
            overhead = min(us for other, us in self.overheads.items() if other != name)
            for share, errors in by_share.items():
                errors[name] = self._errors(held_out, (1 - share) * own + share * blind, overhead)
        best = min(
            _BLIND_SHARES, key=lambda share: np.mean([errors.mean() for errors in by_share[share].values()])
        )
        return best, by_share[best]

    def _held_out(self, held_out: np.ndarray) -> Array:
        rest = self._some(~held_out)
        forest = self._trained(self.features[rest], self.labels[rest])
        found: Array = forest.inplace_predict(self.features[held_out])
        return found

    def _errors(self, chosen: np.ndarray, corrections: Array, overheads: Array | float) -> Array:
        predicted = overheads + self.bounds[chosen] * np.exp(corrections)
        errors: Array = np.abs(np.log(predicted / self.latencies[chosen]))
        return errors

    def _some(self, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of at most `_QUICK_SAMPLES` of the chosen samples."""
        if chosen.sum() <= _QUICK_SAMPLES:
            return chosen
        rng = np.random.default_rng(self.seed)
        mask = np.zeros_like(chosen)
        mask[rng.choice(np.flatnonzero(chosen), _QUICK_SAMPLES, replace=False)] = True
        return mask

    def _trained(
        self, features: np.ndarray, labels: np.ndarray, *, quick: bool = True, seed: int | None = None
    ) -> Any:  # xgboost.Booster
        return train_forest(
            _PARAMETERS,
            _QUICK_ROUNDS if quick else _ROUNDS,
            features,
            labels,
            seed=self.seed if seed is None else seed,
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
        if any(tensor.dtype in _OTHER_TYPES for tensor in record.workload.values):
            continue
        samples.append(GpuSample(query, measurement.latency_us, record.record_id))
    return tuple(samples)


def train_gpu_model(
    samples: Sequence[GpuSample], *, seed: int = 0, coverage: float = 0.9, num_threads: int | None = None
) -> GpuKernelModel:
    """Return a model of the families with `MIN_SAMPLES` samples; equal input gives equal models.

    Args:
        samples: measured kernels; of one kernel on one device the median counts. Products of a device that
            `devices_in_another_state` names are left out, with a warning.
        coverage: share of intervals meant to hold the truth.
        num_threads: threads of the training; one for each idle core if None.

    Raises:
        CostModelError: no family has enough samples.
    """
    num_threads = num_threads or num_idle_cores()
    forests, blind_forests, families, errors = {}, {}, {}, {}
    measured = [(sample.query, sample.latency_us) for sample in samples]
    doubtful = devices_in_another_state(measured)
    believed = [each for each in measured if (each[0].kernel.family, each[0].device.name) not in doubtful]
    between_tables = width_between_tables(believed, coverage)
    for family in Family:
        of_family = [
            sample
            for sample in samples
            if sample.query.kernel.family == family and (family, sample.query.device.name) not in doubtful
        ]
        if len(of_family) < MIN_SAMPLES:
            continue
        forests[family], blind_forests[family], families[family], errors[family] = _train_family(
            of_family,
            coverage,
            between_tables=between_tables if family in PRODUCTS else 0.0,
            seed=seed,
            num_threads=num_threads,
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
        families=_with_shared_width(_with_shared_widening(families), errors, coverage),
        **provenance_of(sample.record_id for sample in samples),
    )
    return GpuKernelModel(forests, blind_forests, manifest)


def _train_family(
    samples: Sequence[GpuSample], coverage: float, *, between_tables: float, seed: int, num_threads: int
) -> tuple[tuple[Any, ...], Any, FamilyCalibration, dict[str, Array]]:
    """Return forests, blind forest and calibration of a family, and its errors on devices held out."""
    queries, latencies = _medians(samples)
    names = np.array([query.device.name for query in queries])
    overheads = {
        str(name): _OVERHEAD_SHARE * float(np.quantile(latencies[names == name], _OVERHEAD_QUANTILE))
        for name in np.unique(names)
    }
    kernels = [query.kernel for query in queries]
    training = _Training(
        features=feature_matrix(kernels, [query.device for query in queries]),
        latencies=latencies,
        overheads=overheads,
        bounds=bounds_of(queries),
        devices=names,
        quantities=quantities_of(kernels),
        seed=seed,
        num_threads=num_threads,
    )
    share, on_new_devices = training.errors_on_new_devices()
    known_widths = _known_widths(training, coverage)
    widest = max(known_widths.values())
    calibration = FamilyCalibration(
        overheads_us=overheads,
        least=tuple(map(float, training.quantities.min(axis=0))),
        most=tuple(map(float, training.quantities.max(axis=0))),
        known_widths={name: math.hypot(width, between_tables) for name, width in known_widths.items()},
        unknown_width=mixture_quantile([*on_new_devices.values()], coverage)
        if on_new_devices
        else 2 * widest,
        widening=_widening(training, known_widths, coverage, _growth_of(samples[0].query.kernel.family)),
        growth=_growth_of(samples[0].query.kernel.family),
        blind_share=share,
        new_device_error=float(np.mean([each.mean() for each in on_new_devices.values()] or [0.0])),
        num_samples=len(queries),
    )
    return training.forests(), training.blind_forest(), calibration, on_new_devices


def _with_shared_widening(families: Mapping[Family, FamilyCalibration]) -> dict[Family, FamilyCalibration]:
    """Return the calibrations with the wider of the row-wise families' widening, by quantity.

    Their kernels are alike: where a longer row takes another kernel in one of them, it may in the other, of
    which the training data may end before.
    """
    row_wise = [families[family].widening for family in _ROW_WISE if family in families]
    shared = tuple(map(max, zip(*row_wise, strict=True)))
    return {
        family: msgspec.structs.replace(found, widening=shared) if family in _ROW_WISE else found
        for family, found in families.items()
    }


def _with_shared_width(
    families: Mapping[Family, FamilyCalibration],
    errors: Mapping[Family, Mapping[str, Array]],
    coverage: float,
) -> dict[Family, FamilyCalibration]:
    """Return the calibrations with one width on unknown devices for all families that memory bounds.

    They err there for the same reasons, the call's overhead and the bandwidth that is reached; and a family's
    known devices are few draws.
    """
    parts = [part for family in _MEMORY_BOUND for part in errors.get(family, {}).values()]
    if not parts:
        return {**families}
    shared = mixture_quantile(parts, coverage)
    return {
        family: msgspec.structs.replace(found, unknown_width=shared)
        if family in _MEMORY_BOUND and errors[family]
        else found
        for family, found in families.items()
    }


def _medians(samples: Sequence[GpuSample]) -> tuple[list[GpuQuery], Array]:
    by_query: dict[GpuQuery, list[float]] = {}
    for sample in samples:
        by_query.setdefault(sample.query, []).append(sample.latency_us)
    return list(by_query), np.array([float(np.median(values)) for values in by_query.values()])


def _known_widths(training: _Training, coverage: float) -> dict[str, float]:
    """Return half-widths on known devices, as kernels of new extents ask for them."""
    rng = np.random.default_rng(training.seed)
    # A new kernel is new on every device: all measurements of its extents are held out together.
    numbers = np.unique(training.quantities, axis=0, return_inverse=True)[1].ravel()
    folds = rng.integers(0, _NUM_FOLDS, numbers.max() + 1)[numbers]
    errors = np.zeros(len(numbers))
    for fold in np.unique(folds):
        held_out = folds == fold
        if not held_out.all():
            errors[held_out] = training.held_out_errors(held_out)
    by_device = {name: errors[training.devices == name] for name in training.device_names}
    of_all = mixture_quantile([*by_device.values()], coverage)
    return {
        name: float(np.quantile(own, coverage)) if len(own) >= _FEW_ERRORS else of_all
        for name, own in by_device.items()
    }


def mixture_quantile(parts: Sequence[Array], coverage: float) -> float:
    """Return what a share of errors stays within, if each part is as likely, however many errors it has."""
    errors = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
    order = np.argsort(errors)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(errors[order][min(int(np.searchsorted(share, coverage)), len(errors) - 1)])


def _growth_of(family: Family) -> float:
    return _ELEMENTWISE_GROWTH if family == Family.ELEMENTWISE else 1.0


def _widening(
    training: _Training, known_widths: Mapping[str, float], coverage: float, growth: float
) -> tuple[float, ...]:
    """Return what half-widths grow by with the first doubling out of range, as an independent error would.

    Of each quantity the kernels that have most of it are held out, on all devices. What their errors exceed
    a known device's width by, over the distance, is a score; a share `coverage` of a quantity's scores stays
    within. What no kernel can be far outside of, as it hardly varies, is as the worst of the others.
    """
    found: list[float | None] = []
    for values in training.quantities.T:
        held_out = values > np.quantile(values, 1 - _EXTREME_SHARE)
        scores = _scores_beyond(training, held_out, known_widths, growth) if held_out.any() else np.zeros(0)
        is_enough = len(scores) >= _FEW_ERRORS
        found.append(max(float(np.quantile(scores, coverage)), _LEAST_WIDENING) if is_enough else None)
    worst = max((each for each in found if each is not None), default=_LEAST_WIDENING)
    return tuple(worst if each is None else each for each in found)


def _scores_beyond(
    training: _Training, held_out: np.ndarray, known_widths: Mapping[str, float], growth: float
) -> Array:
    """Return what the first doubling out of the range of the others adds to the errors of those held out."""
    rest = training.quantities[~held_out]
    outside = doublings_outside(training.quantities[held_out], rest.min(axis=0), rest.max(axis=0))
    distance = outside.max(axis=1)
    widths = np.array([known_widths[name] for name in training.devices[held_out]])
    excess = np.sqrt(np.maximum(training.held_out_errors(held_out) ** 2 - widths**2, 0.0))
    is_far = distance > _LEAST_DISTANCE
    scores: Array = excess[is_far] / distance[is_far] ** growth
    return scores
