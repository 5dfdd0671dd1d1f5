"""Errors and coverage on kernels that were held out: by extents, by generation, and after a short sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.typed_kernels.adaptation import adapt, choose_kernels
from benchmarks.typed_kernels.baselines import interpolated_us, nearest_us, roofline_us
from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.model import TypedModel, corrected
from cost_model.gpu.typed.training import KNOWN_ROUNDS, Cell, Training, model_of_cells

Array = npt.NDArray[np.float64]
Predictor = Callable[[Kernels], Array]

SWEEP = 200
_THIRDS = 3
_SEEDS = 5
_FEW = 300
"""Kernels below which every third of a cell is held out in turn, for one would tell little of intervals."""


def error_percent(predicted_us: Array, latency_us: Array) -> float:
    """Return the mean absolute error in per cent."""
    return 100 * float(np.mean(np.abs(predicted_us / latency_us - 1)))


@dataclass(frozen=True)
class Row:
    """Figures of one cell on one device, in per cent: errors, and what share intervals hold."""

    cell: Cell
    num_kernels: int
    errors: dict[str, float]
    coverage: float
    width: float


def on_new_extents(cells: Sequence[Cell]) -> list[Row]:
    """Return figures on a third of the extents, unseen on every device, calibration included.

    Of few kernels each third is held out in turn.
    """
    thirds = [Training(tuple(cells)).folds(cell.kernels, _THIRDS) for cell in cells]
    turns = range(_THIRDS if max(map(len, thirds)) < _FEW else 1)
    found: list[list[_Held]] = [[] for _ in cells]
    for turn in turns:
        known = [cell.some(third != turn) for cell, third in zip(cells, thirds, strict=True)]
        model = model_of_cells({cells[0].kernels.kind: known}, num_threads=1)
        for held, cell, own, third in zip(found, cells, known, thirds, strict=True):
            held.append(_held(model, cell.some(third == turn), own))
    return [_row(cell, held) for cell, held in zip(cells, found, strict=True)]


def on_new_generations(cells: Sequence[Cell]) -> list[Row]:
    """Return figures on each generation, of models that saw the others alone, calibration included."""
    rows = []
    for generation in dict.fromkeys(cell.sheet.generation for cell in cells):
        known = [cell for cell in cells if cell.sheet.generation != generation]
        new = [cell for cell in cells if cell.sheet.generation == generation]
        if not known:
            continue
        model = model_of_cells({cells[0].kernels.kind: known}, num_threads=1)
        for cell in new:
            others = [each for each in known if each.name == cell.name] or known
            rows.append(_row(cell, [_held(model, cell, *others)]))
    return rows


def after_a_sweep(cells: Sequence[Cell]) -> list[tuple[Cell, dict[str, list[float]]]]:
    """Return errors after kernels of a new generation's device were measured, drawn or chosen."""
    rows = []
    for generation in dict.fromkeys(cell.sheet.generation for cell in cells):
        known = [cell for cell in cells if cell.sheet.generation != generation]
        if not known:
            continue
        model = model_of_cells({cells[0].kernels.kind: known}, num_threads=1)
        for cell in (each for each in cells if each.sheet.generation == generation):
            rows.append((cell, _sweeps(model, cell)))
    return rows


def with_all_kernels(cell: Cell) -> float:
    """Return the error on a third of a device's kernels of a forest of its others, as many as there are."""
    training = Training((cell,))
    third = training.folds(cell.kernels, _THIRDS) == 0
    forest = training.trained([~third], rounds=KNOWN_ROUNDS, sees_device=True)
    (base, table), latency_us = training.seen[0], cell.latency_us
    predicted_us = np.exp(corrected(base, forest, table, sees_device=True))
    return error_percent(predicted_us[third], latency_us[third])


def _sweeps(model: TypedModel, cell: Cell) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"random": [], "chosen": []}
    count = min(SWEEP, len(cell.kernels) // 2)
    for seed in range(_SEEDS):
        order = np.random.default_rng(seed).permutation(len(cell.kernels))
        for name in found:
            chosen = order[:count]
            if name == "chosen":
                chosen = choose_kernels(cell.kernels, count, cell.sheet, np.random.default_rng(seed))
            rest = np.setdiff1d(order, chosen)
            adapted = adapt(model, cell.kernels.some(chosen), cell.sheet, cell.latency_us[chosen])
            predicted = adapted.predict_us(cell.kernels.some(rest))
            found[name].append(error_percent(predicted, cell.latency_us[rest]))
    return found


class _Held(NamedTuple):
    """Measured latencies that were held out, what each way predicts of them, and the ends of intervals."""

    latency_us: Array
    predicted_us: dict[str, Array]
    low_us: Array
    high_us: Array


def _held(model: TypedModel, cell: Cell, *known: Cell) -> _Held:
    found = model.predict(cell.kernels, cell.sheet)
    kernels, sheet = cell.kernels, cell.sheet
    neighbours = [np.log(nearest_us(each, kernels, sheet)) for each in known]
    between = [np.log(interpolated_us(each, kernels, sheet)) for each in known]
    predicted = {
        "roofline": roofline_us(kernels, sheet),
        "nearest": np.exp(np.mean(neighbours, axis=0)),
        "interpolation": np.exp(np.mean(between, axis=0)),
        "model": found.latency_us,
    }
    return _Held(cell.latency_us, predicted, found.low_us, found.high_us)


def _row(cell: Cell, parts: Sequence[_Held]) -> Row:
    latency_us, low_us, high_us = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("latency_us", "low_us", "high_us")
    )
    predicted = {
        name: np.concatenate([part.predicted_us[name] for part in parts]) for name in parts[0].predicted_us
    }
    return Row(
        cell,
        len(latency_us),
        {name: error_percent(values, latency_us) for name, values in predicted.items()},
        100 * float(np.mean((low_us <= latency_us) & (latency_us <= high_us))),
        float(np.median(high_us / predicted["model"])),
    )
