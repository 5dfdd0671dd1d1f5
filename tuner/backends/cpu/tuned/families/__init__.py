"""Our own kernels for one shape each, with what may be decided about them.

A kernel has a name that says its family and all numbers that legal decisions depend on, but not what is done
with its results: bias, activation and what is added change little about which tile is fastest. Trials are
kept by name, so a name is enough to know the space of its trials (`space_of`). Without decisions a kernel
takes those of its own rule. Checked in tests/tuner/backends/cpu/tuned/test_families.py.
"""

from tuner.backends.cpu.tuned.families.attention_kernel import AttentionKernel
from tuner.backends.cpu.tuned.families.convolution_kernels import (
    DepthwiseKernel,
    DirectKernel,
    WinogradKernel,
)
from tuner.backends.cpu.tuned.families.kernel_names import BACKEND_BY_FAMILY, family_of
from tuner.backends.cpu.tuned.families.named_kernels import kernel_of, space_of
from tuner.backends.cpu.tuned.families.own_kernel import Decisions, OwnKernel
from tuner.backends.cpu.tuned.families.product_kernel import ProductKernel
from tuner.backends.cpu.tuned.families.rowwise_kernel import RowwiseKernel

__all__ = [
    "BACKEND_BY_FAMILY",
    "AttentionKernel",
    "Decisions",
    "DepthwiseKernel",
    "DirectKernel",
    "OwnKernel",
    "ProductKernel",
    "RowwiseKernel",
    "WinogradKernel",
    "family_of",
    "kernel_of",
    "space_of",
]
