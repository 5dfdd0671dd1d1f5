"""The software GPU of a test session, and what tests on it have to report.

Files named `device_*.py` are tests that run in a process on the device, which `test_on_device.py` starts: a
process finds CUDA's libraries when it begins or never.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.software_gpu.build import build, obstacle
from tests.harness.software_gpu.cuda_calls import forget_error


@pytest.fixture(scope="session")
def software_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that use the device; all processes of the session share one."""
    if (reason := obstacle()) is not None:
        pytest.skip(f"no software GPU here: {reason}")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "software-gpu"
    folder = Path(os.environ.get("SOFTWARE_GPU_KEPT", folder))  # kernels of earlier sessions are used again
    folder.mkdir(exist_ok=True, parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(folder)


def _take_reports() -> str:
    path = Path(os.environ["SOFTWARE_GPU_REPORTS"])
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


@pytest.fixture
def reports() -> Callable[[], str]:
    """Return what a test on the device calls to take what was reported since the last call."""
    return _take_reports


@pytest.fixture(autouse=True)
def _nothing_reported(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test on the device that leaves a report."""
    yield
    if request.path.name.startswith("device_"):
        forget_error()  # so that no other test fails of it
        assert _take_reports() == ""
