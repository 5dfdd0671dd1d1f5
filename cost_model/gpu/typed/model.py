"""Latencies of kernels by data type on GPUs that were measured, or not, with intervals.

latency = analytic latency · exp(correction). On a device and cell (data type or operation) that were measured
the parameters of the first are its own, and a forest that sees the device gives the correction; on any other
they are what others let expect, and a forest corrects that is blind to the device. Half the width of an
interval is, of a known cell, what new extents were off by; of another, what devices were off by whose
generation was held out. A kernel beyond the extents trained on adds a part for each doubling. Checked in
tests/cost_model/gpu/typed/test_typed_model.py.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.errors import CostModelError
from cost_model.forests.model_files import ModelManifest, load_booster, load_manifest, save_model
from cost_model.gpu.kernel_model import GpuPrediction
from cost_model.gpu.typed.analytic import PARAMETERS, Fitted, analytic_us, expected
from cost_model.gpu.typed.features import FEATURES_VERSION, FeatureTable, feature_table
from cost_model.gpu.typed.kernels import MEASURED_AS, Column, Kernels, TypedKernel, kind_of
from cost_model.gpu.typed.sheets import GPU_SHEETS, GpuSheet, find_sheet
from records.files.aiconfigurator import Kind

MANIFEST = "typed_kernels.json"
SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
"""The model that comes with the project."""

TRAINING = "tessel cost-model train --aiconfigurator DIR"

_MOST_WIDTH = 3.0

Array = npt.NDArray[np.float64]


class CellFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one cell on one device.

    Attributes:
        parameters: logarithms, as `cost_model.gpu.typed.analytic.PARAMETERS` names them.
        width: half the width of an interval, a logarithm.
        num_samples: kernels measured.
    """

    parameters: tuple[float, ...]
    width: float
    num_samples: int

    def __post_init__(self) -> None:
        if not all(abs(value) < 50 for value in self.parameters) or not 0 <= self.width < 100:
            raise ValueError("a cell's parameters are out of range")


class KindCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a kind beside its forests.

    Attributes:
        cells: by device and cell.
        unknown_widths: half the width of an interval on a device that was not measured, by cell.
        least, most: logarithms to base 2 of extents trained on, by name.
        widening: what half a width grows by with each doubling out of range.
    """

    cells: dict[str, dict[str, CellFit]]
    unknown_widths: dict[str, float]
    least: dict[str, float]
    most: dict[str, float]
    widening: float

    def __post_init__(self) -> None:
        widths = (*self.unknown_widths.values(), self.widening)
        if not widths or not all(0 <= width < 100 for width in widths):
            raise ValueError("a kind's widths are out of range")
        if not self.cells or self.least.keys() != self.most.keys() or self.cells.keys() - GPU_SHEETS.keys():
            raise ValueError("a kind's calibration is not of devices and extents that are known here")

    def expected(self, cell: str, sheet: GpuSheet) -> Array:
        """Return the parameters' logarithms that a cell has on a GPU as far as those measured tell."""
        fitted = [
            Fitted(GPU_SHEETS[name], other, np.array(fit.parameters))
            for name, by_cell in self.cells.items()
            for other, fit in by_cell.items()
        ]
        return expected(fitted, cell, sheet)

    def doublings(self, kernels: Kernels) -> Array:
        """Return how far each kernel's extents are outside of those trained on, at most of any extent."""
        outside = np.zeros(len(kernels))
        for name, low in self.least.items():
            values = np.log2(np.maximum(kernels.numbers[name].astype(np.float64), 1))
            outside = np.maximum(outside, np.maximum(low - values, values - self.most[name]))
        return outside


