"""A latency by few parameters of a device: what a call, a wave and a step take, and shares of its peaks.

Forests learn what is left over it. The parameters of a device and a *cell* (the data type of what computes,
the operation of what sends) are fitted to its measurements; some dozens suffice, so a new device is known
after few. Of a device without any they follow from those of others: at the mean, and along a line over the
operations of a multiprocessor in a cycle where that explains them, for fixed costs in cycles fell as tensor
cores grew. Checked in tests/cost_model/gpu/typed/test_analytic.py.

Source: blocks, waves and steps of a product follow the analysis of CUTLASS's split and stream-K products
(Osama et al., PPoPP 2023, section 4); chunks of the best size cost a
collective a share of the root of its fixed and its sent part follows Sanders and Sibeyn (Information
Processing Letters, 2003); the rest is a roofline with a smooth corner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.sheets import GpuSheet
from cost_model.gpu.typed.work import ATTENTION_TILE, ROUNDED_DTYPES, Work, work_of
from records.files.aiconfigurator import Kind

Array = npt.NDArray[np.float64]

PARAMETERS: Mapping[Kind, tuple[tuple[str, float], ...]] = {
    "product": (
        ("call_us", 1.5),
        ("prologue_cycles", 3000.0),
        ("step_cycles", 300.0),
        ("compute_share", 0.8),
        ("memory_share", 0.75),
        ("cached_bytes_a_cycle", 12.0),
    ),
    "attention": (("call_us", 6.0), ("block_us", 3.0), ("compute_share", 0.6), ("memory_share", 0.7)),
    "experts": (
        ("call_us", 15.0),
        ("expert_us", 0.1),
        ("compute_share", 0.5),
        ("memory_share", 0.6),
        ("token_us", 0.003),
    ),
    "collective": (
        ("call_us", 4.0),
        ("hop_us", 1.0),
        ("link_share", 0.7),
        ("sharing", 0.1),
        ("pipelining", 0.5),
    ),
    "exchange": (("call_us", 20.0), ("multiprocessor_gb_s", 40.0), ("link_share", 0.6)),
}
"""Of each kind, with where a fit starts."""

_TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
_SPLITS = (1, 2, 4, 8, 16)
_STEP = 64
"""Elements of the inner extent that a block reads at once."""
_EXPERT_ROWS = 64
_CORNER = 4
"""Power by which two bounds that overlap add up: 1 would be their sum, infinity the larger one."""
_PRODUCT_CORNER = 2
_SPREAD = 1.0
"""Standard deviation of a parameter's logarithm before anything is measured."""
_NOISE = 0.15
_SLOPE_PRIOR = 4.0
"""Weight of no slope over a device's operations a cycle, in squared doublings."""
_SAME_CELL = 4.0
"""Weight of a device's own cell beside its others, of which a few stand in where one generation has it."""
_MAX_EVALUATIONS = 40


def start_of(kind: Kind) -> Array:
    """Return the logarithms that a fit starts from where no device is known."""
    return np.log([value for _, value in PARAMETERS[kind]])


def analytic_us(kernels: Kernels, sheet: GpuSheet, logs: Array) -> Array:
    """Return microseconds by parameters, shape (kernels,).

    Args:
        logs: logarithms of the parameters.
    """
    return _BY_KIND[kernels.kind](work_of(kernels, sheet), kernels, sheet, np.exp(logs))


def fit(
    kernels: Kernels, sheet: GpuSheet, latency_us: Array, start: Array, *, spread: float = _SPREAD
) -> Array:
    """Return the logarithms of the parameters that measurements speak for, near where they start.

    Args:
        kernels: of one kind and cell, measured.
        latency_us: of each.
        start: logarithms; what few measurements leave open stays there.
        spread: standard deviation of a parameter's logarithm about its start.
    """
    # More to import than all else in a process that predicts.
    from scipy.optimize import least_squares  # noqa: PLC0415

    work, compute, wanted = work_of(kernels, sheet), _BY_KIND[kernels.kind], np.log(latency_us)

    def residuals(logs: Array) -> Array:
        errors = (np.log(compute(work, kernels, sheet, np.exp(logs))) - wanted) / _NOISE
        return np.concatenate([errors, (logs - start) / spread])

    found = least_squares(
        residuals,
        start,
        loss="soft_l1",
        diff_step=1e-2,
        max_nfev=_MAX_EVALUATIONS,
        bounds=(start - 4, start + 4),
    )
    return np.asarray(found.x)


class Fitted(NamedTuple):
    """Logarithms of the parameters of one cell on one GPU, as `fit` found them."""

    sheet: GpuSheet
    cell: str
    logs: Array


