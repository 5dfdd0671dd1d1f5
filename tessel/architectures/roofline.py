"""Prices of kernels from a GPU's data sheet: the longer of its operations and its traffic at stated shares.

It knows no kernel's tiles, waves or launches beyond a fixed time each; what a learned model knows better, it
can say as another `KernelPrice`. Checked in tests/tessel/architectures/test_roofline.py.

Source: Williams et al., Roofline (CACM 2009); exchanges as rings (Patarasuk and Yuan 2009); sending a token
once to each node: DeepSeek-AI, DeepSeek-V3 (2024), section 3.2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tessel.architectures.gpu_sheets import GpuSheet
from tessel.architectures.kernels import AttentionCore, Beside, Exchange, Kernel, Moved, Product

MEMORY_SHARE = 0.75
"""Of the memory's bandwidth that elementwise kernels reach."""

GROUPED_SHARE = 0.65
"""Of what one product reaches, that products of many experts in one launch do."""

BACKWARD_SHARE = 0.8
"""Of the share that the forward of attention reaches, that its backward does."""

NETWORK_SHARE = 0.85

LAUNCH_US = 3.0
"""Of a kernel, beside what it computes."""

FAST_LATENCY_US = 2.0
"""Of a step of a collective within a domain of fast links: eight devices gather in 7 to 16 us at least."""

NETWORK_LATENCY_US = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A price of kernels on one GPU.

    Attributes:
        dtype: of products.
        efficiency: share of the peak that products reach; None for the sheet's.
        mfu: share of the peak in that type at which a whole layer's operations run, in place of all shares;
            its exchanges come on top. None for a roofline of each kernel.
        dispatch: how tokens go to experts, as of `Recipe`.
    """

    sheet: GpuSheet
    dtype: Literal["bf16", "fp8"] = "bf16"
    efficiency: float | None = None
    mfu: float | None = None
    dispatch: Literal["nccl", "deepep"] = "deepep"

    def __call__(self, kernel: Kernel) -> float:
        """Return the microseconds of a kernel."""
        if isinstance(kernel, Exchange):
            return self._exchange_us(kernel)
        if isinstance(kernel, Beside):
            return max(self(kernel.kernel), self(kernel.exchange))
        if self.mfu is not None:
            return kernel.flops / (self.peak_flops * self.mfu) * 1e6
        moved_us = kernel.moved_bytes / (self.sheet.hbm_gb_s * MEMORY_SHARE) / 1e3
        if isinstance(kernel, Moved):
            return LAUNCH_US + moved_us
        return LAUNCH_US + max(kernel.flops / self._reached(kernel) * 1e6, moved_us)

    @property
    def peak_flops(self) -> float:
        """Operations a second of products at the peak."""
        return 1e12 * (self.sheet.fp8_tflops if self.dtype == "fp8" else self.sheet.tflops)

    def _reached(self, kernel: Kernel) -> float:
        """Return the operations a second that a kernel reaches."""
        if isinstance(kernel, Product):
            share = self.efficiency or (
                self.sheet.shares.fp8 if self.dtype == "fp8" else self.sheet.shares.products
            )
            if self.efficiency is None:
                share *= self.sheet.shares.sustained
            return self.peak_flops * share * (GROUPED_SHARE if kernel.groups > 1 else 1.0)
        share = (
            self.sheet.shares.attention * self.sheet.shares.sustained
        )  # attention and scans stay in 16 bits
        if isinstance(kernel, AttentionCore) and kernel.is_backward:
            share *= BACKWARD_SHARE
        return 1e12 * self.sheet.tflops * share

    def _exchange_us(self, exchange: Exchange) -> float:
        devices, is_fast = exchange.devices, exchange.span <= self.sheet.domain
        if devices == 1:
            return 0.0
        latency_us = FAST_LATENCY_US if is_fast else NETWORK_LATENCY_US
        if exchange.kind == "all_to_all":
            return latency_us * math.log2(devices) + self._all_to_all_us(exchange)
        rate = self._fast_rate if is_fast else self._network_rate
        if exchange.kind == "ring":
            return (devices - 1) * (latency_us + exchange.num_bytes / rate)
        steps = (devices - 1) * (2 if exchange.kind == "all_reduce" else 1)
        return steps * (latency_us + exchange.num_bytes / devices / rate)

    def _all_to_all_us(self, exchange: Exchange) -> float:
        nodes = max(1.0, exchange.span / self.sheet.domain)
        here = exchange.num_bytes * (1 - 1 / exchange.devices) / self._fast_rate
        if nodes == 1:
            return here
        if self.dispatch == "nccl" or exchange.top_k == 1:
            return max(here / nodes, exchange.num_bytes * (1 - 1 / nodes) / self._network_rate)
        others = (nodes - 1) * (1 - (1 - 1 / nodes) ** exchange.top_k)
        return max(here, exchange.num_bytes / exchange.top_k * others / self._network_rate)

    @property
    def _fast_rate(self) -> float:
        """Bytes a microsecond over fast links."""
        return self.sheet.fast_gb_s * self.sheet.shares.fast * 1e3

    @property
    def _network_rate(self) -> float:
        return self.sheet.network_gb_s * NETWORK_SHARE * 1e3
