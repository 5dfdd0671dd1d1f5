"""Environment of programs: the device, its driver, the threads used, and versions of what compiles and runs.

Every measurement carries its environment, so that none is taken for another machine's or another release's.
Checked in tests/tuner/targets/test_resolution.py.
"""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import tvm

from records import Environment
from tuner.backends.protocol import Backend
from tuner.targets.resolution import cpu_model, num_physical_cores
from tuner.targets.target import Target


def environment_of(target: Target, *backends: Backend | None) -> Environment:
    """Return where programs for the target run from here, as their measurements record it.

    Args:
        target: as resolved on this machine.
        backends: what lowers the program (None stands for TVM alone); the versions of what each brings along
            belong to its records only, so that a new release of one library does not put another's
            measurements aside.
    """
    versions = {name: importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    for backend in backends:
        versions.update(backend.versions() if backend is not None else ())
    device_model, num_cores, driver = _gpu() if target.kind == "cuda" else _cpu()
    return Environment(
        device_kind=target.kind,
        device_model=device_model,
        num_cores=num_cores,
        num_threads=target.num_threads,
        driver=driver,
        versions=tuple(sorted(versions.items())),
    )


def _cpu() -> tuple[str, int, str]:
    """Return the processor's name, its cores, and the kernel that schedules them."""
    return cpu_model(), num_physical_cores(), platform.release()


def _gpu() -> tuple[str, int, str]:
    """Return the GPU's name, its multiprocessors, and its driver's version."""
    device = tvm.cuda(0)
    if not device.exist:
        return "not on this machine", 0, "none"
    return str(device.device_name), int(device.multi_processor_count), _driver_version()


def _driver_version() -> str:
    """Return the NVIDIA kernel module's version as the kernel lists it."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), first)
