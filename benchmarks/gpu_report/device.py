"""One interface to what is measured: a GPU by its own events, or a core of a CPU by the time on it.

Every step of the report runs the same code on either, so that only the methods of `CudaDevice` are new where
there is a GPU. The device's clocks and temperature are read, never set.
"""

from __future__ import annotations

import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch

from benchmarks.simulator.provenance import processor

Run: TypeAlias = Callable[[], Any]

FLUSHED_BYTES = 256 * 2**20
"""Written between two executions on a GPU: more than any second-level cache holds."""

FLUSHED_BYTES_CPU = 32 * 2**20

_STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_STATE_NAMES = ("clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")


class Device(Protocol):
    """What programs are run on, and by which they are timed."""

    @property
    def name(self) -> str:
        """As torch has it: `cuda` or `cpu`."""
        ...

    def describe(self) -> dict[str, str]:
        """Return its model, driver and the libraries' versions."""
        ...

    def state(self) -> dict[str, float]:
        """Return clocks, temperature and power as they are now; what cannot be read is left out."""
        ...

    def time_us(self, run: Run) -> float:
        """Return microseconds of one execution by the device's own clock."""
        ...

    def flush(self) -> None:
        """Overwrite what the caches hold."""
        ...

    def capture(self, run: Run) -> Run:
        """Return what launches a program as one graph; the program itself where there are no graphs."""
        ...

    def peak_bytes(self, run: Run) -> int:
        """Return how much more memory is held at most during an execution than before it."""
        ...

    def synchronize(self) -> None:
        """Return when everything that was launched is done."""
        ...


class CpuDevice:
    """One core of this machine's processor, by its own clock: what else runs there is not counted."""

    name = "cpu"

    def __init__(self) -> None:
        torch.set_num_threads(1)  # several that spin tell more of the machine's other work than of a step
        self._flushed = torch.empty(FLUSHED_BYTES_CPU, dtype=torch.uint8)

    def describe(self) -> dict[str, str]:
        """Return the processor and versions."""
        return {"device": processor(), "driver": platform.release(), "torch": torch.__version__}

    def state(self) -> dict[str, float]:
        """Return nothing: its clock is the operating system's affair."""
        return {}

    def time_us(self, run: Run) -> float:
        """Return microseconds of this process on the processor."""
        start = time.process_time()
        run()
        return (time.process_time() - start) * 1e6

    def flush(self) -> None:
        """Write more than its caches hold."""
        self._flushed.fill_(1)

    def capture(self, run: Run) -> Run:
        """Return the program: a CPU has no launches to save."""
        return run

    def peak_bytes(self, run: Run) -> int:
        """Return the growth of the process's largest resident size, in the kernel's units."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

    def synchronize(self) -> None:
        """Return at once."""


class CudaDevice:
    """This machine's first GPU."""

    name = "cuda"

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")

    def describe(self) -> dict[str, str]:
        """Return the GPU, its driver and versions."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "multiprocessors": str(properties.multi_processor_count),
            "memory": f"{properties.total_memory / 2**30:.1f} GiB",
            "driver": _query("driver_version")[0] if _query("driver_version") else "unknown",
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
        }

    def state(self) -> dict[str, float]:
        """Return what the driver reads of the GPU."""
        values = _query(*_STATE)
        return {
            name: float(value)
            for name, value in zip(_STATE_NAMES, values, strict=False)
            if value.replace(".", "", 1).isdigit()
        }

    def time_us(self, run: Run) -> float:
        """Return microseconds between two events around the program in its stream."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def flush(self) -> None:
        """Write more than the second-level cache holds."""
        self._flushed.fill_(1)

    def capture(self, run: Run) -> Run:
        """Return the replay of a CUDA graph of the program."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def peak_bytes(self, run: Run) -> int:
        """Return what torch's allocator held at most beyond what it held before."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()


def device_named(name: str) -> Device:
    """Return the device.

    Raises:
        SystemExit: it is not here; says what to do.
    """
    if name == "cpu":
        return CpuDevice()
    if not torch.cuda.is_available():
        raise SystemExit(
            "--target cuda needs a GPU that torch can use, and none was found; install a CUDA build of "
            "torch, or try the same steps with --target cpu --sizes small"
        )
    return CudaDevice()


def _query(*fields: str) -> list[str]:
    """Return what the driver's command says of the first GPU; nothing where it does not run."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return [value.strip() for value in done.stdout.strip().split(",")] if done.returncode == 0 else []
