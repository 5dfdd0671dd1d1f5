"""Devices that TVM has no tag for become the targets that its own tags would be."""

from __future__ import annotations

import json

import pytest
import tvm

from cost_model.gpu.devices import COMPUTE_LIMITS, GPU_DEVICES, find_gpu
from tuner.targets.gpu_targets import (
    architecture,
    compute_capability,
    gpu_attributes,
    limits_of,
    own_tags,
    sheet_of,
)
from tuner.targets.resolution import gpu_difference, known_targets, resolve_target, tvm_target

pytestmark = pytest.mark.tvm

TAGS = [str(tag) for tag in tvm.target.list_tags() if str(tvm.target.Target(tag).kind) == "cuda"]


@pytest.mark.parametrize("name", [tag for tag in TAGS if sheet_of(tag) is not None])
def test_our_attributes_of_a_device_are_those_of_tvms_tag(name: str) -> None:
    """TVM's tags are an independent table: where both know a device, they agree."""
    device = find_gpu(name)
    ours, theirs = gpu_attributes(device), json.loads(resolve_target(name).tvm_json)
    assert ours["arch"] == theirs["arch"]
    for key in ("thread_warp_size", "max_threads_per_block", "registers_per_block"):
        assert ours[key] == theirs.get(key, ours[key])
    assert ours["max_shared_memory_per_block"] == theirs["max_shared_memory_per_block"]


@pytest.mark.parametrize("name", ["nvidia/nvidia-h200", "nvidia/nvidia-b200", "nvidia/nvidia-l4"])
def test_a_device_without_a_tag_of_tvm_has_one(name: str) -> None:
    assert name not in TAGS
    target = resolve_target(name)
    assert str(tvm_target(target).attrs["arch"]) == architecture(find_gpu(name).compute_capability)
    assert name in known_targets()


def test_no_device_has_two_tags_that_say_the_same() -> None:
    tags = own_tags(TAGS)
    assert not set(tags) & set(TAGS)
    assert all(sheet_of(tag) == device for tag, device in tags.items())
    assert {device.name for device in tags.values()} | {
        sheet.name for tag in TAGS if (sheet := sheet_of(tag))
    } == {device.name for device in GPU_DEVICES}


def test_no_gpu_target_gets_the_compilers_default_architecture() -> None:
    """A target without an architecture is built for sm_50, which no tag above that may become."""
    for name in known_targets()[2:]:
        if name.startswith("nvidia/") and sheet_of(name) is not None:
            capability = compute_capability(json.loads(resolve_target(name).tvm_json)["arch"])
            assert capability == find_gpu(name).compute_capability


@pytest.mark.parametrize(
    ("tag", "device_name", "same"),
    [
        ("nvidia/nvidia-a100-sxm-40gb", "NVIDIA A100-SXM4-40GB", True),
        ("nvidia/nvidia-a100-sxm-40gb", "NVIDIA A100 80GB PCIe", False),
        ("nvidia/nvidia-h100-pcie", "NVIDIA H100 PCIe", True),
        ("nvidia/nvidia-h100-pcie", "NVIDIA H100 80GB HBM3", False),
        ("nvidia/nvidia-h100-nvl", "NVIDIA H100 NVL", True),
        ("nvidia/nvidia-h200", "NVIDIA H200", True),
        ("nvidia/nvidia-b200", "NVIDIA B200", True),
        ("nvidia/geforce-rtx-5090", "NVIDIA GeForce RTX 5090", True),
    ],
)
def test_our_tag_is_measured_on_the_device_of_its_data_sheet_only(
    tag: str, device_name: str, same: bool
) -> None:
    wanted = json.loads(resolve_target(tag).tvm_json)
    difference = gpu_difference(tag, wanted, {"arch": wanted["arch"], "device_name": device_name})
    assert (difference is None) == same


def test_limits_are_those_of_the_compute_capability_or_of_the_target() -> None:
    assert limits_of(json.loads(resolve_target("nvidia/nvidia-h200").tvm_json)).shared_bytes == 227 * 1024
    old = json.loads(resolve_target("nvidia/quadro-m2000").tvm_json)
    assert compute_capability(old["arch"]) not in COMPUTE_LIMITS
    assert limits_of(old).shared_bytes == old["max_shared_memory_per_block"]
