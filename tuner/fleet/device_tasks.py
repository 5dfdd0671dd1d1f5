"""What a machine of a fleet does when it is asked: say what it is, and measure, one program at a time.

These functions run in a Dask worker. Programs are built and timed in the measuring process that local tuning
uses too, which survives candidates that crash or hang; it is kept between tasks. Checked in
tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from records import Environment
from tuner.backends.environment import environment_of
from tuner.backends.registry import available_backends, backends_for
from tuner.errors import TunerError
from tuner.fleet.documents import (
    Answered,
    Ask,
    Candidate,
    Identity,
    Machine,
    Measured,
    Probe,
    Probed,
    Query,
    RaceEnded,
    RaceOf,
    Refused,
    Result,
    Task,
)
from tuner.measuring.messages import ArrayInfo, Done, Failed, Ran, Run, Time, Timed, why_failed
from tuner.measuring.race import race
from tuner.measuring.raced_programs import RunningPrograms
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.device_probe import measure_probes
from tuner.targets.resolution import measuring_obstacle, resolve_target
from tuner.targets.target import Target

DEVICE = "device"
"""Dask resource of which each machine has one and each task takes it, so that one program runs at a time."""

THREADS = "threads"
"""Dask resource that says with how many threads a machine measures; nothing takes it."""

ALIKE = "alike-"
"""How the name of the Dask resource begins that machines have which are alike."""

FORK_SERVER = "TESSEL_FORK_SERVER"
"""Environment variable of a worker: the socket of the server that forks its measuring processes, if there is
one. They have the worker's own number of threads."""

_BUSY = threading.Lock()
"""Held while a task runs. Dask's resources see to it already; this holds where somebody starts a worker
without them."""

_KEYS = itertools.count()
"""What the measuring process knows programs by: two tuners' own keys could be equal."""

_COUNTS: Counter[str] = Counter()

_STARTED = time.time()


def identity(query: Query, *, resource: str = "") -> Identity:
    """Return what this machine is for a target, or why it measures for none such.

    Raises:
        TunerError: a backend cannot run here, or this machine lacks the device.
        ValueError: the target or a backend is not known.
    """
    target = resolve_target(query.target, num_threads=query.num_threads)
    obstacle = measuring_obstacle(target)
    if obstacle is not None:
        return Identity(obstacle=obstacle)
    if query.backends is None:
        backends = [each for each in available_backends(target) if each.name != "metaschedule"]
    else:
        backends = list(backends_for(query.backends, target))
    environments: dict[str, Environment] = {each.name: environment_of(target, each) for each in backends}
    return Identity(
        target=target,
        backends=tuple(each.reference for each in backends),
        device=environment_of(target),
        environments={**environments, "": environment_of(target, *backends)},
        resource=resource,
    )


def describe(document: bytes, dask_worker: Any = None) -> bytes:
    """Return this machine's `Identity` for a `Query`, both as documents; for `Client.run`."""
    query = msgspec.msgpack.decode(document, type=Query)
    resources = dask_worker.state.total_resources
    own_threads = int(resources.get(THREADS, 0)) or None
    if query.num_threads is not None and own_threads is not None and query.num_threads != own_threads:
        found = Identity(obstacle=f"it measures with {own_threads} threads, not {query.num_threads}")
    else:
        named = msgspec.structs.replace(query, num_threads=own_threads)
        try:
            resource = next((name for name in resources if name.startswith(ALIKE)), "")
            found = identity(named, resource=resource)
        except (TunerError, ValueError) as error:
            found = Identity(obstacle=str(error))
    return msgspec.msgpack.encode(found)


def carry_out(document: bytes, *arrays: bytes) -> tuple[bytes, ...]:
    """Do a `Task`, and return its `Result` as a document, and the bytes of arrays that belong to it."""
    with _BUSY:
        task: Task = msgspec.msgpack.decode(document, type=Task)
        result, more = _carried_out(task, arrays)
        _count(result)
        return msgspec.msgpack.encode(result), *more


