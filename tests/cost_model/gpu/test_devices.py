"""Names of drivers, of TVM's tags and of people find the same data sheet."""

import pytest

from cost_model.errors import CostModelError
from cost_model.gpu.devices import GPU_DEVICES, find_gpu


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Tesla P100-PCIE-16GB", "P100 PCIe"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("nvidia/tesla-v100", "V100 SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("nvidia/nvidia-a100", "A100 SXM 80GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("nvidia/geforce-rtx-4090", "4090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GeForce RTX 5090", "5090"),
        ("NVIDIA A30", "A30"),
        ("nvidia/nvidia-h100", "H100 SXM"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_a_name_finds_its_data_sheet(name: str, found: str) -> None:
    assert find_gpu(name).name == found


def test_every_device_finds_itself_and_an_unknown_one_nothing() -> None:
    assert all(find_gpu(device.name) == device for device in GPU_DEVICES)
    for name in ("MI250", "", "A1000", "GeForce"):
        with pytest.raises(CostModelError, match="no data sheet of a GPU named"):
            find_gpu(name)


def test_derived_speeds_are_those_of_the_data_sheets() -> None:
    """Float32 without tensor cores, as NVIDIA prints them: TFLOPS."""
    published = {
        "P100 PCIe": 9.3,
        "V100 PCIe": 14.0,
        "A100 SXM 80GB": 19.5,
        "L4": 30.3,
        "H100 SXM": 67.0,
        "T4": 8.1,
    }
    for name, tflops in published.items():
        assert find_gpu(name).peak_gflops / 1e3 == pytest.approx(tflops, rel=0.03), name
