"""Errors and coverage on kernels that were held out: by extents, by generation, and after a short sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.typed_kernels.adaptation import adapt, choose_kernels
from benchmarks.typed_kernels.baselines import interpolated_us, nearest_us, roofline_us
from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.model import TypedModel
from cost_model.gpu.typed.training import Cell, Training, model_of_cells

Array = npt.NDArray[np.float64]
Predictor = Callable[[Kernels], Array]

SWEEP = 200
_SEEDS = 3


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
    """Return figures on a third of the extents, unseen on every device, calibration included."""
    parts = [Training(tuple(cells)).folds(cell.kernels) == 0 for cell in cells]
    known = [cell.some(~part) for cell, part in zip(cells, parts, strict=True)]
    model = model_of_cells({cells[0].kernels.kind: known}, num_threads=1)
    return [
        _row(model, cell.some(part), own)
        for cell, own, part in zip(cells, known, parts, strict=True)
        if part.any()
    ]


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
            rows.append(_row(model, cell, others[0], *others[1:]))
    return rows


def after_a_sweep(cells: Sequence[Cell]) -> list[tuple[Cell, dict[str, list[float]]]]:
    """Return errors after kernels of a new generation's device were measured, chosen in three ways."""
    rows = []
    for generation in dict.fromkeys(cell.sheet.generation for cell in cells):
        known = [cell for cell in cells if cell.sheet.generation != generation]
        if not known:
            continue
        model = model_of_cells({cells[0].kernels.kind: known}, num_threads=1)
        for cell in (each for each in cells if each.sheet.generation == generation):
            rows.append((cell, _sweeps(model, cell)))
    return rows


def _sweeps(model: TypedModel, cell: Cell) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"random": [], "chosen": []}
    for seed in range(_SEEDS):
        order = np.random.default_rng(seed).permutation(len(cell.kernels))
        for name in found:
            chosen = order[:SWEEP]
            if name == "chosen":
                chosen = choose_kernels(cell.kernels, SWEEP, first=int(order[0]))
            rest = np.setdiff1d(order, chosen)
            adapted = adapt(model, cell.kernels.some(chosen), cell.sheet, cell.latency_us[chosen])
            predicted = adapted.predict_us(cell.kernels.some(rest))
            found[name].append(error_percent(predicted, cell.latency_us[rest]))
    return found


def _row(model: TypedModel, cell: Cell, *known: Cell) -> Row:
    found = model.predict(cell.kernels, cell.sheet)
    kernels, sheet, latency_us = cell.kernels, cell.sheet, cell.latency_us
    neighbours = [np.log(nearest_us(each, kernels, sheet)) for each in known]
    between = [np.log(interpolated_us(each, kernels, sheet)) for each in known]
    held = (found.low_us <= latency_us) & (latency_us <= found.high_us)
    return Row(
        cell,
        len(kernels),
        {
            "roofline": error_percent(roofline_us(kernels, sheet), latency_us),
            "nearest": error_percent(np.exp(np.mean(neighbours, axis=0)), latency_us),
            "interpolation": error_percent(np.exp(np.mean(between, axis=0)), latency_us),
            "model": error_percent(found.latency_us, latency_us),
        },
        100 * float(held.mean()),
        float(np.median(found.high_us / found.latency_us)),
    )
