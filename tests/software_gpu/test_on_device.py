"""Runs the tests in `device_*.py` in a process on the software GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