def activity(worker: Any) -> dict[str, float]:
    """Return what this machine has measured since it started; a metric of the Dask worker."""
    return {"seconds": time.time() - _STARTED, "measured": _COUNTS["measured"], "failed": _COUNTS["failed"]}


def _count(result: Result) -> None:
    if isinstance(result, Measured):
        _COUNTS["measured" if isinstance(result.timed, Timed) else "failed"] += 1


def _carried_out(task: Task, arrays: tuple[bytes, ...]) -> tuple[Result, tuple[bytes, ...]]:
    try:
        process = _process_of(task.machine)
        if process is None:
            return Refused(message="its device, threads or software are no longer what they were"), ()
        match task:
            case Candidate():
                return _measure(process, task), ()
            case RaceOf():
                return _race(process, task), ()
            case Ask(request=Run()):
                return _run(process, task, arrays)
            case Ask():
                return Answered(reply=process.ask(task.request, task.timeout_s)), ()
            case Probe():
                target = task.machine.target
                probes = measure_probes(target=target, environment=environment_of(target))
                return Probed(probes=tuple(probes)), ()
    except TunerError as error:
        return Refused(message=str(error)), ()


def _measure(process: WorkerProcess, task: Candidate) -> Measured:
    key = next(_KEYS)
    built = process.ask(msgspec.structs.replace(task.build, key=key), task.build_timeout_s)
    timed = None
    if isinstance(built, Done):
        request = Time(key=key, seed=task.build.seed, timing=task.limits.timing)
        timed = process.ask(request, task.limits.run_timeout_s)
    return Measured(built=built, timed=timed, measured_at=time.time())


def _race(process: WorkerProcess, task: RaceOf) -> RaceEnded:
    builds = [msgspec.structs.replace(build, key=next(_KEYS)) for build in task.builds]
    for build, timeout_s in zip(builds, task.build_timeouts_s, strict=True):
        reply = process.ask(build, timeout_s)
        if not isinstance(reply, Done):
            raise TunerError(
                f"a program could not be built for a race: {why_failed(reply).message}; see the operators "
                "that it names"
            )
    running = RunningPrograms(process, [build.key for build in builds], task.limits, task.seed)
    return RaceEnded(result=race(running, num_programs=len(task.builds)))


def _run(process: WorkerProcess, task: Ask, arrays: tuple[bytes, ...]) -> tuple[Answered, tuple[bytes, ...]]:
    assert isinstance(task.request, Run)
    inputs = [
        np.frombuffer(data, dtype=info.dtype).reshape(info.shape)
        for data, info in zip(arrays, task.request.arrays, strict=True)
    ]
    results = process.run(task.request, inputs, task.timeout_s)
    if isinstance(results, Failed):
        return Answered(reply=results), ()
    infos = tuple(ArrayInfo(array.shape, str(array.dtype)) for array in results)
    return Answered(reply=Ran(infos)), tuple(np.ascontiguousarray(array).tobytes() for array in results)


class _Held:
    """The measuring process of this machine, and what it was started for."""

    process: WorkerProcess | None = None
    purpose: tuple[Target, tuple[str, ...]] | None = None


def _process_of(machine: Machine) -> WorkerProcess | None:
    """Return the measuring process for a target and backends; None if this is no longer such a machine."""
    if _fingerprint(machine.target, machine.backends) != machine.fingerprint:
        return None
    purpose = machine.target, machine.backends
    if _Held.process is None or _Held.purpose != purpose:
        if _Held.process is not None:
            _Held.process.close()
        backends = backends_for(machine.backends, machine.target)
        _Held.process = WorkerProcess(machine.target, backends, forked_from=os.environ.get(FORK_SERVER))
        _Held.purpose = purpose
    return _Held.process


@functools.lru_cache(maxsize=64)
def _fingerprint(target: Target, backends: tuple[str, ...]) -> str:
    return identity(Query(target=target.name, num_threads=target.num_threads, backends=backends)).fingerprint
