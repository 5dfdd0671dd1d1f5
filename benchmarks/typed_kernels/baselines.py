"""What else could price a kernel: a roofline, the nearest measured kernel, or interpolation between some."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.sheets import GpuSheet
from cost_model.gpu.typed.training import Cell
from cost_model.gpu.typed.work import work_of

Array = npt.NDArray[np.float64]

_NEIGHBOURS = 8


def roofline_us(kernels: Kernels, sheet: GpuSheet) -> Array:
    """Return the longer of work and traffic at the data sheet's peaks; of what sends, bytes over the link."""
    work = work_of(kernels, sheet)
    if kernels.kind in ("collective", "exchange"):
        return np.maximum(work.num_bytes / sheet.link_gb_s / 1e3, 1e-3)
    return np.maximum(work.flops / work.tflops / 1e6, work.num_bytes / sheet.device.bandwidth_gb_s / 1e3)


def nearest_us(known: Cell, kernels: Kernels, sheet: GpuSheet) -> Array:
    """Return what the nearest kernel of a cell took over its roofline, times each kernel's own."""
    _, nearest = _tree(known).query(_places(kernels), k=1)
    return roofline_us(kernels, sheet) * _slowness(known)[nearest]


def interpolated_us(known: Cell, kernels: Kernels, sheet: GpuSheet) -> Array:
    """Return the same of eight neighbours, by the inverse squares of their distances."""
    distances, nearest = _tree(known).query(_places(kernels), k=min(_NEIGHBOURS, len(known.kernels)))
    weights = 1 / (distances**2 + 1e-6)
    logs = (np.log(_slowness(known))[nearest] * weights).sum(axis=1) / weights.sum(axis=1)
    return roofline_us(kernels, sheet) * np.exp(logs)


def _slowness(known: Cell) -> Array:
    return np.asarray(known.latency_us / roofline_us(known.kernels, known.sheet))


def _tree(known: Cell) -> cKDTree:
    return cKDTree(_places(known.kernels))


def _places(kernels: Kernels) -> Array:
    numbers = [np.log2(np.maximum(values.astype(float), 1)) for values in kernels.numbers.values()]
    texts = [10.0 * (values == "fp8") for name, values in kernels.texts.items() if name == "kv_dtype"]
    return np.stack([*numbers, *texts], axis=1)
