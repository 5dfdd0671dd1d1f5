"""Measure a device's peak rates: a large matrix product, a large copy, and an empty call.

The three are workloads of role `device` (`cost_model.roofline`), kept in the records like any other. Every
prediction starts from them, so a probe must not depend on what else the machine was doing. On a CPU they run
NumPy (whose BLAS is what large products run at best here) in a process of their own, with its threads pinned
before any library starts, and count processor time; on a GPU they run torch, and count wall-clock time.
They repeat until two rounds agree, and the calmest one of each probe is kept. A session measures them once
for each environment, and again, before or after its own measurements, where the fastest kernels on record
contradict them: that is how a probe that was taken beside other work, by an earlier version perhaps, is found
and superseded.
Checked in tests/tuner/targets/test_device_probe.py.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import threadpoolctl

from cost_model.dataset import device_key
from cost_model.roofline import (
    PROBE_COPY_ELEMENTS,
    PROBE_EXTENT,
    DeviceSpeed,
    ReachedSpeed,
    bandwidth_probe,
    call_probe,
    contradictions,
    device_speed,
    peak_probe,
    reached_speed,
    supported_speed,
)
from records import Environment, Match, Measurement, RecordStore, Status, Workload
from records.database.claims import claim_key, claimed
from tuner.errors import TunerError
from tuner.parent_watch import end_with_parent
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

Measure: TypeAlias = Callable[[], list[tuple[Workload, Measurement]]]
Probes: TypeAlias = dict[str, Callable[[], float]]
"""Of each probe by name, what takes one sample of it."""

BACKENDS_BY_KIND = {"cpu": ("numpy",), "cuda": ("torch", "tvm")}
"""What takes the probes, first choice first."""

SETTINGS_BY_KIND = {"cpu": "clock=processor", "cuda": ""}
"""How a probe was timed; one by the clock on the wall of a CPU tells of the machine's other work too."""

_MODULES = {
    "numpy": "tuner.targets.device_probe",
    "torch": "tuner.targets.device_probe",
    "tvm": "tuner.measuring.kernel_probe",
}
"""Of what takes the probes, what runs in the probing process."""

_OUT_OF_REACH = 3
"""Exit status of a probing process whose library does not reach the device."""

_MAX_ROUNDS = 4
_AGREEMENT = 0.05
"""Two rounds whose medians differ by less were both undisturbed, or disturbed alike all along."""

_MAX_TAKES = 3
"""Where probes taken so often are still contradicted, kernels are faster than NumPy or torch here."""

_NUM_SAMPLES = 7
_NUM_WARM_UP = 2
_CALLS_IN_SAMPLE = 1000
_TIMEOUT_S = 120.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def ensure_probed(
    store: RecordStore, *, target: Target, environment: Environment, measure: Measure | None = None
) -> int:
    """Measure the probes that the records lack for this environment, or contradict; return how many.

    Args:
        store: where probes are looked up and kept.
        environment: of the target, without any backend's versions.
        measure: measures all probes; `measure_probes` if None.

    Raises:
        TunerError: the probing process failed.
    """
    take = measure or (lambda: measure_probes(target=target, environment=environment))
    # Two processes that probe at once would also slow each other down.
    with claimed(store.claims, claim_key("probes", target=target.text, environment=environment)):
        missing = _num_takes(store, target, environment).count(0)
        if missing:
            store.append_many(take())
    return missing + settle_probes(store, target=target, environment=environment, measure=take)


def settle_probes(
    store: RecordStore, *, target: Target, environment: Environment, measure: Measure | None = None
) -> int:
    """Take the probes again while kernels on record contradict them; return how many were measured.

    Kernels that contradict a probe are measured after it, so a session asks at its end, too: the next one
    then finds all that it needs. Arguments are those of `ensure_probed`; the store has a take of every probe.

    Raises:
        TunerError: the probing process failed.
    """
    take = measure or (lambda: measure_probes(target=target, environment=environment))
    measured = 0
    while doubtful := probe_contradictions(store, target=target, environment=environment):
        if max(_num_takes(store, target, environment)) >= _MAX_TAKES:
            if measured:
                for sentence in doubtful:
                    logger.warning(
                        "the device's probes are too slow: %s; predictions start from the kernels", sentence
                    )
            break
        again = take()
        store.append_many(again)
        measured += len(again)
    return measured


