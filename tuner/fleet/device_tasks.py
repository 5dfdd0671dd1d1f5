"""Tasks of a machine of a fleet: say what it is, and measure, one program at a time.

These functions run in a Dask worker. Programs are built and timed in the measuring process that local tuning
uses too, which survives candidates that crash or hang; it is kept between tasks. Checked in
tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from distributed import get_worker

from records import Environment
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.kernel_exchange import TunedKernel, add_kernels, read_kernels
from tuner.backends.protocol import Backend
from tuner.backends.registry import available_backends, backends_for
from tuner.errors import TunerError
from tuner.fleet.documents import (
    Answer,
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
    Request,
    Result,
    Task,
)
from tuner.fleet.process_tasks import arrays_of, bytes_of, measure_candidate, race_programs
from tuner.measuring.messages import ArrayInfo, Failed, Ran, Run, Timed
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

_COUNTS: Counter[str] = Counter()

_STARTED = time.monotonic()


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
        backends += backends_for([query.tuned] if query.tuned else [], target)
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
    """Do what a `Request` asks; return its `Answer` as a document, and the bytes of its arrays."""
    with _BUSY:
        request = msgspec.msgpack.decode(document, type=Request)
        _Held.asked = request.asked
        try:
            result, more = _carried_out(request.task, arrays)
        finally:
            _Held.asked = ""
        _count(result)
        return msgspec.msgpack.encode(Answer(asked=request.asked, result=result)), *more


def activity(worker: Any) -> dict[str, float | str]:
    """Return what this machine is asked, and has measured since it started; a metric of the Dask worker."""
    return {
        "asked": _Held.asked,
        "seconds": time.monotonic() - _STARTED,
        "measured": _COUNTS["measured"],
        "failed": _COUNTS["failed"],
    }


def _count(result: Result) -> None:
    if isinstance(result, Measured):
        _COUNTS["measured" if isinstance(result.timed, Timed) else "failed"] += 1


def _carried_out(task: Task, arrays: tuple[bytes, ...]) -> tuple[Result, tuple[bytes, ...]]:
    try:
        process = _process_of(task.machine)
        if not isinstance(task, Probe):
            _learn(task)
        if process is None:
            return Refused(message="its device, threads or software are no longer what they were"), ()
        match task:
            case Candidate():
                found = measure_candidate(process, task.build, task.build_timeout_s, task.limits)
                return msgspec.structs.replace(found, kernels=_tuned_here(task)), ()
            case RaceOf():
                builds = tuple(zip(task.builds, task.build_timeouts_s, strict=True))
                return RaceEnded(result=race_programs(process, builds, task.limits, task.seed)), ()
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


def _run(process: WorkerProcess, task: Ask, arrays: tuple[bytes, ...]) -> tuple[Answered, tuple[bytes, ...]]:
    assert isinstance(task.request, Run)
    results = process.run(task.request, arrays_of(task.request.arrays, arrays), task.timeout_s)
    if isinstance(results, Failed):
        return Answered(reply=results), ()
    infos = tuple(ArrayInfo(array.shape, str(array.dtype)) for array in results)
    return Answered(reply=Ran(infos)), bytes_of(results)


def _learn(task: Candidate | RaceOf | Ask) -> None:
    """Add kernels that others have tuned to this machine's own database."""
    for folder in _kernel_folders(task.machine) if task.kernels else ():
        add_kernels(folder, task.kernels)


def _tuned_here(task: Candidate) -> tuple[TunedKernel, ...]:
    """Return the kernels of this machine's database that whoever sent the task does not know."""
    known = {kernel.name for kernel in task.kernels}
    found = [each for folder in _kernel_folders(task.machine) for each in read_kernels(folder).values()]
    return tuple(each for each in found if each.name not in known)


def _kernel_folders(machine: Machine) -> list[Path]:
    """Return where this machine keeps the kernels that it tunes for a target; none where it tunes none."""
    return [each.folder(machine.target) for each in _Held.backends if isinstance(each, MetaSchedule)]


def _own_reference(reference: str) -> str:
    """Return the reference of a backend whose database, if it has one, is in this worker's own folder."""
    name, _, settings = reference.partition("?")
    if name != MetaSchedule.name:
        return reference
    named = dict(parse_qsl(settings))
    return f"{name}?{urlencode({**named, 'database': str(Path(get_worker().local_directory) / 'kernels')})}"


class _Held:
    """The measuring process of this machine, what it was started for, who lowers programs in it, and what is
    asked of it now."""

    asked: str = ""
    backends: tuple[Backend, ...] = ()
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
        # What a killed process leaves behind is then in a folder that Dask removes.
        tempfile.tempdir = get_worker().local_directory
        _Held.backends = backends_for(map(_own_reference, machine.backends), machine.target)
        _Held.process = WorkerProcess(machine.target, _Held.backends, forked_from=os.environ.get(FORK_SERVER))
        _Held.purpose = purpose
    return _Held.process


@functools.lru_cache(maxsize=64)
def _fingerprint(target: Target, backends: tuple[str, ...]) -> str:
    return identity(Query(target=target.name, num_threads=target.num_threads, backends=backends)).fingerprint
