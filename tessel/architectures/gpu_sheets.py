"""Data sheets of GPUs for training: peaks by data type, memory, links, and what share of them kernels reach.

Peaks are dense and the vendor's; memory is what the driver reports. Shares of the peak are medians of kernels
that others measured, none of them from the runs of benchmarks/reports/published_runs_2026-11.md; where a
device was not among them (`measured`), they are the nearest one's.

Source of shares: ai-dynamo/aiconfigurator (Apache-2.0), products with at least 4096 rows, columns and inputs,
and causal attention over at least 4096 tokens with heads of 128 elements; NCCL of 256 Mi elements over one
node. The H200's in fp8 is the H100's, which has the same units. Of Blackwell's data-center devices the share
in fp8 is stated, since the kernels measured are slower in fp8 than in bf16.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

import msgspec

from cost_model.gpu.typed.sheets import find_sheet as find_typed_sheet
from tessel.errors import UsageError

SUSTAINED = 0.92
"""Of what kernels reach alone, in training: from the steps of MLPerf's GPT-3 175B on 256 and 512 H100."""

BLACKWELL_SUSTAINED = 0.71
"""The same of Blackwell: products in SimuMax's system file of a B200 (Apache-2.0) reach 0.49 of the peak, and
those measured alone 0.69."""


class Shares(NamedTuple):
    """What kernels reach, of what a data sheet says.

    Attributes:
        products: of the peak, large products in bf16.
        fp8: the same in fp8.
        attention: of the peak in bf16, the forward of attention.
        fast: of fast links, collectives.
        sustained: of those shares, what is left in training, where power limits clocks.
        measured: whether these are of kernels on this device.
    """

    products: float
    fp8: float
    attention: float
    fast: float
    sustained: float = SUSTAINED
    measured: bool = True


class GpuSheet(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU and its usual node can do.

    Attributes:
        name: as `--gpu` takes it.
        tflops: dense peak of products in bf16, 10¹² operations a second.
        fp8_tflops: the same in fp8; 0 where it has none.
        hbm_gb_s: of its memory, 10⁹ bytes a second.
        memory_gib: as the driver reports it.
        domain: devices joined by fast links.
        fast_gb_s: of those links, in one direction, a device.
        network_gb_s: of the network between domains, in one direction, a device.
        shares: that kernels reach.
    """

    name: str
    tflops: float
    fp8_tflops: float
    hbm_gb_s: float
    memory_gib: float
    domain: int
    fast_gb_s: float
    network_gb_s: float
    shares: Shares


def _nvidia(
    name: str,
    memory_gib: float,
    network: tuple[int, float],
    shares: Shares,
    *,
    like: str | None = None,
) -> GpuSheet:
    """Return a sheet with the peaks and fast links of `cost_model.gpu.typed.sheets`, or of a device alike.

    Args:
        name: as `--gpu` takes it.
        memory_gib: as the driver reports it.
        network: devices joined by fast links, and 10⁹ bytes a second between such domains.
        shares: that kernels reach.
        like: the device whose peaks and links it has, where no kernels of its own were measured.
    """
    found = find_typed_sheet(like or name)
    domain, network_gb_s = network
    return GpuSheet(
        name=name,
        tflops=found.device.tensor_tflops,
        fp8_tflops=found.tflops_fp8,
        hbm_gb_s=found.device.bandwidth_gb_s,
        memory_gib=memory_gib,
        domain=domain,
        fast_gb_s=found.link_gb_s,
        network_gb_s=network_gb_s,
        shares=shares,
    )


_BLACKWELL = Shares(0.69, 0.62, 0.61, 0.68, BLACKWELL_SUSTAINED)
_GRACE_BLACKWELL = _BLACKWELL._replace(fast=0.63)
_AMD = Shares(0.55, 0.45, 0.40, 0.70, measured=False)

# A rack of 72 joined devices is used as 64, so that degrees that are powers of two stay within it.
GPU_SHEETS = {
    sheet.name: sheet
    for sheet in (
        _nvidia("a100", 79.2, (8, 25), Shares(0.91, 0.0, 0.55, 0.70)),
        _nvidia("h100", 79.6, (8, 50), Shares(0.78, 0.58, 0.63, 0.75)),
        _nvidia("h200", 140.4, (8, 50), Shares(0.75, 0.58, 0.62, 0.75)),
        _nvidia("b200", 179.0, (8, 50), _BLACKWELL),
        _nvidia("gb200", 185.0, (64, 50), _GRACE_BLACKWELL),
        _nvidia("b300", 268.6, (8, 100), _BLACKWELL._replace(measured=False), like="b200"),
        _nvidia("gb300", 277.0, (64, 100), _GRACE_BLACKWELL._replace(measured=False), like="gb200"),
        _nvidia("l40s", 45.0, (8, 25), Shares(0.62, 0.50, 0.50, 0.50)),
        _nvidia("rtx pro 6000", 95.6, (8, 50), Shares(0.80, 0.72, 0.55, 0.36)),
        GpuSheet(
            name="mi300x",
            tflops=1307,
            fp8_tflops=2615,
            hbm_gb_s=5300,
            memory_gib=191.7,
            domain=8,
            fast_gb_s=448,
            network_gb_s=50,
            shares=_AMD,
        ),
        GpuSheet(
            name="mi355x",
            tflops=2516,
            fp8_tflops=5033,
            hbm_gb_s=8000,
            memory_gib=288.0,
            domain=8,
            fast_gb_s=537,
            network_gb_s=50,
            shares=_AMD,
        ),
    )
}
"""By name. Source of peaks, memory and links: data sheets of NVIDIA and AMD."""


def find_sheet(name: str) -> GpuSheet:
    """Return the sheet of a GPU, however its name is separated.

    Raises:
        UsageError: none has that name; says which there are.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for known, sheet in GPU_SHEETS.items():
        if known.replace(" ", "") == plain:
            return sheet
    near = difflib.get_close_matches(name.lower(), GPU_SHEETS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? There are" if near else "choose one of"
    raise UsageError(f"--gpu {name[:60]!r} is not known; {hint} {', '.join(GPU_SHEETS)}")
