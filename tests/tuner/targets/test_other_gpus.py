"""GPUs of other makers are refused by name, and what is known is not."""

from __future__ import annotations

import pytest

from tuner.errors import UnknownNameError
from tuner.targets.gpu_targets import other_gpu
from tuner.targets.resolution import known_targets, resolve_target


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("rocm", "a GPU by ROCm"),
        ("rocm -mcpu=gfx942", "a GPU by ROCm"),
        ("opencl", "a GPU by OpenCL"),
        ("vulkan", "a GPU by Vulkan"),
        ("vulkan -from_device=0", "a GPU by Vulkan"),
        ("metal:0", "a GPU by Metal"),
        ("amd/instinct-mi300x", "a GPU of AMD"),
        ("MI250", "a GPU of AMD"),
        ("gfx90a", "a GPU of AMD"),
        ("radeon-rx-7900-xtx", "a GPU of AMD"),
        ("intel/arc-a770", "a GPU of Intel"),
        ("arc b580", "a GPU of Intel"),
        ("gaudi2", "a GPU of Intel"),
        ("apple/m1-gpu", "a GPU of Apple"),
        ("qcom/adreno-opencl", "a GPU of Qualcomm"),
    ],
)
def test_other_gpus_are_refused_with_the_page_that_says_why(text: str, what: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"is {what}.*docs/gpu\.md"):
        resolve_target(text)


def test_no_known_target_is_taken_for_one() -> None:
    assert [name for name in known_targets() if other_gpu(name) is not None] == []


def test_a_misspelt_name_is_still_helped() -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        resolve_target("nvidia/nvidia-h10")
