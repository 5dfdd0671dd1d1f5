"""Features of kernels by data type on a GPU: ratios of work, traffic, tiles and extents to what the GPU has.

As in `cost_model.gpu.features`, nothing names a device. Forests learn the logarithm of what a kernel takes
over `analytic_us`. Whole columns are computed at once. Checked in
tests/cost_model/gpu/typed/test_typed_model.py; what groups of features are worth stands in the report of
`benchmarks.typed_kernels`.

Source: tiles and waves follow NeuSight (Lee et al., ASPLOS 2025, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_model.gpu.typed.kernels import DTYPES, MEASURED_AS, Kernels
from cost_model.gpu.typed.sheets import GpuSheet
from cost_model.gpu.typed.work import Work, numbers, work_of
from records.files.aiconfigurator import COLLECTIVES, Kind

FEATURES_VERSION = 2

TILES = ((64, 64), (128, 128), (128, 256))
"""Rows and columns of the output that one thread block computes, or a cluster of them."""

_GROUPED_TILES = ((16, 128), (64, 128))

Array = npt.NDArray[np.float64]
Named = dict[str, Array]


class FeatureTable(NamedTuple):
    """Features of kernels of one kind.

    Attributes:
        values: float32, shape (kernels, names); the last `num_device` columns say what the device is like.
        num_device: columns that are of the device alone.
    """

    names: tuple[str, ...]
    values: npt.NDArray[np.float32]
    num_device: int


def feature_table(kernels: Kernels, sheet: GpuSheet, analytic: Array) -> FeatureTable:
    """Return the features of kernels of one kind on one GPU.

    Args:
        analytic: microseconds of each by `analytic_us`.

    Raises:
        CostModelError: the GPU lacks a data type.
    """
    work = work_of(kernels, sheet)
    own = _of_device(kernels, sheet, work)
    named = {"log_analytic": _log(analytic), **_BY_KIND[kernels.kind](kernels, sheet, work), **own}
    return FeatureTable(tuple(named), np.stack([*named.values()], axis=1).astype(np.float32), len(own))


def _of_device(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    device, ones = sheet.device, np.ones(len(kernels))
    if kernels.kind in ("collective", "exchange"):
        return {"log_link": _log(ones * sheet.link_gb_s), "has_switch": ones * sheet.has_switch}
    count = device.num_multiprocessors
    return {
        "log_ridge": _log(work.tflops / device.bandwidth_gb_s),
        "multiprocessors": ones * count,
        "log_bandwidth_share": _log(ones * device.bandwidth_gb_s / count),
        "log_flops_a_cycle": _log(work.tflops / count / device.clock_mhz),
        "log_flops_a_watt": _log(work.tflops / device.watts),
    }


def _product(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    rows, columns, inner = numbers(kernels, "rows", "columns", "inner")
    uncached = work.num_bytes - work.cached_bytes
    return {
        **_roofline(work, sheet),
        "log_uncached": _log(uncached / sheet.device.bandwidth_gb_s / 1e3),
        "log_uncached_share": _log(uncached / work.num_bytes),
        **_tiles("", rows, columns, np.ones_like(rows), TILES, sheet),
        "log_rows": _log(rows),
        "log_columns": _log(columns),
        "log_inner": _log(inner),
        "log_skew": _log(rows / columns),
        **_one_hot("dtype", kernels.texts["dtype"], DTYPES),
    }


def _attention(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    batch, length, past, heads, kv_heads, size, window = numbers(
        kernels, "batch", "length", "past", "heads", "kv_heads", "head_size", "window"
    )
    keys = length + past
    waves = work.blocks / sheet.device.num_multiprocessors
    return {
        **_roofline(work, sheet),
        "log_waves": _log(waves),
        "last_wave": waves / np.ceil(waves),
        "log_keys": _log(keys),
        "log_length": _log(length),
        "log_batch": _log(batch),
        "log_heads": _log(batch * heads),
        "log_group": _log(heads / kv_heads),
        "head_size": size,
        "log_reach": _log(np.where(window > 0, np.minimum(window, keys), keys) / keys),
        **_one_hot("dtype", kernels.texts["dtype"], ("bfloat16", "fp8")),
        **_one_hot("kv", kernels.texts["kv_dtype"], ("bfloat16", "fp8")),
    }


def _experts(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    tokens, hidden, inner, top_k, experts, tensor, expert, skew = numbers(
        kernels, "tokens", "hidden", "inner", "top_k", "experts", "tensor_parallel", "expert_parallel", "skew"
    )
    width, active = np.maximum(inner / tensor, 1), np.maximum(work.groups, 1)
    return {
        **_roofline(work, sheet),
        **_tiles("up", work.rows, 2 * width, active, _GROUPED_TILES, sheet),
        "log_tokens": _log(tokens),
        "log_rows": _log(work.rows),
        "log_width": _log(width),
        "log_hidden": _log(hidden),
        "log_active": _log(work.groups),
        "log_here": _log(experts / expert),
        "log_experts": _log(experts),
        "top_k": top_k,
        "skew": skew,
        "log_expert_parallel": _log(expert),
        **_one_hot("dtype", kernels.texts["dtype"], DTYPES),
    }


def _collective(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    (devices,) = numbers(kernels, "devices")
    return {
        "log_bytes": _log(work.num_bytes),
        "devices": devices,
        "log_chunk": _log(work.num_bytes / devices),
        **_one_hot("operation", kernels.texts["operation"], COLLECTIVES),
    }


def _exchange(kernels: Kernels, sheet: GpuSheet, work: Work) -> Named:
    tokens, hidden, top_k, experts, used = numbers(
        kernels, "tokens", "hidden", "top_k", "experts", "multiprocessors"
    )
    return {
        "log_bytes": _log(work.num_bytes),
        "log_tokens": _log(tokens),
        "log_hidden": _log(hidden),
        "top_k": top_k,
        "log_experts": _log(experts),
        "multiprocessors": used,
        "log_tokens_a_multiprocessor": _log(tokens * work.groups / used),
        **_one_hot("operation", kernels.texts["operation"], ("dispatch", "combine")),
    }


_BY_KIND: Mapping[Kind, Callable[[Kernels, GpuSheet, Work], Named]] = {
    "product": _product,
    "attention": _attention,
    "experts": _experts,
    "collective": _collective,
    "exchange": _exchange,
}


def _roofline(work: Work, sheet: GpuSheet) -> Named:
    compute, memory = work.flops / work.tflops / 1e6, work.num_bytes / sheet.device.bandwidth_gb_s / 1e3
    return {
        "log_compute": _log(compute),
        "log_memory": _log(memory),
        "log_compute_over_memory": _log(compute / memory),
        "log_bytes_over_l2": _log(work.num_bytes / (sheet.device.l2_mib * 2**20)),
    }


def _tiles(
    name: str, rows: Array, columns: Array, groups: Array, tiles: tuple[tuple[int, int], ...], sheet: GpuSheet
) -> Named:
    """Return how well the output of products divides into tiles, and those over multiprocessors."""
    found: Named = {}
    for tile_rows, tile_columns in tiles:
        count = groups * np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        waves = count / sheet.device.num_multiprocessors
        prefix = f"{name}{tile_rows}x{tile_columns}"
        found |= {
            f"{prefix}_log_waves": _log(waves),
            f"{prefix}_last_wave": waves / np.ceil(waves),
            f"{prefix}_padding": groups * rows * columns / (count * tile_rows * tile_columns),
        }
    return found


def _one_hot(name: str, column: npt.NDArray[np.object_], known: tuple[str, ...]) -> Named:
    found = np.array([MEASURED_AS.get(value, value) for value in column], dtype=object)
    return {f"{name}_{value}": (found == value).astype(np.float64) for value in known}


def _log(values: Array) -> Array:
    return np.log2(np.maximum(values, 1e-9))
