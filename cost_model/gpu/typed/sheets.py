"""What data sheets say of GPUs beside `cost_model.gpu.devices`: peaks in 8 and 4 bits, links of a node.

Checked in tests/cost_model/gpu/typed/test_analytic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cost_model.errors import CostModelError
from cost_model.gpu.devices import GpuDevice, find_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSheet:
    """A GPU with what its kernels by data type need.

    Attributes:
        device: the common part.
        tflops_fp8, tflops_int8, tflops_fp4: dense peaks, 10¹² operations a second; 0 where it has none.
        link_gb_s: to other GPUs of a node, in one direction.
        has_switch: whether those links are NVLink behind switches, rather than PCIe.
        generation: of its architecture.
    """

    device: GpuDevice
    tflops_fp8: float
    tflops_int8: float
    tflops_fp4: float
    link_gb_s: float
    has_switch: bool
    generation: str

    def tflops(self, dtype: str) -> float:
        """Return the dense peak of products in a type.

        Raises:
            CostModelError: the GPU multiplies no such numbers.
        """
        peak = {"int8": self.tflops_int8, "nvfp4": self.tflops_fp4}.get(dtype, self.device.tensor_tflops)
        if dtype.startswith("fp8"):
            peak = self.tflops_fp8
        if not peak:
            raise CostModelError(
                f"{self.device.name} has no products in {dtype}; choose another data type or GPU"
            )
        return peak


def _sheet(
    name: str,
    generation: str,
    peaks: tuple[float, float, float],
    link_gb_s: float,
    *,
    has_switch: bool = True,
) -> GpuSheet:
    return GpuSheet(
        device=find_gpu(name),
        tflops_fp8=peaks[0],
        tflops_int8=peaks[1],
        tflops_fp4=peaks[2],
        link_gb_s=link_gb_s,
        has_switch=has_switch,
        generation=generation,
    )


GPU_SHEETS: Mapping[str, GpuSheet] = MappingProxyType(
    {
        sheet.device.name: sheet
        for sheet in (
            _sheet("A100 SXM 80GB", "Ampere", (0, 624, 0), 300),
            _sheet("L40S", "Ada", (733, 733, 0), 32, has_switch=False),
            _sheet("H100 SXM", "Hopper", (1979, 1979, 0), 450),
            _sheet("H200", "Hopper", (1979, 1979, 0), 450),
            _sheet("B200", "Blackwell", (4500, 4500, 9000), 900),
            _sheet("GB200", "Blackwell", (5000, 5000, 10000), 900),
            _sheet("RTX PRO 6000", "RTX Blackwell", (1007, 1007, 2015), 64, has_switch=False),
        )
    }
)
"""By the device's name. Source: NVIDIA's data sheets; halves of figures that count sparsity."""


def find_sheet(name: str) -> GpuSheet:
    """Return the sheet of a GPU by any of its names, such as `h100` or `NVIDIA GB200`.

    Raises:
        CostModelError: it has none here; says which have.
    """
    try:
        sheet = GPU_SHEETS.get(find_gpu(name).name)
    except CostModelError:
        sheet = None
    if sheet is None:
        raise CostModelError(
            f"no kernels by data type are known for a GPU named {name[:80]!r}; name one of "
            f"{', '.join(GPU_SHEETS)}"
        )
    return sheet
