"""Train a model of kernels by data type, and learn its intervals from extents and generations held out.

Of each device and cell at most so many kernels are drawn that one table does not outweigh another. Checked in
tests/cost_model/gpu/typed/test_typed_model.py; `python -m benchmarks.typed_kernels` shows what it gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_model.errors import CostModelError
from cost_model.forests.boosting import num_idle_cores, train_forest, xgboost
from cost_model.gpu.training import mixture_quantile
from cost_model.gpu.typed.analytic import Fitted, analytic_us, expected, fit, start_of
from cost_model.gpu.typed.features import FEATURES_VERSION, FeatureTable, feature_table
from cost_model.gpu.typed.kernels import Column, Kernels, joined
from cost_model.gpu.typed.model import (
    CellFit,
    Forests,
    KindCalibration,
    TypedManifest,
    TypedModel,
    all_feature_names,
    cells_of,
    corrected,
    without_device,
)
from cost_model.gpu.typed.sheets import GpuSheet, find_sheet
from records.files.aiconfigurator import KernelTable, Kind, codes_of, equal_rows

MAX_CELL_SAMPLES = 2500
"""Kernels of one kind, device and cell that are trained on."""

MIN_CELL_SAMPLES = 30

_PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.12,
    "max_depth": 8,
    "min_child_weight": 5.0,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "lambda": 1.0,
    "tree_method": "hist",
    "max_bin": 128,
}
KNOWN_ROUNDS, _BLIND_ROUNDS, _QUICK_ROUNDS = 200, 60, 60
_BLIND_DEPTH = 5
_FITTED = 800
"""Kernels that a cell's parameters are fitted to."""
_NUM_FOLDS = 5
_MANY = 2**24
"""Folds of which each is one extent's."""
_EXTREME_SHARE = 0.2
_LEAST_WIDENING = 0.1
_LEAST_DISTANCE = 0.25
_ALONE_WIDTH = 0.5
"""Half-width on other generations of what only one was measured in, a factor of 1.65: what kinds of which
several were measured ask for is 0.4 to 0.7."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """Measured kernels of one kind, cell and device."""

    sheet: GpuSheet
    name: str
    kernels: Kernels
    latency_us: Array

    @cached_property
    def parameters(self) -> Array:
        """Logarithms, fitted to a part of the kernels."""
        step = max(1, len(self.kernels) // _FITTED)
        part = np.arange(0, len(self.kernels), step)
        return fit(self.kernels.some(part), self.sheet, self.latency_us[part], start_of(self.kernels.kind))

    def some(self, chosen: Column) -> Cell:
        """Return the cell with fewer kernels."""
        return Cell(self.sheet, self.name, self.kernels.some(chosen), self.latency_us[chosen])

    def seen_by(self, known: Sequence[Cell] | None = None) -> tuple[Array, FeatureTable]:
        """Return the analytic latencies and features, with own parameters or those that others let expect."""
        logs = self.parameters
        if known is not None:
            fitted = [Fitted(cell.sheet, cell.name, cell.parameters) for cell in known]
            logs = expected(fitted, self.name, self.sheet)
        base = analytic_us(self.kernels, self.sheet, logs)
        return base, feature_table(self.kernels, self.sheet, base)


def cells_of_tables(
    tables: Iterable[KernelTable], *, rng: np.random.Generator, most: int = MAX_CELL_SAMPLES
) -> dict[Kind, list[Cell]]:
    """Return what can be learnt from tables, by kind; of one kernel on one device the median counts.

    Args:
        tables: measured kernels; those of devices without a data sheet here are passed over.
        rng: draws the kernels of a cell that has more than `most`.
    """
    parts: dict[tuple[Kind, str, str], list[tuple[Kernels, Array]]] = {}
    for table in tables:
        devices = table.texts["device"]
        for device in dict.fromkeys(devices):
            try:
                sheet = find_sheet(device)
            except CostModelError:
                continue
            kernels, rows = Kernels.of_table(table), np.flatnonzero(devices == device)
            cells = cells_of(kernels)
            for cell in dict.fromkeys(cells[rows]):
                chosen = rows[cells[rows] == cell]
                found = parts.setdefault((table.kind, sheet.device.name, cell), [])
                found.append((kernels.some(chosen), table.latency_us[chosen]))
    by_kind: dict[Kind, list[Cell]] = {}
    for (kind, device, name), found in sorted(parts.items()):
        cell = _medians(find_sheet(device), name, found)
        if len(cell.kernels) >= MIN_CELL_SAMPLES:
            drawn = np.sort(rng.permutation(len(cell.kernels))[:most])
            by_kind.setdefault(kind, []).append(cell.some(drawn))
    return by_kind


def train_typed_model(
    tables: Iterable[KernelTable], *, seed: int = 0, coverage: float = 0.9, num_threads: int | None = None
) -> TypedModel:
    """Return a model of all kinds that the tables hold; equal input gives equal models.

    Args:
        seed: of draws, folds and trees.
        coverage: share of intervals meant to hold the truth.
        num_threads: of the training; one for each idle core if None.

    Raises:
        CostModelError: no kind has enough kernels.
    """
    names: dict[str, int] = {}
    by_kind = cells_of_tables(_noting(tables, names), rng=np.random.default_rng(seed))
    if not by_kind:
        raise CostModelError(
            "the tables hold no kernels of GPUs with a data sheet here, or fewer than "
            f"{MIN_CELL_SAMPLES} of any data type; name the folder of aiconfigurator's `systems/data`"
        )
    return model_of_cells(by_kind, seed=seed, coverage=coverage, num_threads=num_threads, sources=names)


def model_of_cells(
    by_kind: Mapping[Kind, Sequence[Cell]],
    *,
    seed: int = 0,
    coverage: float = 0.9,
    num_threads: int | None = None,
    sources: Mapping[str, int] = MappingProxyType({}),
) -> TypedModel:
    """Return a model of cells; see `train_typed_model`.

    Args:
        coverage: share of intervals meant to hold the truth.
        num_threads: of the training; one for each idle core if None.
        sources: kernels that each framework measured, for the manifest.
    """
    threads = num_threads or num_idle_cores()
    forests, kinds = {}, {}
    for kind, cells in by_kind.items():
        training = Training(tuple(cells), seed=seed, num_threads=threads)
        forests[kind], kinds[kind] = training.forests(), _calibration(training, coverage)
    manifest = TypedManifest(
        features_version=FEATURES_VERSION,
        feature_names=all_feature_names(),
        coverage=coverage,
        num_samples=sum(len(cell.kernels) for cells in by_kind.values() for cell in cells),
        records_digest=hashlib.blake2b(repr(sorted(sources.items())).encode(), digest_size=16).hexdigest(),
        last_record_id=0,
        versions=(("numpy", np.__version__), ("xgboost", str(xgboost.__version__))),
        seed=seed,
        kinds=kinds,
        sources=tuple(sorted(sources)),
    )
    return TypedModel(forests, manifest)


@dataclass(frozen=True)
class Training:
    """Cells of one kind, and forests of them."""

    cells: tuple[Cell, ...]
    seed: int = 0
    num_threads: int = 1

    @cached_property
    def seen(self) -> tuple[tuple[Array, FeatureTable], ...]:
        """Each cell's analytic latencies by its own parameters, and features."""
        return tuple(cell.seen_by() for cell in self.cells)

    def forests(self) -> Forests:
        """Return forests of all cells."""
        every = [np.ones(len(cell.kernels), bool) for cell in self.cells]
        return Forests(
            self.trained(every, rounds=KNOWN_ROUNDS, sees_device=True),
            self.trained(every, rounds=_BLIND_ROUNDS, sees_device=False),
        )

    def trained(self, chosen: Sequence[Column], *, rounds: int, sees_device: bool) -> Any:  # xgboost.Booster
        """Return a forest of the chosen kernels of each cell; without one, a cell has no say."""
        features, labels = [], []
        for cell, (base, table), mask in zip(self.cells, self.seen, chosen, strict=True):
            values = table.values if sees_device else without_device(table)
            features.append(values[mask])
            labels.append(np.log(cell.latency_us[mask] / base[mask]))
        depth = _PARAMETERS["max_depth"] if sees_device else _BLIND_DEPTH
        return train_forest(
            {**_PARAMETERS, "max_depth": depth},
            rounds,
            np.concatenate(features),
            np.concatenate(labels),
            seed=self.seed,
            num_threads=self.num_threads,
        )

    def errors_on_new_extents(self) -> list[Array]:
        """Return logarithms of predicted over measured, by cell, each kernel unseen on every device."""
        folds = [self.folds(cell.kernels, _NUM_FOLDS) for cell in self.cells]
        errors = [np.zeros(len(cell.kernels)) for cell in self.cells]
        for fold in range(_NUM_FOLDS):
            forest = self.trained([each != fold for each in folds], rounds=KNOWN_ROUNDS, sees_device=True)
            for index, (cell, (base, table)) in enumerate(zip(self.cells, self.seen, strict=True)):
                held_out = folds[index] == fold
                found = corrected(base, forest, table, sees_device=True) - np.log(cell.latency_us)
                errors[index][held_out] = found[held_out]
        return errors

    def errors_on_new_generations(self) -> list[Array]:
        """Return logarithms of predicted over measured, by cell, without any device of its generation.

        Empty where no other generation was measured.
        """
        errors = [np.zeros(0) for _ in self.cells]
        for generation in dict.fromkeys(cell.sheet.generation for cell in self.cells):
            is_new = [cell.sheet.generation == generation for cell in self.cells]
            if all(is_new):
                continue
            known = [cell for cell, new in zip(self.cells, is_new, strict=True) if not new]
            masks = [
                np.full(len(cell.kernels), not new) for cell, new in zip(self.cells, is_new, strict=True)
            ]
            forest = self.trained(masks, rounds=_BLIND_ROUNDS, sees_device=False)
            for index, cell in enumerate(self.cells):
                if is_new[index]:
                    base, table = cell.seen_by(known)
                    found = corrected(base, forest, table, sees_device=False)
                    errors[index] = found - np.log(cell.latency_us)
        return errors

    def widening(self, widths: Sequence[float], coverage: float) -> float:
        """Return what half-widths grow by with a doubling out of range, from the largest kernels held out."""
        large = [base > np.quantile(base, 1 - _EXTREME_SHARE) for base, _ in self.seen]
        forest = self.trained([~mask for mask in large], rounds=_QUICK_ROUNDS, sees_device=True)
        scores = []
        for cell, (base, table), mask, width in zip(self.cells, self.seen, large, widths, strict=True):
            errors = (corrected(base, forest, table, sees_device=True) - np.log(cell.latency_us))[mask]
            distance = np.log2(base[mask] / base[~mask].max(initial=1e-9))
            is_far = distance > _LEAST_DISTANCE
            excess = np.sqrt(np.maximum(errors**2 - width**2, 0))
            scores.append(excess[is_far] / distance[is_far])
        every = np.concatenate(scores)
        return max(float(np.quantile(every, coverage)), _LEAST_WIDENING) if len(every) else 1.0

    def folds(self, kernels: Kernels, count: int) -> Column:
        """Return a fold of so many for each kernel, the same for equal extents on any device."""
        mixed = np.zeros(len(kernels), np.uint64)
        for name in sorted(kernels.numbers):
            mixed = mixed * np.uint64(1_000_003) + (kernels.numbers[name] * 100).astype(np.uint64)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9) + np.uint64(2 * self.seed)
        return (mixed >> np.uint64(40)) % np.uint64(count)


