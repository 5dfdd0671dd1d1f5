"""Runs the tests in `device_*.py` in a process on the software GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.software_gpu.build import build, obstacle

FILES = sorted(map(str, Path(__file__).parent.glob("device_*.py")))


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_on_the_software_gpu(marks: str, software_gpu: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", marks]
    reports = {"SOFTWARE_GPU_REPORTS": f"{software_gpu['SOFTWARE_GPU']}/reports-{os.getpid()}"}
    done = subprocess.run(
        [*command, *FILES],
        env={**os.environ, **software_gpu, **reports},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_the_device_is_built_once_a_session(software_gpu: dict[str, str]) -> None:
    folder = Path(software_gpu["SOFTWARE_GPU"])
    written = (folder / "lib" / "libcudart.so.13").stat().st_mtime_ns
    assert build(folder) == software_gpu
    assert (folder / "lib" / "libcudart.so.13").stat().st_mtime_ns == written


def test_without_a_compiler_its_tests_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert obstacle() == "there is no g++"
