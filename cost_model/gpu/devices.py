"""Data sheets of GPUs: multiprocessors, clock, memory bandwidth, second-level cache.

A prediction for a device that is not here needs no more than this, and the targets of devices that TVM has no
tag for are made from it (`tuner.targets.gpu_targets`). Clocks are boost clocks; devices with a
low power limit (L4, T4, P4) do not hold them under load. Checked in
tests/cost_model/gpu/test_devices.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from cost_model.errors import CostModelError


class ComputeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What devices of one compute capability allow; a kernel beyond it is not launched.

    Attributes:
        threads_per_block: most threads of a block.
        registers_per_block: 32-bit registers that all threads of a block share.
        registers_per_thread: most registers of one thread.
        static_shared_bytes: shared memory that a kernel may declare.
        shared_bytes: shared memory that a block may ask for at launch.
    """

    threads_per_block: int = 1024
    registers_per_block: int = 65536
    registers_per_thread: int = 255
    static_shared_bytes: int = 48 * 1024
    shared_bytes: int


COMPUTE_LIMITS: Mapping[str, ComputeLimits] = MappingProxyType(
    {
        capability: ComputeLimits(shared_bytes=kib * 1024)
        for capability, kib in {
            "6.0": 48,
            "6.1": 48,
            "7.0": 96,
            "7.5": 64,
            "8.0": 163,
            "8.6": 99,
            "8.9": 99,
            "9.0": 227,
            "10.0": 227,
            "12.0": 99,
        }.items()
    }
)
"""Limits by compute capability.

Source: NVIDIA, CUDA C++ Programming Guide, technical specifications by compute capability.
"""


class GpuDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model of GPU.

    Attributes:
        name: as its vendor writes it, without the vendor.
        compute_capability: of CUDA.
        num_multiprocessors: streaming multiprocessors that are enabled.
        lanes: float32 lanes of each, two operations a cycle each.
        clock_mhz: boost clock.
        bandwidth_gb_s: of the device's memory, 10⁹ bytes a second.
        l2_mib: second-level cache.
        memory_gib: of the device.
        tensor_tflops: dense float16 products with float32 sums on tensor cores, 10¹² operations a second; 0
            where it has none.
        watts: power that the board may draw; the less of it for each operation, the less of its boost clock
            a device holds under load.
    """

    name: str
    compute_capability: str
    num_multiprocessors: int
    lanes: int
    clock_mhz: int
    bandwidth_gb_s: float
    l2_mib: float
    memory_gib: float
    tensor_tflops: float
    watts: int

    @property
    def compute_limits(self) -> ComputeLimits:
        """What one block and one multiprocessor may hold."""
        return COMPUTE_LIMITS[self.compute_capability]

    @property
    def peak_gflops(self) -> float:
        """Float32 operations without tensor cores, 10⁹ a second."""
        return 2 * self.num_multiprocessors * self.lanes * self.clock_mhz / 1000

    @property
    def l2_bandwidth_gb_s(self) -> float:
        """What the second-level cache delivers: 64 bytes a cycle to each multiprocessor."""
        return 64 * self.num_multiprocessors * self.clock_mhz / 1000


def _device(
    name: str,
    capability: str,
    multiprocessors: tuple[int, int, int],
    memory: tuple[float, float, float],
    tensor_tflops_and_watts: tuple[float, int],
) -> GpuDevice:
    count, lanes, clock_mhz = multiprocessors
    bandwidth_gb_s, l2_mib, memory_gib = memory
    tensor_tflops, watts = tensor_tflops_and_watts
    return GpuDevice(
        name=name,
        compute_capability=capability,
        num_multiprocessors=count,
        lanes=lanes,
        clock_mhz=clock_mhz,
        bandwidth_gb_s=bandwidth_gb_s,
        l2_mib=l2_mib,
        memory_gib=memory_gib,
        tensor_tflops=tensor_tflops,
        watts=watts,
    )


GPU_DEVICES = (
    _device("P4", "6.1", (20, 128, 1114), (192, 2, 8), (0, 75)),
    _device("P100 PCIe", "6.0", (56, 64, 1329), (732, 4, 16), (0, 250)),
    _device("V100 SXM", "7.0", (80, 64, 1530), (900, 6, 32), (125, 300)),
    _device("V100 PCIe", "7.0", (80, 64, 1380), (900, 6, 32), (112, 250)),
    _device("T4", "7.5", (40, 64, 1590), (320, 4, 16), (65, 70)),
    _device("A100 SXM 80GB", "8.0", (108, 64, 1410), (2039, 40, 80), (312, 400)),
    _device("A100 SXM 40GB", "8.0", (108, 64, 1410), (1555, 40, 40), (312, 400)),
    _device("A100 PCIe 80GB", "8.0", (108, 64, 1410), (1935, 40, 80), (312, 300)),
    _device("A100 PCIe 40GB", "8.0", (108, 64, 1410), (1555, 40, 40), (312, 250)),
    _device("A10", "8.6", (72, 128, 1695), (600, 6, 24), (125, 150)),
    _device("A30", "8.0", (56, 64, 1440), (933, 24, 24), (165, 165)),
    _device("A40", "8.6", (84, 128, 1740), (696, 6, 48), (150, 300)),
    _device("L4", "8.9", (58, 128, 2040), (300, 48, 24), (121, 72)),
    _device("L40S", "8.9", (142, 128, 2520), (864, 96, 48), (362, 350)),
    _device("4090", "8.9", (128, 128, 2520), (1008, 72, 24), (165, 450)),
    _device("H100 SXM", "9.0", (132, 128, 1980), (3352, 50, 80), (989, 700)),
    _device("H100 PCIe", "9.0", (114, 128, 1755), (2039, 50, 80), (756, 350)),
    _device("H100 NVL", "9.0", (132, 128, 1785), (3938, 50, 94), (835, 400)),
    _device("H200", "9.0", (132, 128, 1980), (4800, 50, 141), (989, 700)),
    _device("B200", "10.0", (148, 128, 1965), (8000, 126, 180), (2250, 1000)),
    _device("GB200", "10.0", (152, 128, 2062), (8000, 126, 186), (2500, 1200)),
    _device("5090", "12.0", (170, 128, 2407), (1792, 96, 32), (210, 575)),
    _device("RTX PRO 6000", "12.0", (188, 128, 2617), (1597, 128, 96), (504, 600)),
)
"""Devices that a latency can be predicted for; of several variants the first is what a plain name stands for.

Source: NVIDIA's data sheets and architecture white papers.
"""

_FORMS = {"sxm2": "sxm", "sxm3": "sxm", "sxm4": "sxm", "sxm5": "sxm", "hbm3": "sxm"}
"""Words of drivers for the form that data sheets call SXM; H100s with HBM3 have it."""


_FORM_WORDS = frozenset(("pcie", "sxm", "nvl"))


def find_gpu(name: str) -> GpuDevice:
    """Return the device that a driver, TVM's tag or a person names so, such as `nvidia/nvidia-h100`.

    Raises:
        CostModelError: none that is known fits the name.
    """
    said = _words(name)
    for device in GPU_DEVICES:
        if all(_agree(said, word) for word in device.name.lower().split()):
            return device
    names = [device.name for device in GPU_DEVICES]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names
    raise CostModelError(
        f"no data sheet of a GPU named {name[:80]!r} is known; name one of {', '.join(near)}"
    )


def _agree(said: frozenset[str], word: str) -> bool:
    """Whether a name says a word of a device; of form and memory, whether it says nothing else."""
    if word.endswith("gb"):
        return word in said or not any(other[:-2].isdigit() and other.endswith("gb") for other in said)
    return word in said or (word in _FORM_WORDS and not said & _FORM_WORDS)


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[^a-z0-9]+", name.lower())
    return frozenset(_FORMS.get(word, word) for word in words)