def _num_takes(store: RecordStore, target: Target, environment: Environment) -> list[int]:
    """Return how often each probe was measured in this environment."""
    return [
        sum(
            len(
                store.find(
                    workload.fingerprint,
                    backend=backend,
                    settings=SETTINGS_BY_KIND[target.kind],
                    target=target.text,
                    environment=environment,
                )
            )
            for backend in BACKENDS_BY_KIND[target.kind]
        )
        for workload in probe_workloads().values()
    ]


def probe_contradictions(store: RecordStore, *, target: Target, environment: Environment) -> tuple[str, ...]:
    """Return, in a sentence each, which of the device's probes the records' kernels contradict."""
    probed, reached = _evidence(store, target, environment)
    return contradictions(probed, reached)


def known_speed(store: RecordStore, *, target: Target, environment: Environment) -> DeviceSpeed:
    """Return the device's speed: its fastest probes, or what kernels reached where they contradict them.

    Raises:
        CostModelError: a probe is missing.
    """
    return supported_speed(*_evidence(store, target, environment))


def _evidence(
    store: RecordStore, target: Target, environment: Environment
) -> tuple[DeviceSpeed, ReachedSpeed]:
    """Return what probes of this device and number of threads say, and what kernels reached on it."""
    probed = device_speed(
        record.measurement
        for record in store.iterate(role="device", target=target.text)
        if device_key(record.measurement.environment) == device_key(environment)
    )
    # The fastest record of each workload is enough, and far fewer than all.
    fastest = store.best(target=target.text, environment=environment, match=Match.COMPATIBLE)
    return probed, reached_speed(fastest)


def probe_workloads() -> dict[str, Workload]:
    """Return the probes by name."""
    return {"peak": peak_probe(), "bandwidth": bandwidth_probe(), "call": call_probe()}


def measure_probes(*, target: Target, environment: Environment) -> list[tuple[Workload, Measurement]]:
    """Measure every probe in a process of its own.

    Raises:
        TunerError: that process failed or took longer than two minutes.
    """
    for backend in BACKENDS_BY_KIND[target.kind]:
        samples = _samples(target, backend)
        if samples is not None:
            break
    else:
        raise TunerError(f"nothing here reaches {target.name} to probe it; run `tessel doctor`")
    return [
        (
            workload,
            Measurement(
                workload_fingerprint=workload.fingerprint,
                backend=backend,
                settings=SETTINGS_BY_KIND[target.kind],
                target=target.text,
                environment=environment,
                status=Status.OK,
                samples_us=tuple(samples[name]),
                measured_at=time.time(),
            ),
        )
        for name, workload in probe_workloads().items()
    ]


def _samples(target: Target, backend: str) -> Mapping[str, Sequence[float]] | None:
    """Return the samples that a probing process takes; None where its library does not reach the device."""
    threads = {variable: str(target.num_threads) for variable in _THREAD_VARIABLES}
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULES[backend], target.name, target.kind, str(os.getpid())],
            env={**os.environ, **threads},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode == _OUT_OF_REACH:
            return None
        if done.returncode:
            raise TunerError(
                f"the device probe of {target.name} failed ({_why(done)}); run `tessel doctor`, and try again"
            )
        return calmest(msgspec.json.decode(done.stdout, type=list[dict[str, list[float]]]))
    except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
        raise TunerError(
            f"the device probe of {target.name} failed ({error}); run `tessel doctor`, and try again"
        ) from error


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode == -signal.SIGKILL:
        return "it was killed, most likely because memory is short"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"status {done.returncode}{': ' + lines[-1].strip()[:200] if lines else ''}"


def calmest(rounds: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Sequence[float]]:
    """Return of each probe the samples of the round with the smallest median: disturbances only slow down."""
    return {name: min((each[name] for each in rounds), key=statistics.median) for name in rounds[0]}


def agree(rounds: Sequence[Mapping[str, Sequence[float]]]) -> bool:
    """Say whether each probe's two smallest medians are nearly equal, so that no further round is needed."""
    if len(rounds) < 2:
        return False
    for name in rounds[0]:
        first, second = sorted(statistics.median(each[name]) for each in rounds)[:2]
        if second > first * (1 + _AGREEMENT):
            return False
    return True


