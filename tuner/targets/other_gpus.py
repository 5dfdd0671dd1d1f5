"""GPUs that are not NVIDIA's, by the names that people give them: nothing here makes programs for them.

TVM has code generators for OpenCL, Vulkan, ROCm and Metal, but the build on PyPI brings no runtime for them
(docs/gpu.md, "Other GPUs"). Checked in tests/tuner/targets/test_other_gpus.py.
"""

from __future__ import annotations

import re

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
