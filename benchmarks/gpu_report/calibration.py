"""A sweep of chosen kernels, and how far the GPU cost model is off before and after it.

Products in bfloat16, with extents from 16 to the ceiling's. Which are measured is chosen before any is;
of the others half as many are drawn, measured and predicted. Checked in tests/benchmarks/test_gpu_report.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.typed_kernels.adaptation import adapt, choose_kernels
from cost_model.errors import CostModelError
from cost_model.gpu.typed.kernels import Kernels, Product
from cost_model.gpu.typed.model import shipped_model
from cost_model.gpu.typed.sheets import GpuSheet, find_sheet

_LEAST_EXTENT, _MULTIPLE = 16, 8
_CANDIDATES = 20
"""Products drawn for each that is measured."""

_STAND_IN = "H200"
"""Whose data sheet a device without one has, so that the step can be tried on it; its errors say nothing."""


def calibrate(
    device: str, *, largest: int, count: int, measure_us: Callable[[Product], float]
) -> dict[str, Any]:
    """Return what was measured, and the mean errors of the shipped model and of the adapted one.

    Args:
        device: its name.
        largest: extent.
        count: kernels of the sweep.
        measure_us: runs one kernel on the device.
    """
    sheet, rng = _sheet(device), np.random.default_rng(0)
    products = _products(largest, _CANDIDATES * count, rng)
    kernels = Kernels.of_one_kind(products)
    chosen = choose_kernels(kernels, min(count, 2 * len(products) // 3), sheet, rng)
    others = rng.permutation(np.setdiff1d(np.arange(len(products)), chosen))[: max(1, len(chosen) // 2)]
    swept, held = ([measure_us(products[index]) for index in part] for part in (chosen, others))
    model, unseen = shipped_model(), kernels.some(others)
    adapted = adapt(model, kernels.some(chosen), sheet, np.array(swept))
    return {
        "sheet": sheet.device.name,
        "swept": [[*products[index][:3], us] for index, us in zip(chosen, swept, strict=True)],
        "held": [[*products[index][:3], us] for index, us in zip(others, held, strict=True)],
        "mean_error": {
            "as shipped": _error(model.predict(unseen, sheet).latency_us, held),
            "after the sweep": _error(adapted.predict_us(unseen), held),
        },
    }


def _sheet(device: str) -> GpuSheet:
    try:
        return find_sheet(device)
    except CostModelError:
        return find_sheet(_STAND_IN)


def _products(largest: int, count: int, rng: np.random.Generator) -> list[Product]:
    """Return different products whose extents are multiples of eight, even in their logarithms."""
    exponents = rng.uniform(np.log2(_LEAST_EXTENT), np.log2(largest), (count, 3))
    extents = np.round(np.exp2(exponents) / _MULTIPLE).astype(int) * _MULTIPLE
    different = np.unique(extents, axis=0).tolist()
    return [Product(rows, columns, inner) for rows, columns, inner in different]


def _error(predicted_us: npt.NDArray[np.float64], measured_us: list[float]) -> float:
    return float(np.abs(np.asarray(predicted_us) / np.array(measured_us) - 1).mean())
