"""What kernels compute and move: operations, bytes, and how they divide into blocks; no device's speed.

Checked in tests/cost_model/gpu/typed/test_analytic.py, against counts by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_model.gpu.typed.kernels import Kernels
from cost_model.gpu.typed.sheets import GpuSheet
from records.files.aiconfigurator import BYTES_BY_DTYPE, Kind

Array = npt.NDArray[np.float64]

OUTPUT_BYTES = 2
ATTENTION_TILE = 128
"""Queries of a head that one block computes."""
_DEVICES_OF_NODE = 8
_COPIES = 6
"""Weights that aiconfigurator's products of one shape take in turn; what they read and write stays."""
_CACHE_SHARE = 0.9
_CACHE_CLIFF = 8
"""Power of a working set over the cache by which what is found there falls off."""
_TWO_PARTITIONS = frozenset(("8.0", "9.0", "10.0"))
"""Compute capabilities whose cache holds data twice, once for each half of the multiprocessors."""
ROUNDED_DTYPES = frozenset(("fp8", "fp8_block", "int8", "nvfp4"))
"""Types to which a serving library rounds activations before it multiplies them."""


class Work(NamedTuple):
    """Work of kernels; arrays have an element for each.

    Attributes:
        flops: operations, a multiplication and an addition being two.
        num_bytes: read and written once; of what sends, bytes over a device's link in one direction.
        tflops: dense peak in the kernel's type.
        blocks: thread blocks of attention; steps of a collective.
        longest_block_flops: of attention's last block, which sees all keys.
        rows: tokens of an expert that has any.
        groups: experts with tokens.
        cached_bytes: of a product's, those that the second-level cache holds from the call before.
    """

    flops: Array
    num_bytes: Array
    tflops: Array
    blocks: Array
    longest_block_flops: Array
    rows: Array
    groups: Array
    cached_bytes: Array


def work_of(kernels: Kernels, sheet: GpuSheet) -> Work:
    """Return the work of kernels of one kind.

    Raises:
        CostModelError: the GPU lacks a data type.
    """
    return _BY_KIND[kernels.kind](kernels, sheet)


def _work(kernels: Kernels, sheet: GpuSheet, num_bytes: Array, **others: Array) -> Work:
    zeros = np.zeros(len(kernels))
    named = dict.fromkeys(Work._fields, zeros) | others | {"num_bytes": num_bytes}
    if kernels.kind not in ("collective", "exchange"):
        peak_of = {dtype: sheet.tflops(dtype) for dtype in set(kernels.texts["dtype"])}
        named["tflops"] = np.array([peak_of[dtype] for dtype in kernels.texts["dtype"]])
    return Work(**named)


def _product(kernels: Kernels, sheet: GpuSheet) -> Work:
    rows, columns, inner = numbers(kernels, "rows", "columns", "inner")
    size = sizes(kernels, "dtype")
    # What is rounded is read in 16 bits, written, and read again.
    rounded = np.isin(kernels.texts["dtype"].astype(str), [*ROUNDED_DTYPES])
    activations = np.where(rounded, 2 + 2 * size, OUTPUT_BYTES) * rows * inner
    weights, others = size * columns * inner, activations + OUTPUT_BYTES * rows * columns
    halves = 2 if sheet.device.compute_capability in _TWO_PARTITIONS else 1
    cache = sheet.device.l2_mib * 2**20 * _CACHE_SHARE / halves
    cached = weights / (1 + ((_COPIES * weights + others) / cache) ** _CACHE_CLIFF)
    cached += others / (1 + ((weights + others) / cache) ** _CACHE_CLIFF)
    return _work(kernels, sheet, weights + others, flops=2 * rows * columns * inner, cached_bytes=cached)


def _attention(kernels: Kernels, sheet: GpuSheet) -> Work:
    batch, length, past, heads, kv_heads, size, window = numbers(
        kernels, "batch", "length", "past", "heads", "kv_heads", "head_size", "window"
    )
    keys = length + past
    reach = np.where(window > 0, np.minimum(window, keys), keys)
    ramp = np.clip(reach - past, 0, length)
    pairs = ramp * past + ramp * (ramp + 1) / 2 + (length - ramp) * reach
    kv_bytes = 2 * sizes(kernels, "kv_dtype") * kv_heads * keys
    return _work(
        kernels,
        sheet,
        batch * size * (2 * OUTPUT_BYTES * heads * length + kv_bytes),
        flops=4 * batch * heads * size * pairs,
        blocks=batch * heads * np.ceil(length / ATTENTION_TILE),
        longest_block_flops=4 * size * np.minimum(length, ATTENTION_TILE) * reach,
    )


def _experts(kernels: Kernels, sheet: GpuSheet) -> Work:
    tokens, hidden, inner, top_k, experts, tensor, expert = numbers(
        kernels, "tokens", "hidden", "inner", "top_k", "experts", "tensor_parallel", "expert_parallel"
    )
    here, width = np.maximum(experts / expert, 1), np.maximum(inner / tensor, 1)
    routed = tokens * top_k / expert
    # Experts that some token goes to, if each goes to any of them alike.
    active = here * -np.expm1(tokens * np.log1p(-np.minimum(top_k / experts, 1 - 1e-9)))
    weights = 3 * sizes(kernels, "dtype") * active * hidden * width
    return _work(
        kernels,
        sheet,
        weights + OUTPUT_BYTES * (2 * tokens * hidden + routed * (2 * hidden + 3 * width)),
        flops=6 * routed * hidden * width,
        rows=routed / np.maximum(active, 1e-9),
        groups=active,
    )


def _collective(kernels: Kernels, sheet: GpuSheet) -> Work:
    devices, elements = numbers(kernels, "devices", "elements")
    steps = (devices - 1) * np.where(kernels.texts["operation"] == "all_reduce", 2, 1)
    return _work(kernels, sheet, elements * sizes(kernels, "dtype") * steps / devices, blocks=steps)


def _exchange(kernels: Kernels, sheet: GpuSheet) -> Work:
    tokens, hidden, top_k, nodes = numbers(kernels, "tokens", "hidden", "top_k", "nodes")
    devices = _DEVICES_OF_NODE * nodes
    # Devices that a token goes to, if its experts are any of all alike.
    targets = devices * -np.expm1(top_k * np.log1p(-1 / devices))
    return _work(kernels, sheet, OUTPUT_BYTES * tokens * hidden * targets * (1 - 1 / devices), groups=targets)


_BY_KIND: Mapping[Kind, Callable[[Kernels, GpuSheet], Work]] = {
    "product": _product,
    "attention": _attention,
    "experts": _experts,
    "collective": _collective,
    "exchange": _exchange,
}


def numbers(kernels: Kernels, *names: str) -> tuple[Array, ...]:
    """Return columns as floating-point numbers."""
    return tuple(kernels.numbers[name].astype(np.float64) for name in names)


def sizes(kernels: Kernels, text: str) -> Array:
    """Return the bytes of an element of each kernel, scales included."""
    return np.array([BYTES_BY_DTYPE[dtype] for dtype in kernels.texts[text]])
