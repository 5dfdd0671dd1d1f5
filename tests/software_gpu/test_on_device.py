"""Runs the tests in `device_*.py`, each file in a process on the software GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(path.stem for path in HERE.glob("device_*.py"))


def run_file(name: str, software_gpu: dict[str, str], marks: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", marks]
    reports = {"SOFTWARE_GPU_REPORTS": f"{software_gpu['SOFTWARE_GPU']}/reports-{name}-{os.getpid()}"}
    done = subprocess.run(
        [*command, str(HERE / f"{name}.py")],
        env={**os.environ, **software_gpu, **reports},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 5 and marks == "slow":
        pytest.skip("it has no slow tests")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


@pytest.mark.parametrize("name", FILES)
def test_on_the_software_gpu(name: str, software_gpu: dict[str, str]) -> None:
    run_file(name, software_gpu, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_all_on_the_software_gpu(name: str, software_gpu: dict[str, str]) -> None:
    run_file(name, software_gpu, "slow")
