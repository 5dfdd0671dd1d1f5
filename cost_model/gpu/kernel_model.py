"""Latencies of kernels on GPUs, with intervals that are wider on devices that were never measured.

latency = overhead of a call + bound · exp(correction). On a device that was trained on, the mean of several
forests of different seeds gives the correction: by which features of a few devices trees split is chance, and
one forest errs with it. On a device that was not, a blind forest has a share in it, which sees no feature of
the device alone and stands for the median of forests of single devices: what the own features of a few known
devices say of an unknown one is a guess. The share is the best one when each known device is held out in
turn. The overhead is the host's, and measured for each family: on an unknown device it is the least of all
known ones, since hosts get faster.

Half the width of an interval is, for each known device, what new extents were off by, and of products also
what tables of one device differ by that were measured apart; on an unknown one, what known devices were off
by that were held out, the same for all families that memory bounds. A kernel outside of the extents trained
on adds a part, as independent errors add: of the extents that it is outside of, each with its own error for
a doubling, the one that asks for most. Checked in tests/cost_model/gpu/test_kernel_model.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.errors import CostModelError
from cost_model.forests.model_files import ModelManifest, load_booster, load_manifest, save_model
from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.features import (
    FEATURES_VERSION,
    NUM_DEVICE_FEATURES,
    bound_us,
    feature_matrix,
    feature_names,
)
from cost_model.gpu.kernels import Family, GpuKernel

MANIFEST = "gpu_kernels.json"
SCHEMA_VERSION = 5

NUM_FORESTS = 4
"""Of a family, of different seeds. With known devices held out in turn, the mean absolute logarithmic error
on their linear layers was 0.276 with four and 0.286 with one, less on each of them; on new extents of known
devices 0.069 and 0.073."""

LEAST_BOUND_US = 1.0
"""Added to the bound, so that the smallest kernels' corrections stay within reason."""

QUANTITIES = ("batch", "rows", "inner", "columns", "volume")
"""Extents of a kernel, and their product."""

Array = npt.NDArray[np.float64]


class GpuQuery(NamedTuple):
    """A kernel on a device."""

    kernel: GpuKernel
    device: GpuDevice


class GpuPrediction(msgspec.Struct, frozen=True):
    """A predicted latency.

    Attributes:
        latency_us: microseconds of one execution, the call included.
        low_us, high_us: interval meant to hold the truth with the model's coverage.
        is_known_device: whether the device was trained on.
        out_of_range: how many doublings the kernel is larger or smaller than those trained on; 0 within.
    """

    latency_us: float
    low_us: float
    high_us: float
    is_known_device: bool
    out_of_range: float


class FamilyCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a family beside its forest.

    Attributes:
        overheads_us: microseconds of a call by device.
        least, most: quantities of kernels trained on, as `quantities_of` returns them.
        known_widths: half the width of an interval by known device, a logarithm.
        unknown_width: the same on a device that is not among them.
        widening: the part of half a width for the first doubling out of range, by quantity.
        growth: power of the distance that this part grows with: 1, or less where errors level off.
        blind_share: what the forest without the device's features counts on an unknown device.
        new_device_error: mean absolute logarithm of predicted over measured on the devices trained on, each
            held out in turn; 0 where there is but one.
        num_samples: kernels trained on.
    """

    overheads_us: dict[str, float]
    least: tuple[float, ...]
    most: tuple[float, ...]
    known_widths: dict[str, float]
    unknown_width: float
    widening: tuple[float, ...]
    growth: float
    blind_share: float
    new_device_error: float
    num_samples: int

    def __post_init__(self) -> None:
        widths = (*self.known_widths.values(), self.unknown_width, *self.widening)
        is_whole = len(self.least) == len(self.most) == len(self.widening) == len(QUANTITIES)
        is_ordered = is_whole and all(low <= high for low, high in zip(self.least, self.most, strict=True))
        if not is_ordered or not all(0 <= width < 100 for width in widths):
            raise ValueError("a family's calibration is out of range")
        if not self.overheads_us or self.overheads_us.keys() != self.known_widths.keys():
            raise ValueError("a family's calibration is not of the devices that it names")
        if not (0 <= self.blind_share <= 1 and 0 < self.growth <= 1):
            raise ValueError("a family's calibration is out of range")

    def overhead_us(self, device: GpuDevice) -> float:
        """Return microseconds of a call."""
        return self.overheads_us.get(device.name, min(self.overheads_us.values()))

    def half_width(self, query: GpuQuery, outside: Array) -> float:
        """Return half the width of an interval, a logarithm, of a kernel so far out of range, by quantity."""
        width = self.known_widths.get(query.device.name, self.unknown_width)
        return math.hypot(width, float((np.array(self.widening) * outside**self.growth).max()))

    def doublings(self, kernels: Sequence[GpuKernel]) -> Array:
        """Return how far kernels are outside of those trained on, shape (kernels, quantities)."""
        return doublings_outside(quantities_of(kernels), np.array(self.least), np.array(self.most))


class GpuManifest(ModelManifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved model says of itself; see `ModelManifest`."""

    families: dict[Family, FamilyCalibration]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class GpuKernelModel:
    """Forests for each family.

    Attributes:
        forests: `xgboost.Booster`s by family, whose mean counts.
        blind_forests: one without the features of the device.
    """

    forests: Mapping[Family, Sequence[Any]]
    blind_forests: Mapping[Family, Any]
    manifest: GpuManifest

    def predict(self, queries: Sequence[GpuQuery]) -> tuple[GpuPrediction, ...]:
        """Return a prediction for each query.

        Raises:
            CostModelError: a kernel is of a family that the model was not trained on.
        """
        found: list[GpuPrediction | None] = [None] * len(queries)
        for family in {query.kernel.family for query in queries}:
            if family not in self.forests:
                raise CostModelError(
                    f"the model was not trained on {family} kernels; train it on records that hold some"
                )
            chosen = [index for index, query in enumerate(queries) if query.kernel.family == family]
            predictions = self._predict_family(family, [queries[index] for index in chosen])
            for index, prediction in zip(chosen, predictions, strict=True):
                found[index] = prediction
        return tuple(prediction for prediction in found if prediction is not None)

    def _predict_family(self, family: Family, queries: Sequence[GpuQuery]) -> list[GpuPrediction]:
        calibration = self.manifest.families[family]
        bounds = bounds_of(queries)
        overheads = np.array([calibration.overhead_us(query.device) for query in queries])
        features = feature_matrix([query.kernel for query in queries], [query.device for query in queries])
        known = np.array([query.device.name in calibration.overheads_us for query in queries])
        corrections = mean_answer(self.forests[family], features)
        blind = self.blind_forests[family].inplace_predict(without_device(features)).astype(np.float64)
        corrections += np.where(known, 0.0, calibration.blind_share) * (blind - corrections)
        latencies = overheads + bounds * np.exp(corrections)
        outside = calibration.doublings([query.kernel for query in queries])
        factors = np.exp(
            [calibration.half_width(query, far) for query, far in zip(queries, outside, strict=True)]
        )
        farthest = outside.max(axis=1)
        return [
            GpuPrediction(
                float(latency), float(latency / factor), float(latency * factor), bool(is_known), float(far)
            )
            for latency, factor, is_known, far in zip(latencies, factors, known, farthest, strict=True)
        ]

    def save(self, folder: Path) -> None:
        """Write the model; see `save_model`."""
        forests = {
            _file_name(family, number): forest
            for family, several in self.forests.items()
            for number, forest in enumerate(several)
        }
        forests |= {_blind_file_name(family): forest for family, forest in self.blind_forests.items()}
        save_model(folder, MANIFEST, self.manifest, forests)


