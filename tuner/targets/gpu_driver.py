"""The GPU that this machine's driver lists, whether TVM can use it or not.

The driver's own command is asked, so that this works without CUDA's libraries. Checked in
tests/tuner/targets/test_gpu_driver.py.
"""

from __future__ import annotations

import csv
import shutil
import subprocess

import msgspec

_TIMEOUT_S = 20.0
_FIELDS = ("name", "compute_cap", "memory.total", "driver_version")


class DriverGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of a GPU.

    Attributes:
        name: its model.
        compute_capability: such as `9.0`.
    """

    name: str
    compute_capability: str
    memory_mib: int
    driver: str


def driver_gpus() -> tuple[DriverGpu, ...]:
    """Return the GPUs that the driver lists, in its order; none without a driver or its answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> tuple[DriverGpu, ...]:
    """Return the GPUs of the driver's table; a row that says something else is left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return tuple(
        DriverGpu(name=row[0], compute_capability=row[1], memory_mib=int(row[2]), driver=row[3])
        for row in rows
        if len(row) == len(_FIELDS) and row[1].replace(".", "").isdigit() and row[2].isdigit()
    )
