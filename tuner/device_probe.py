"""Measure what a device can do at best: a large matrix product, a large copy, and a tiny call.

The three are workloads of role `device` (`cost_model.roofline`), kept in the records like any other and
measured once for each environment. On a CPU they run NumPy (whose BLAS is what large products run at best
here) in a process of their own, with its threads pinned before any library starts; on a GPU they run torch.
Checked in tests/tuner/test_device_probe.py.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from cost_model.roofline import (
    PROBE_COPY_ELEMENTS,
    PROBE_EXTENT,
    bandwidth_probe,
    call_probe,
    peak_probe,
)
from records import Environment, Measurement, RecordStore, Status, Workload
from tuner.errors import TunerError
from tuner.target import Target

BACKEND_BY_KIND = {"cpu": "numpy", "cuda": "torch"}

_NUM_SAMPLES = 11
_NUM_WARM_UP = 3
_CALLS_IN_SAMPLE = 1000
_TIMEOUT_S = 120.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def ensure_probed(store: RecordStore, *, target: Target, environment: Environment) -> int:
    """Measure the probes that the records lack for this environment; return how many that were.

    Raises:
        TunerError: the probing process failed.
    """
    backend = BACKEND_BY_KIND[target.kind]
    missing = [
        workload
        for workload in probe_workloads().values()
        if store.find_latest(
            workload.fingerprint, backend=backend, target=target.text, environment=environment
        )
        is None
    ]
    if missing:
        store.append_many(measure_probes(target=target, environment=environment))
    return len(missing)


def probe_workloads() -> dict[str, Workload]:
    """Return the probes by name."""
    return {"peak": peak_probe(), "bandwidth": bandwidth_probe(), "call": call_probe()}


def measure_probes(*, target: Target, environment: Environment) -> list[tuple[Workload, Measurement]]:
    """Measure every probe in a process of its own.

    Raises:
        TunerError: that process failed or took longer than two minutes.
    """
    threads = {variable: str(target.num_threads) for variable in _THREAD_VARIABLES}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tuner.device_probe", target.kind],
            env={**os.environ, **threads},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        samples = msgspec.json.decode(done.stdout, type=dict[str, list[float]])
    except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise TunerError(
            f"the device probe of {target.name} failed ({error}); run `tessel doctor`, and try again"
        ) from error
    return [
        (
            workload,
            Measurement(
                workload_fingerprint=workload.fingerprint,
                backend=BACKEND_BY_KIND[target.kind],
                target=target.text,
                environment=environment,
                status=Status.OK,
                samples_us=tuple(samples[name]),
                measured_at=time.time(),
            ),
        )
        for name, workload in probe_workloads().items()
    ]


def _probe_cpu() -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    left, right = (rng.random((PROBE_EXTENT, PROBE_EXTENT), dtype=np.float32) for _ in range(2))
    product = np.empty_like(left)
    source, target = np.ones(PROBE_COPY_ELEMENTS, np.float32), np.empty(PROBE_COPY_ELEMENTS, np.float32)
    one, other = np.ones(1, np.float32), np.empty(1, np.float32)
    return {
        "peak": _samples_us(lambda: np.matmul(left, right, out=product)),
        "bandwidth": _samples_us(lambda: np.copyto(target, source)),
        "call": _samples_us(lambda: np.copyto(other, one), calls=_CALLS_IN_SAMPLE),
    }


def _probe_cuda() -> dict[str, list[float]]:
    torch = importlib.import_module("torch")  # the extra `torch`, asked for by name where there is a GPU
    left, right = (torch.rand(PROBE_EXTENT, PROBE_EXTENT, device="cuda") for _ in range(2))
    source = torch.ones(PROBE_COPY_ELEMENTS, device="cuda")
    target, one, other = torch.empty_like(source), source[:1], torch.empty_like(source[:1])
    wait = torch.cuda.synchronize
    return {
        "peak": _samples_us(lambda: torch.matmul(left, right), calls=10, wait=wait),
        "bandwidth": _samples_us(lambda: target.copy_(source), calls=10, wait=wait),
        "call": _samples_us(lambda: other.copy_(one), calls=_CALLS_IN_SAMPLE, wait=wait),
    }


def _samples_us(
    run: Callable[[], object], *, calls: int = 1, wait: Callable[[], object] = lambda: None
) -> list[float]:
    samples = []
    for repeat in range(_NUM_WARM_UP + _NUM_SAMPLES):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        if repeat >= _NUM_WARM_UP:
            samples.append((time.perf_counter() - start) * 1e6 / calls)
    return samples


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode({"cpu": _probe_cpu, "cuda": _probe_cuda}[sys.argv[1]]()))