class TypedManifest(ModelManifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a saved model says of itself; see `ModelManifest`."""

    kinds: dict[Kind, KindCalibration]
    sources: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for kind, calibration in self.kinds.items():
            for by_cell in calibration.cells.values():
                if any(len(fit.parameters) != len(PARAMETERS[kind]) for fit in by_cell.values()):
                    raise ValueError("a cell has not the parameters of its kind")


class Forests(NamedTuple):
    """Two `xgboost.Booster`s of a kind: one that sees the device, and one that does not."""

    known: Any
    blind: Any


class Predictions(NamedTuple):
    """Predictions of kernels; arrays have an element for each.

    Attributes:
        latency_us, low_us, high_us: microseconds, and the interval's ends.
        is_known: whether device and cell were measured.
        out_of_range: doublings beyond the extents trained on.
    """

    latency_us: Array
    low_us: Array
    high_us: Array
    is_known: Column
    out_of_range: Array


@dataclass(frozen=True)
class TypedModel:
    """Forests of each kind and what they rest on."""

    forests: Mapping[Kind, Forests]
    manifest: TypedManifest

    def predict(self, kernels: Kernels, sheet: GpuSheet) -> Predictions:
        """Return predictions for kernels of one kind on one GPU.

        Raises:
            CostModelError: the model was not trained on the kind, or the GPU lacks a data type.
        """
        if kernels.kind not in self.forests:
            raise CostModelError(
                f"the model was not trained on {kernels.kind} kernels; train it on tables of some"
            )
        calibration, cells = self.manifest.kinds[kernels.kind], cells_of(kernels)
        centre, width = np.zeros(len(kernels)), np.zeros(len(kernels))
        is_known = np.zeros(len(kernels), bool)
        for cell in dict.fromkeys(cells):
            chosen = np.flatnonzero(cells == cell)
            fit = calibration.cells.get(sheet.device.name, {}).get(cell)
            centre[chosen] = self._log_us(kernels.some(chosen), sheet, cell, fit)
            widths = calibration.unknown_widths
            width[chosen] = fit.width if fit else widths.get(cell, max(widths.values()))
            is_known[chosen] = fit is not None
        outside = calibration.doublings(kernels)
        width = np.minimum(np.hypot(width, calibration.widening * outside), _MOST_WIDTH)
        return Predictions(np.exp(centre), np.exp(centre - width), np.exp(centre + width), is_known, outside)

    def _log_us(self, kernels: Kernels, sheet: GpuSheet, cell: str, fit: CellFit | None) -> Array:
        forests = self.forests[kernels.kind]
        calibration = self.manifest.kinds[kernels.kind]
        if fit is not None:
            base = analytic_us(kernels, sheet, np.array(fit.parameters))
            return corrected(base, forests.known, feature_table(kernels, sheet, base), sees_device=True)
        base = analytic_us(kernels, sheet, calibration.expected(cell, sheet))
        return corrected(base, forests.blind, feature_table(kernels, sheet, base), sees_device=False)

    def price(self, kernels: Sequence[TypedKernel], gpu: str) -> tuple[GpuPrediction, ...]:
        """Return the predicted latency of each kernel, in order.

        Raises:
            CostModelError: the GPU is not known or lacks a data type, or a kernel has an impossible extent.
        """
        sheet = find_sheet(gpu)
        found: dict[int, GpuPrediction] = {}
        for kind in dict.fromkeys(map(kind_of, kernels)):
            chosen = [index for index, kernel in enumerate(kernels) if kind_of(kernel) == kind]
            answer = self.predict(Kernels.of_one_kind([kernels[index] for index in chosen]), sheet)
            rows = zip(*(column.tolist() for column in answer), strict=True)
            found |= {index: GpuPrediction(*row) for index, row in zip(chosen, rows, strict=True)}
        return tuple(found[index] for index in range(len(kernels)))

    def save(self, folder: Path) -> None:
        """Write the model, its forests compressed; see `save_model`."""
        forests = {
            f"{kind}_{name}": forest
            for kind, both in self.forests.items()
            for name, forest in both._asdict().items()
        }
        save_model(folder, MANIFEST, self.manifest, forests, compressed=True)


@functools.lru_cache(maxsize=2**16)
def gpu_kernel_us(kernel: TypedKernel, gpu: str) -> GpuPrediction:
    """Return the predicted latency of one kernel on a GPU, by the model that comes with the project.

    Equal kernels are predicted once.

    Args:
        kernel: such as `Product(4096, 4096, 4096, "fp8")`.
        gpu: any of its names, such as `h100` or `NVIDIA B200`.

    Raises:
        CostModelError: the GPU is not known or lacks the data type, or the kernel has an impossible extent.
    """
    return shipped_model().price([kernel], gpu)[0]


@functools.cache
def shipped_model() -> TypedModel:
    """Return the model that comes with the project, read once."""
    # XGBoost's objects complain where they outlive its module at the interpreter's end.
    atexit.register(shipped_model.cache_clear)
    return load_typed_model(SHIPPED)


def load_typed_model(folder: Path) -> TypedModel:
    """Read what `TypedModel.save` wrote.

    Raises:
        CostModelFileError: the folder holds no such model, or one that was changed.
    """
    manifest = load_manifest(
        folder,
        MANIFEST,
        TypedManifest,
        schema_version=SCHEMA_VERSION,
        features=(FEATURES_VERSION, all_feature_names()),
        made_by=TRAINING,
    )

    def load(kind: Kind, name: str, num_features: int) -> Any:  # xgboost.Booster
        return load_booster(
            folder, f"{kind}_{name}", num_features=num_features, digests=manifest.digests, made_by=TRAINING
        )

    forests = {}
    for kind in manifest.kinds:
        table = _example_table(kind)
        count = len(table.names)
        forests[kind] = Forests(load(kind, "known", count), load(kind, "blind", count - table.num_device))
    return TypedModel(forests, manifest)


def corrected(base: Array, forest: Any, features: FeatureTable, *, sees_device: bool) -> Array:
    """Return logarithms of latencies: those of the base, corrected by a forest."""
    values = features.values if sees_device else without_device(features)
    found: Array = np.log(base) + forest.inplace_predict(values).astype(np.float64)
    return found


def without_device(features: FeatureTable) -> npt.NDArray[np.float32]:
    """Return the features that a blind forest sees."""
    return np.ascontiguousarray(features.values[:, : -features.num_device])


def cells_of(kernels: Kernels) -> Column:
    """Return the cell of each kernel: its operation where it sends, its data type elsewhere."""
    is_sent = kernels.kind in ("collective", "exchange")
    found = kernels.texts["operation" if is_sent else "dtype"]
    return np.array([MEASURED_AS.get(name, name) for name in found], dtype=object)


def all_feature_names() -> tuple[str, ...]:
    """Return the names of all kinds' columns, by which a saved model is known to fit."""
    return tuple(f"{kind}: {name}" for kind in _NUMBERS for name in _example_table(kind).names)


_NUMBERS: Mapping[Kind, tuple[str, ...]] = {
    "product": ("rows", "columns", "inner"),
    "attention": ("batch", "length", "past", "heads", "kv_heads", "head_size", "window"),
    "experts": (
        *("tokens", "hidden", "inner", "top_k", "experts"),
        *("tensor_parallel", "expert_parallel", "skew"),
    ),
    "collective": ("devices", "elements"),
    "exchange": ("nodes", "hidden", "tokens", "top_k", "experts", "multiprocessors"),
}


@functools.cache
def _example_table(kind: Kind) -> FeatureTable:
    texts = {name: np.array(["bfloat16"], dtype=object) for name in Kernels.TEXTS[kind]}
    numbers = {name: np.array([2]) for name in _NUMBERS[kind]}
    kernels = Kernels(kind=kind, numbers=numbers, texts=texts)
    return feature_table(kernels, next(iter(GPU_SHEETS.values())), np.ones(1))