def sample_us(
    run: Callable[[], object],
    *,
    calls: int = 1,
    threads: int | None = 1,
    wait: Callable[[], object] = lambda: None,
    wall: Callable[[], float] = time.perf_counter,
    processor: Callable[[], float] = time.process_time,
) -> float:
    """Return the microseconds of one call.

    Args:
        threads: among how many threads the work is shared evenly, so that the processor's time over their
            number counts, unless the clock's is less; None where no processor here does the work.
        wait: returns when the device is done.
        wall: the clock, in seconds.
        processor: time of all threads of this process on a processor, in seconds.
    """
    wall_start, processor_start = wall(), processor()
    for _ in range(calls):
        run()
    wait()
    elapsed_s, busy_s = wall() - wall_start, processor() - processor_start
    if threads is not None and busy_s > 0:
        elapsed_s = min(elapsed_s, busy_s / threads)
    return elapsed_s * 1e6 / calls


def _probe_cpu() -> Probes:
    rng = np.random.default_rng(0)
    left, right = (rng.random((PROBE_EXTENT, PROBE_EXTENT), dtype=np.float32) for _ in range(2))
    product = np.empty_like(left)
    source, target = np.ones(PROBE_COPY_ELEMENTS, np.float32), np.empty(PROBE_COPY_ELEMENTS, np.float32)
    one, other = np.ones(1, np.float32), np.empty(1, np.float32)
    found = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    blas_threads = max((library["num_threads"] for library in found), default=1)
    return {
        "peak": lambda: sample_us(lambda: np.matmul(left, right, out=product), threads=blas_threads),
        "bandwidth": lambda: sample_us(lambda: np.copyto(target, source)),
        "call": lambda: sample_us(lambda: np.copyto(other, one), calls=_CALLS_IN_SAMPLE),
    }


def _probe_cuda() -> Probes:
    try:
        torch = importlib.import_module("torch")  # the extra `torch`, asked for by name where there is a GPU
    except ImportError:
        sys.exit(_OUT_OF_REACH)
    if not torch.cuda.is_available():  # a build for CPUs, or for another driver
        sys.exit(_OUT_OF_REACH)
    left, right = (torch.rand(PROBE_EXTENT, PROBE_EXTENT, device="cuda") for _ in range(2))
    source = torch.ones(PROBE_COPY_ELEMENTS, device="cuda")
    target, one, other = torch.empty_like(source), source[:1], torch.empty_like(source[:1])
    sample = functools.partial(sample_us, threads=None, wait=torch.cuda.synchronize)
    # One by one, calls would be held up by the host: kernels in a row take less than torch needs for a call.
    other.copy_(one)
    torch.cuda.synchronize()
    calls = torch.cuda.CUDAGraph()
    with torch.cuda.graph(calls):
        for _ in range(_CALLS_IN_SAMPLE):
            other.copy_(one)
    return {
        "peak": lambda: sample(lambda: torch.matmul(left, right), calls=10),
        "bandwidth": lambda: sample(lambda: target.copy_(source), calls=10),
        "call": lambda: sample(calls.replay) / _CALLS_IN_SAMPLE,
    }


def answer_with(probes_of: Callable[[], Probes], *, parent: int) -> None:
    """Take samples of all probes, round by round until two agree, and print them as JSON.

    Args:
        probes_of: makes the probes.
        parent: the process that asked; with it, this one ends.
    """
    # What asked may be killed meanwhile, and the next one is not to be disturbed by what it left behind.
    end_with_parent(parent)
    sys.stdout.buffer.write(msgspec.json.encode(_rounds(probes_of())))


def _rounds(probes: Probes) -> list[dict[str, list[float]]]:
    """Return samples of all probes, round by round until two agree."""
    rounds: list[dict[str, list[float]]] = []
    while len(rounds) < _MAX_ROUNDS and not agree(rounds):
        rounds.append(
            {
                name: [sample() for _ in range(_NUM_WARM_UP + _NUM_SAMPLES)][_NUM_WARM_UP:]
                for name, sample in probes.items()
            }
        )
    return rounds


if __name__ == "__main__":
    answer_with({"cpu": _probe_cpu, "cuda": _probe_cuda}[sys.argv[2]], parent=int(sys.argv[3]))
