"""Targets of GPUs that TVM has no tag for, limits and data sheets of any GPU target, and other makers' GPUs.

One table of data sheets (`cost_model.gpu.devices`) says what a device is; here it becomes what a compiler is
told. For GPUs that are not NVIDIA's nothing here makes programs: TVM has code generators for OpenCL, Vulkan,
ROCm and Metal, but the build on PyPI brings no runtime for them (docs/gpu.md, "Other GPUs"). Checked in
tests/tuner/targets/test_gpu_targets.py and test_other_gpus.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from cost_model.errors import CostModelError
from cost_model.gpu.devices import COMPUTE_LIMITS, GPU_DEVICES, ComputeLimits, GpuDevice, find_gpu

_OWN_CODE = frozenset(("9.0", "10.0"))
"""Compute capabilities whose instructions for tensor cores no later device has, so that code names them."""

_VENDOR = "nvidia/"


def architecture(compute_capability: str) -> str:
    """Return the compiler's name for a compute capability, such as `sm_90a`."""
    suffix = "a" if compute_capability in _OWN_CODE else ""
    return f"sm_{compute_capability.replace('.', '')}{suffix}"


def compute_capability(architecture_name: str) -> str:
    """Return the compute capability of an architecture: `9.0` of `sm_90a`."""
    digits = re.sub(r"\D", "", architecture_name.partition("_")[2])
    return f"{digits[:-1]}.{digits[-1:]}"


def own_tags(tags_of_tvm: Collection[str]) -> dict[str, GpuDevice]:
    """Return a tag for each device with a data sheet that none of TVM's tags names, sorted."""
    named = {device.name for tag in tags_of_tvm if (device := sheet_of(tag)) is not None}
    return {_tag_of(device): device for device in GPU_DEVICES if device.name not in named}


def sheet_of(name: str) -> GpuDevice | None:
    """Return the data sheet of a tag, or of a driver's name for a device; None where none is known."""
    try:
        return find_gpu(name)
    except CostModelError:
        return None


def gpu_attributes(device: GpuDevice) -> dict[str, Any]:
    """Return TVM's attributes of a device, as its own tags have them."""
    limits = device.compute_limits
    return {
        "kind": "cuda",
        "arch": architecture(device.compute_capability),
        "l2_cache_size_bytes": int(device.l2_mib * 2**20),
        "max_num_threads": limits.threads_per_block,
        "max_shared_memory_per_block": limits.static_shared_bytes,
        "max_threads_per_block": limits.threads_per_block,
        "registers_per_block": limits.registers_per_block,
        "thread_warp_size": 32,
    }


def limits_of(attributes: Mapping[str, Any]) -> ComputeLimits:
    """Return what blocks on a GPU target may hold; without a table's entry, what its target says."""
    known = COMPUTE_LIMITS.get(compute_capability(str(attributes["arch"])))
    shared_bytes = int(attributes.get("max_shared_memory_per_block", 48 * 1024))
    return known or ComputeLimits(shared_bytes=shared_bytes)


def _tag_of(device: GpuDevice) -> str:
    words = device.name.lower().replace(" ", "-")
    return f"{_VENDOR}{'geforce-rtx' if words.isdigit() else 'nvidia'}-{words}"


_APIS = {
    "rocm": "ROCm",
    "hip": "ROCm",
    "opencl": "OpenCL",
    "vulkan": "Vulkan",
    "metal": "Metal",
    "mps": "Metal",
    "webgpu": "WebGPU",
    "sycl": "SYCL",
    "xpu": "SYCL",
    "level-zero": "SYCL",
}

_MAKERS = (
    (
        "AMD",
        r"amd/.*|.*\b(radeon|instinct)\b.*|(.*\b)?(mi\d{2,3}[axp]?|gfx[0-9a-f]{3,4}|rx-?\d{4}(-?xtx?)?)\b.*",
    ),
    (
        "Intel",
        r"intel/.*|.*\b(ponte[ -]vecchio|gaudi\d?|iris)\b.*|(.*\b)?arc[ -]?[ab]\d{3}\b.*",
    ),
    ("Apple", r"apple/.*-gpu.*"),
    ("Qualcomm", r"(.*/)?adreno.*"),
    ("Arm", r"(.*/)?mali.*"),
)


def other_gpu(text: str) -> str | None:
    """Return what a target's text names of other makers' GPUs, such as "a GPU of AMD"; None where nothing."""
    lowered = text.lower().strip()
    api = _APIS.get(re.split(r"[\s:]", lowered, maxsplit=1)[0])
    if api is not None:
        return f"a GPU by {api}"
    maker = next((maker for maker, names in _MAKERS if re.fullmatch(names, lowered)), None)
    return None if maker is None else f"a GPU of {maker}"