def load_gpu_model(folder: Path) -> GpuKernelModel:
    """Read what `GpuKernelModel.save` wrote.

    Raises:
        CostModelFileError: the folder holds no such model, or one that was changed.
    """
    manifest = load_manifest(
        folder,
        MANIFEST,
        GpuManifest,
        schema_version=SCHEMA_VERSION,
        features=(FEATURES_VERSION, all_feature_names()),
    )

    def load(name: str, num_features: int) -> Any:  # xgboost.Booster
        return load_booster(folder, name, num_features=num_features, digests=manifest.digests)

    forests, blind_forests = {}, {}
    for family in manifest.families:
        width = len(feature_names(family))
        forests[family] = tuple(load(_file_name(family, number), width) for number in range(NUM_FORESTS))
        blind_forests[family] = load(_blind_file_name(family), width - NUM_DEVICE_FEATURES)
    return GpuKernelModel(forests, blind_forests, manifest)


def mean_answer(forests: Sequence[Any], features: np.ndarray) -> Array:
    """Return the mean of what forests say of each row of the features."""
    found: Array = np.mean([forest.inplace_predict(features) for forest in forests], axis=0, dtype=np.float64)
    return found


def bounds_of(queries: Sequence[GpuQuery]) -> Array:
    """Return what the forests' answers are factors of: microseconds, one for each query."""
    return np.array([bound_us(query.kernel, query.device) + LEAST_BOUND_US for query in queries])


def quantities_of(kernels: Sequence[GpuKernel]) -> Array:
    """Return logarithms to base 2 of what may be larger than ever seen, shape (kernels, quantities).

    They are the kernel's own: a bound in microseconds is within the range of some slower device.
    """
    extents = np.log2(np.array([kernel.extents for kernel in kernels], dtype=np.float64).reshape(-1, 4))
    return np.concatenate([extents, extents.sum(axis=1, keepdims=True)], axis=1)


def doublings_outside(quantities: Array, least: Array, most: Array) -> Array:
    """Return how many doublings each quantity of each kernel is outside of a range; 0 within."""
    outside: Array = np.maximum(np.maximum(least - quantities, quantities - most), 0.0)
    return outside


def all_feature_names() -> tuple[str, ...]:
    """Return the names of all families' columns, by which a saved model is known to fit."""
    return tuple(f"{family}: {name}" for family in Family for name in feature_names(family))


def without_device(features: np.ndarray) -> np.ndarray:
    """Return the features that a blind forest sees, shape (kernels, names - `NUM_DEVICE_FEATURES`)."""
    return np.ascontiguousarray(features[:, :-NUM_DEVICE_FEATURES])


def _blind_file_name(family: Family) -> str:
    return f"{family.replace(' ', '_')}_blind"


def _file_name(family: Family, number: int) -> str:
    return f"{family.replace(' ', '_')}_{number}"