def _calibration(training: Training, coverage: float) -> KindCalibration:
    widths = [
        _known_width(errors, len(np.unique(training.folds(cell.kernels, _MANY))), coverage)
        for cell, errors in zip(training.cells, training.errors_on_new_extents(), strict=True)
    ]
    by_device: dict[str, dict[str, CellFit]] = {}
    for cell, width in zip(training.cells, widths, strict=True):
        by_device.setdefault(cell.sheet.device.name, {})[cell.name] = CellFit(
            parameters=tuple(map(float, cell.parameters)), width=width, num_samples=len(cell.kernels)
        )
    least, most = _range(training.cells)
    return KindCalibration(
        cells=by_device,
        unknown_widths=_unknown_widths(training, widths, coverage),
        least=least,
        most=most,
        widening=training.widening(widths, coverage),
    )


def _known_width(errors: Array, num_extents: int, coverage: float) -> float:
    """Return a cell's half-width: conformal, a little beyond the quantile where extents are few.

    Kernels of equal extents and other types are off alike, and count as one.
    """
    return float(np.quantile(np.abs(errors), min(1.0, coverage * (1 + 1 / num_extents))))


def _unknown_widths(training: Training, widths: Sequence[float], coverage: float) -> dict[str, float]:
    """Return half-widths on new devices by cell.

    Generations that were held out are few draws of what a new one is off by: widths grow as for a new draw.
    """
    by_cell: dict[str, list[tuple[str, Array]]] = {}
    for cell, errors in zip(training.cells, training.errors_on_new_generations(), strict=True):
        found = by_cell.setdefault(cell.name, [])
        if len(errors):
            found.append((cell.sheet.generation, np.abs(errors)))
    known = {
        name: (1 + 1 / len({generation for generation, _ in parts})) ** 0.5
        * mixture_quantile([errors for _, errors in parts], coverage)
        for name, parts in by_cell.items()
        if parts
    }
    alone = max((_ALONE_WIDTH, 2 * max(widths), *known.values()))
    return {name: known.get(name, alone) for name in by_cell}


