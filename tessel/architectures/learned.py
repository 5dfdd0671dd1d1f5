"""Prices of kernels from those that were measured on GPUs; what was not measured keeps the data sheet's.

Products, the forward of attention and collectives within a node come from `cost_model.gpu.typed`. The
backward of attention is its forward at the data sheet's ratio of both; grouped products, elementwise work and
whatever leaves a node stay with the roofline. Checked in tests/tessel/architectures/test_learned.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_model.errors import CostModelError
from cost_model.gpu.typed.kernels import Attention, Collective, TypedKernel
from cost_model.gpu.typed.kernels import Product as TypedProduct
from cost_model.gpu.typed.model import gpu_kernel_us
from cost_model.gpu.typed.sheets import find_sheet
from tessel.architectures.kernels import ELEMENT_BYTES, AttentionCore, Beside, Exchange, Kernel, Product
from tessel.architectures.roofline import BACKWARD_SHARE, Roofline
from tessel.errors import UsageError

MEASURED_DEVICES = 8
"""Most devices of a node whose collectives were measured."""

_BACKWARD_WORK = 2.5
_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPrice:
    """A price of kernels on one GPU.

    Attributes:
        roofline: prices what was not measured, and says which GPU and data type.
    """

    roofline: Roofline

    def __call__(self, kernel: Kernel) -> float:
        """Return the microseconds of a kernel."""
        if isinstance(kernel, Beside):
            return max(self(kernel.kernel), self(kernel.exchange))
        typed = self._typed(kernel)
        if typed is None:
            return self.roofline(kernel)
        is_backward = isinstance(kernel, AttentionCore) and kernel.is_backward
        factor = _BACKWARD_WORK / BACKWARD_SHARE if is_backward else 1.0
        return factor * gpu_kernel_us(typed, self.roofline.sheet.name).latency_us

    def _typed(self, kernel: Kernel) -> TypedKernel | None:
        if isinstance(kernel, Product) and kernel.groups == 1:
            dtype, rows = _DTYPES[self.roofline.dtype], max(1, round(kernel.rows))
            if kernel.sums_rows:
                return TypedProduct(kernel.outputs, kernel.inputs, rows, dtype)
            return TypedProduct(rows, kernel.outputs, kernel.inputs, dtype)
        if isinstance(kernel, AttentionCore):
            queries = max(1, round(kernel.queries))
            # Parts of a sequence are balanced over devices: each sees as many keys as the middle of it.
            keys = kernel.tokens / (2 if kernel.is_causal else 1)
            past = max(0, round(keys - queries / 2))
            heads, kv_heads = max(1, round(kernel.heads)), max(1, round(kernel.kv_heads))
            size = (kernel.key_dim + kernel.value_dim) // 2
            return Attention(kernel.batch, queries, heads, kv_heads, size, past, kernel.window)
        if isinstance(kernel, Exchange):
            return self._collective(kernel)
        return None

    def _collective(self, exchange: Exchange) -> Collective | None:
        kind, devices = exchange.kind, exchange.devices
        is_near = exchange.span <= min(self.roofline.sheet.domain, MEASURED_DEVICES)
        # DeepEP sends a token once to each device, and has a price of its own kind with the roofline.
        if kind == "ring" or kind == "all_to_all" or devices == 1 or not is_near:
            return None
        return Collective(kind, devices, max(1, math.ceil(exchange.num_bytes / ELEMENT_BYTES)))


def learned_price(roofline: Roofline) -> LearnedPrice:
    """Return prices from the model that comes with the project.

    Raises:
        UsageError: no kernels were measured on the GPU, or shares were given in place of prices.
    """
    sheet = roofline.sheet
    if roofline.mfu is not None or roofline.efficiency is not None:
        raise UsageError("--price model has no use for a share of the peak; leave --mfu and --efficiency out")
    try:
        find_sheet(sheet.name).tflops(_DTYPES[roofline.dtype])
    except CostModelError as error:
        raise UsageError(f"--price model: {error}; or leave --price out for a roofline") from error
    return LearnedPrice(roofline=roofline)