def expected(fitted: Sequence[Fitted], cell: str, sheet: GpuSheet) -> Array:
    """Return the logarithms that a cell has on a GPU as far as others tell.

    Cells of types that are computed alike count as well, but less; all do where there is none of either.

    Args:
        cell: that is asked for.
    """
    alike = [each for each in fitted if _family(each.cell) == _family(cell)] or list(fitted)
    values = np.array([each.logs for each in alike])
    places = np.array([_operations_a_cycle(each.sheet) for each in alike])
    groups = [(each.sheet.generation, each.cell) for each in alike]
    weights = np.array([(_SAME_CELL if group[1] == cell else 1.0) / groups.count(group) for group in groups])
    weights /= weights.sum()
    centre, level = float(weights @ places), weights @ values
    spread = len(alike) * float(weights @ (places - centre) ** 2)
    slope = len(alike) * (weights * (places - centre)) @ (values - level) / (spread + _SLOPE_PRIOR)
    return np.asarray(level + slope * (_operations_a_cycle(sheet) - centre))


def _family(cell: str) -> str:
    if cell in ROUNDED_DTYPES:
        return "rounded"
    return "weights alone" if cell in ("int4_wo", "w4a16_mxfp4") else cell


def _operations_a_cycle(sheet: GpuSheet) -> float:
    device = sheet.device
    return float(np.log2(device.tensor_tflops / device.num_multiprocessors / device.clock_mhz))


def _product(work: Work, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    call, prologue, step, compute_share, memory_share, cached_bytes = parameters
    rows, columns, inner = (kernels.numbers[name].astype(float) for name in ("rows", "columns", "inner"))
    device = sheet.device
    rate = work.tflops * 1e6 / device.num_multiprocessors * compute_share
    best = np.full(len(rows), np.inf)
    for tile_rows, tile_columns in _TILES:
        step_us = np.maximum(step / device.clock_mhz, 2 * tile_rows * tile_columns * _STEP / rate)
        blocks = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)
        for splits in _SPLITS:
            waves = np.ceil(blocks * splits / device.num_multiprocessors)
            each = prologue / device.clock_mhz + np.ceil(inner / _STEP / splits) * step_us
            if splits > 1:  # partial sums are written, and added by another pass
                added = 8 * rows * columns * splits / (64 * device.num_multiprocessors * device.clock_mhz)
                each = each + (prologue / device.clock_mhz + added) / waves
            best = np.minimum(best, waves * each)
    bandwidth = device.bandwidth_gb_s * 1e3 * memory_share
    from_cache = max(bandwidth, cached_bytes * device.num_multiprocessors * device.clock_mhz)
    memory = (work.num_bytes - work.cached_bytes) / bandwidth + work.cached_bytes / from_cache
    return np.asarray(call + _smooth(best, memory, _PRODUCT_CORNER))


def _attention(work: Work, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    call, block, compute_share, memory_share = parameters
    device = sheet.device
    rate = work.tflops * 1e6 * compute_share
    # A block computes whole tiles, so that half of the one on the diagonal is masked.
    masked = 2 * kernels.numbers["head_size"] * ATTENTION_TILE**2
    longest = (work.longest_block_flops + masked) * device.num_multiprocessors
    compute = np.maximum(work.flops + masked * work.blocks, longest) / rate
    waves = np.ceil(work.blocks / device.num_multiprocessors)
    memory = work.num_bytes / (device.bandwidth_gb_s * 1e3 * memory_share)
    return np.asarray(call + compute + block * waves + memory)


def _experts(work: Work, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    call, expert, compute_share, memory_share, token = parameters
    padded = np.ceil(work.rows / _EXPERT_ROWS) * _EXPERT_ROWS / np.maximum(work.rows, 1e-9)
    compute = work.flops * padded / (work.tflops * 1e6 * compute_share)
    memory = work.num_bytes / (sheet.device.bandwidth_gb_s * 1e3 * memory_share)
    fixed = call + expert * work.groups + token * kernels.numbers["tokens"]
    return np.asarray(fixed + _smooth(compute, memory))


def _collective(work: Work, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    call, hop, link_share, sharing, pipelining = parameters
    # Without switches more devices share a link: on eight L40S each has a sixteenth of what two have.
    rate = sheet.link_gb_s * 1e3 * link_share * (2 / kernels.numbers["devices"]) ** sharing
    fixed, sent = call + hop * work.blocks, work.num_bytes / rate
    return np.asarray(fixed + sent + pipelining * np.sqrt(fixed * sent))


def _exchange(work: Work, kernels: Kernels, sheet: GpuSheet, parameters: Array) -> Array:
    call, rate, link_share = parameters
    copied = work.num_bytes / (kernels.numbers["multiprocessors"] * rate * 1e3)
    return np.asarray(call + _smooth(copied, work.num_bytes / (sheet.link_gb_s * 1e3 * link_share)))


_BY_KIND: Mapping[Kind, Callable[[Work, Kernels, GpuSheet, Array], Array]] = {
    "product": _product,
    "attention": _attention,
    "experts": _experts,
    "collective": _collective,
    "exchange": _exchange,
}


def _smooth(first: Array, second: Array, corner: int = _CORNER) -> Array:
    largest = np.maximum(first, second)
    return np.asarray(largest * ((first / largest) ** corner + (second / largest) ** corner) ** (1 / corner))
