"""The driver's table of GPUs is read, and what it says instead of one is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.targets.gpu_driver import DriverGpu, driver_gpus, parse_gpus

TABLE = "NVIDIA H200, 9.0, 143771, 580.95.05\nNVIDIA GeForce RTX 4090, 8.9, 24564, 580.95.05\n"


def test_each_row_is_a_gpu() -> None:
    first, second = parse_gpus(TABLE)
    assert first == DriverGpu(
        name="NVIDIA H200", compute_capability="9.0", memory_mib=143771, driver="580.95.05"
    )
    assert second.compute_capability == "8.9"


@pytest.mark.parametrize("text", ["", "No devices were found\n", "NVIDIA H200, [N/A], [N/A], 1\n"])
def test_what_is_no_gpu_is_left_out(text: str) -> None:
    assert parse_gpus(text) == ()


@pytest.mark.parametrize(("script", "count"), [(f"printf '{TABLE}'", 2), ("exit 9", 0)])
def test_the_drivers_command_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    assert len(driver_gpus()) == count
    command.write_text(f"#!/bin/sh\nprintf '{TABLE}'\n")
    assert len(driver_gpus()) == 2  # a driver that did not answer is asked again
