"""Features of a kernel on a GPU: ratios of its extents to tiles, multiprocessors, caches and bandwidths.

Nothing names a device: what is learnt on one must hold on another of the same ratios. The base is a bound
that knows the second-level cache; forests learn the logarithm of what a kernel takes over that. Checked in
tests/cost_model/gpu/test_kernel_model.py.

Source: tiles, waves and utilisation follow NeuSight (Lee et al., ASPLOS 2025, section 4); there the tile is
looked up in measured kernels, here all usual ones are features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.kernels import Family, GpuKernel

FEATURES_VERSION = 2

TILES = ((32, 32), (64, 32), (32, 128), (64, 64), (128, 64), (128, 128), (256, 128))
"""Rows and columns of the output that a thread block of a library's product computes."""

_L2_SHARE = 0.5
"""Share of the second-level cache that still holds an operand when it is read again."""
_LEAST_TRAFFIC = 0.05
_ALIGNMENT = 16
_LONG_ROW = (1024, 2048)

_DEVICE = (
    "log_ridge",
    "multiprocessors",
    "lanes",
    "log_l2_share",
    "log_bandwidth_share",
    "clock_mhz",
    "log_gflops_per_watt",
)
NUM_DEVICE_FEATURES = len(_DEVICE)
"""Columns at the end that say what the device is like, apart from the kernel."""

_COMMON = ("log_bound_us", "log_compute_over_memory", "log_bytes_over_l2")
_PRODUCT = (
    *(
        f"{name}_{rows}x{columns}"
        for rows, columns in TILES
        for name in ("log_waves", "last_wave", "padding", "log_rounded_up")
    ),
    "log_least_rounded_up",
    "log_inner",
    "log_rows",
    "log_columns",
    "log_batch",
    "log_skew",
    "alignment_rows",
    "alignment_inner",
    "alignment_columns",
    "log_right_over_l2",
)
_OTHER = (
    "log_elements_share",
    "log_row",
    "log_rows_share",
    "passes",
    "is_costly",
    "alignment_row",
    *(f"is_within_{length}" for length in _LONG_ROW),
)


def feature_names(family: Family) -> tuple[str, ...]:
    """Return the names of the columns of a family."""
    own = _PRODUCT if family in (Family.BATCHED_PRODUCT, Family.LINEAR) else _OTHER
    return (*_COMMON, *own, *_DEVICE)


def feature_matrix(kernels: Sequence[GpuKernel], devices: Sequence[GpuDevice]) -> npt.NDArray[np.float32]:
    """Return the features of kernels of one family, each on its device: shape (kernels, names), no unit."""
    rows = [
        _common(kernel, device)
        + (_product(kernel, device) if kernel.family in _PRODUCTS else _other(kernel, device))
        + _device(device)
        for kernel, device in zip(kernels, devices, strict=True)
    ]
    return np.asarray(rows, np.float32)


def bound_us(kernel: GpuKernel, device: GpuDevice) -> float:
    """Return microseconds that the kernel takes at least: its arithmetic, or its traffic."""
    return max(kernel.flops / device.peak_gflops / 1e3, memory_us(kernel.num_bytes, device))


def memory_us(num_bytes: float, device: GpuDevice) -> float:
    """Return microseconds of traffic, when what the second-level cache still holds is read from there."""
    missed = max(num_bytes - _L2_SHARE * device.l2_mib * 2**20, _LEAST_TRAFFIC * num_bytes)
    return max(missed / device.bandwidth_gb_s, num_bytes / device.l2_bandwidth_gb_s) / 1e3


_PRODUCTS = (Family.BATCHED_PRODUCT, Family.LINEAR)


def _common(kernel: GpuKernel, device: GpuDevice) -> list[float]:
    compute = kernel.flops / device.peak_gflops / 1e3
    return [
        _log(bound_us(kernel, device)),
        _log(compute / memory_us(kernel.num_bytes, device)),
        _log(kernel.num_bytes / (device.l2_mib * 2**20)),
    ]


def _product(kernel: GpuKernel, device: GpuDevice) -> list[float]:
    batch, rows, inner, columns = kernel.extents
    features, rounded_up = [], []
    for tile_rows, tile_columns in TILES:
        num_tiles = batch * math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns)
        waves = num_tiles / device.num_multiprocessors
        area, covered = batch * rows * columns, num_tiles * tile_rows * tile_columns
        whole = math.ceil(waves) * device.num_multiprocessors * tile_rows * tile_columns
        rounded_up.append(whole / area)
        features += [_log(waves), waves / math.ceil(waves), area / covered, _log(whole / area)]
    return [
        *features,
        _log(min(rounded_up)),
        *map(_log, (inner, rows, columns, batch)),
        _log(max(rows, columns) / min(rows, columns)),
        *map(_alignment, (rows, inner, columns)),
        _log(4 * inner * columns / (device.l2_mib * 2**20)),
    ]


def _other(kernel: GpuKernel, device: GpuDevice) -> list[float]:
    _, rows, _, length = kernel.extents
    elements = rows * length
    return [
        _log(elements / device.num_multiprocessors),
        _log(length),
        _log(rows / device.num_multiprocessors),
        kernel.num_bytes / (4 * elements),
        float(kernel.is_costly),
        _alignment(length),
        *(float(length <= limit) for limit in _LONG_ROW),
    ]


def _device(device: GpuDevice) -> list[float]:
    count = device.num_multiprocessors
    return [
        _log(device.peak_gflops / device.bandwidth_gb_s),
        count,
        device.lanes,
        _log(device.l2_mib / count),
        _log(device.bandwidth_gb_s / count),
        device.clock_mhz,
        _log(device.peak_gflops / device.watts),
    ]


def _alignment(extent: int) -> float:
    """Return the largest power of two that divides the extent, up to what vector loads ask for."""
    return float(min(extent & -extent, _ALIGNMENT))


def _log(value: float) -> float:
    return math.log2(max(value, 1e-9))