def _range(cells: Sequence[Cell]) -> tuple[dict[str, float], dict[str, float]]:
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for cell in cells:
        for name, values in cell.kernels.numbers.items():
            logs = np.log2(np.maximum(values.astype(np.float64), 1))
            least[name] = min(least.get(name, np.inf), float(logs.min()))
            most[name] = max(most.get(name, -np.inf), float(logs.max()))
    return least, most


def _medians(sheet: GpuSheet, name: str, found: Sequence[tuple[Kernels, Array]]) -> Cell:
    """Return the cell of parts, with the median of equal kernels."""
    kernels = joined([part for part, _ in found])
    latencies = np.concatenate([latency for _, latency in found])
    group = equal_rows([codes_of(column) for column in (*kernels.numbers.values(), *kernels.texts.values())])
    rows = np.lexsort((latencies, group))
    starts = np.flatnonzero(np.diff(group[rows], prepend=-1))
    counts = np.diff(starts, append=len(rows))
    middle = (latencies[rows[starts + (counts - 1) // 2]] + latencies[rows[starts + counts // 2]]) / 2
    return Cell(sheet, name, kernels.some(rows[starts]), middle)


def _noting(tables: Iterable[KernelTable], names: dict[str, int]) -> Iterator[KernelTable]:
    """Yield the tables, and note of each framework and version how many kernels it measured."""
    for table in tables:
        for key in dict.fromkeys(zip(table.texts["framework"], table.texts["version"], strict=True)):
            name = f"{table.kind} {key[0]} {key[1]}"
            names[name] = names.get(name, 0) + len(table)
        yield table
