"""Measure on devices behind TVM's RPC tracker: programs are built here, and timed there.

For devices that run no Python of this project: a telephone with TVM's own server in C++, or a board. As many
programs are measured at a time as the tuner has jobs, each on a device of its own; the tracker hands them
out, to one tuner at a time each. A program that crashes the server it runs in is tried once more, since
others may have killed it; then it is a record with that status. Checked in
tests/tuner/fleet/test_rpc_pool.py.

What a server says that it is (`rpc_server`) becomes the records' environment. A stock server says nothing;
then the environment names the tracker's key for a device, so that its records stay apart from any other's.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tvm import rpc

from records import Environment, Status
from tuner.backends.environment import environment_of
from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.fleet.check_order import CheckOrder
from tuner.fleet.documents import Measured
from tuner.fleet.process_tasks import measure_candidate, race_programs
from tuner.fleet.rpc_server import DESCRIBE, ServedDevice
from tuner.measuring.messages import (
    WRONG_NUMBERS,
    Acquire,
    Build,
    Compare,
    Done,
    Failed,
    Reply,
    Request,
    Run,
    why_failed,
)
from tuner.measuring.program_pool import Job, Outcome
from tuner.measuring.race import RaceResult
from tuner.measuring.request import Limits, MeasureRequest
from tuner.measuring.worker_pool import job_of
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.remote import RemoteDevice, parse_remote
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

CAN_TRAVEL = ("tvm",)
"""Backends whose programs are code alone; others call libraries of the process that runs them."""

WAIT_S = 300.0
"""How long a device may be busy with others, or away."""

_CONNECT_S = 10.0

_ATTEMPTS = 2

_COMPILER = "apache-tvm (compiler)"


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A kind of device behind a tracker, as a server described it.

    Attributes:
        remote: where it is.
        target: what is built for it.
        environment: where programs run, without any backend's versions.
    """

    remote: RemoteDevice
    target: Target
    environment: Environment


def find_device(text: str) -> RemoteTarget:
    """Return what is behind a tracker, by asking one of its servers.

    Args:
        text: `rpc://host:port/key?target=…`.

    Raises:
        TunerError: no tracker or server answers, the server has another device than the target, or it says
            nothing of itself and no target was given.
        ValueError: the text says no such address, or names no known target.
    """
    remote = parse_remote(text)
    own = None if remote.target in ("", "cpu", "cuda") else resolve_target(remote.target)
    said, name = _asked(remote, remote.target if own is None else own.kind)
    if said is not None:
        _check_same(remote, own, said)
        where = said.environment
        target = Target(
            name=text, kind=where.device_kind, tvm_json=said.target, num_threads=where.num_threads
        )
    elif own is not None:
        target = msgspec.structs.replace(own, name=text, num_threads=1)
        where = Environment(
            device_kind=own.kind,
            device_model=name or f"{remote.key} behind an RPC tracker, which does not describe itself",
            num_cores=1,
            num_threads=1,
            driver="unknown",
            versions=(),
        )
    else:
        raise TunerError(
            f"the server of {remote.key!r} behind {remote.tracker} does not say what device it has; give its "
            "target: rpc://HOST:PORT/KEY?target=TARGET"
        )
    versions = _with_compiler(where.versions, environment_of(resolve_target("cpu")))
    return RemoteTarget(remote, target, msgspec.structs.replace(where, versions=versions))


def _check_same(remote: RemoteDevice, own: Target | None, said: ServedDevice) -> None:
    """Refuse a server whose device is not the target that was asked for."""
    if own is None:
        wanted, found = {"kind": remote.target}, {"kind": said.environment.device_kind}
    else:
        wanted, found = json.loads(own.tvm_json), json.loads(said.target)
    for name in ("kind", "mcpu", "arch") if remote.target else ():
        if wanted.get(name) != found.get(name):
            raise TunerError(
                f"target {remote.target!r} is not the device behind {remote.tracker}: its {name} is "
                f"{wanted.get(name)}, that of {said.environment.device_model} is {found.get(name)}; leave "
                "?target= out to take what the server has"
            )


def _with_compiler(versions: tuple[tuple[str, str], ...], here: Environment) -> tuple[tuple[str, str], ...]:
    """Return the server's versions, and the compiler's where it is not of the same release."""
    compiler = dict(here.versions)["apache-tvm"]
    if dict(versions).get("apache-tvm") == compiler:
        return versions
    return tuple(sorted((*versions, (_COMPILER, compiler))))


def _asked(remote: RemoteDevice, kind: str) -> tuple[ServedDevice | None, str]:
    """Return what a server says that it is, None if nothing, and its device's own name, if it has one.

    Raises:
        TunerError: none answers in time.
    """
    answers: queue.SimpleQueue[tuple[ServedDevice | None, str] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            # TVM's client tries for a minute.
            socket.create_connection((remote.host, remote.port), _CONNECT_S).close()
            session = rpc.connect_tracker(remote.host, remote.port).request(remote.key, session_timeout=60)
            try:
                text = str(session.get_function(DESCRIBE)())
            except AttributeError:  # a stock server
                device = session.cuda(0) if kind == "cuda" else None
                answers.put((None, "" if device is None else str(device.device_name)))
            else:
                answers.put((msgspec.json.decode(text, type=ServedDevice), ""))
        except Exception as error:  # TVM's client raises whatever the connection does
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=WAIT_S)
    except queue.Empty:
        answer = TimeoutError(f"none was free for {WAIT_S:.0f} s")
    if isinstance(answer, Exception):
        raise TunerError(
            f"no device {remote.key!r} answers behind the RPC tracker at {remote.tracker} "
            f"({(str(answer).strip().splitlines() or [type(answer).__name__])[-1]}); see `python -m "
            f"tvm.exec.query_rpc_tracker --host {remote.host} --port {remote.port}`, and start `tessel fleet "
            "server` where the device is"
        )
    return answer


class RemoteProcess(WorkerProcess):
    """A measuring process that builds here and holds a device for each request that runs something."""

    def __init__(self, found: RemoteTarget, backends: Sequence[Backend]) -> None:
        super().__init__(found.target, backends, remote=found.remote)
        self._found = found

    def ask(self, request: Request, timeout_s: float) -> Reply:
        """Return the worker's reply; see `WorkerProcess`.

        Raises:
            TunerError: no device came free.
        """
        if isinstance(request, Build):
            # Whatever takes long is done before a device is held.
            built = super().ask(msgspec.structs.replace(request, check=False), timeout_s)
            if not isinstance(built, Done) or not request.check:
                return built
        self._acquire(timeout_s)
        return super().ask(request, timeout_s)

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> tuple[np.ndarray, ...] | Failed:
        """Return the results of running a module on the arrays, or how that failed."""
        self._acquire(timeout_s)
        return super().run(request, arrays, timeout_s)

    def _acquire(self, session_s: float) -> None:
        reply = super().ask(Acquire(session_s=session_s), WAIT_S)
        if not isinstance(reply, Done):
            remote = self._found.remote
            raise TunerError(
                f"no device {remote.key!r} behind {remote.tracker} was free ({why_failed(reply).message}); "
                "see whether its server runs, and run the same command again: what was measured is in the "
                "records"
            )


class RpcPool:
    """Devices behind a tracker; a `ProgramPool`.

    Args:
        backends: who lowers partitions; their programs can travel.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
        size: programs measured at once.
    """

    num_runs = 1

    def __init__(
        self, found: RemoteTarget, backends: Sequence[Backend], *, limits: Limits, seed: int, size: int = 1
    ) -> None:
        self._found = found
        self._backends = tuple(backends)
        self._limits = limits
        self._seed = seed
        self._size = size
        self._idle: queue.SimpleQueue[RemoteProcess] = queue.SimpleQueue()
        self._processes = [RemoteProcess(found, backends) for _ in range(size)]
        for process in self._processes:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes that build."""
        for process in self._processes:
            process.close()

    def interrupt(self) -> None:
        """Do nothing: one module runs at a time, for the thread that is interrupted itself."""

    def environment(self, backends: Sequence[Backend]) -> Environment:
        """Return where programs that these backends lower run: on the device."""
        versions: Mapping[str, str] = dict(self._found.environment.versions)
        own = {name: version for backend in backends for name, version in backend.versions()}
        return msgspec.structs.replace(
            self._found.environment, versions=tuple(sorted({**versions, **own}.items()))
        )

    def job(self, request: MeasureRequest, *, check: bool) -> Job:
        """Return the job of a request; its results are checked where asked."""
        return job_of(request, check=check, seed=self._seed, limits=self._limits, backends=self._backends)

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Measure as many jobs at a time as there are processes; yield each outcome when it is known."""
        order, waiting = CheckOrder(), iter(jobs)
        with ThreadPoolExecutor(self._size) as threads:
            running: dict[Future[Measured], Job] = {}
            try:
                while True:
                    while len(running) < self._size and (job := next(waiting, None)) is not None:
                        order.begin(job)
                        running[threads.submit(self._measure, job)] = job
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        job, measured = running.pop(future), future.result()
                        outcome = Outcome(
                            job=job,
                            built=measured.built,
                            timed=measured.timed,
                            measured_at=measured.measured_at,
                        )
                        yield from order.end(outcome)
            except BaseException:
                for process in self._processes:
                    process.interrupt()
                raise

    def race(self, requests: Sequence[MeasureRequest]) -> RaceResult:
        """Run programs in turn on one device until it is known which is the fastest."""
        jobs = [self.job(request, check=False) for request in requests]
        builds = [(job.build, job.timeout_s) for job in jobs]
        return race_programs(self._processes[0], builds, self._limits, self._seed)

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Reply | tuple[np.ndarray, ...]:
        """Return the results of running a module once on a device, or how that failed."""
        return self._processes[0].run(request, arrays, timeout_s)

    def compare(self, request: Compare, timeout_s: float) -> Reply:
        """Return how far a module's results on a device are from another's on this machine."""
        return self._processes[0].ask(request, timeout_s)

    def _measure(self, job: Job) -> Measured:
        process = self._idle.get()
        try:
            for _ in range(_ATTEMPTS):
                measured = measure_candidate(process, job.build, job.timeout_s, self._limits)
                if not _may_be_anothers_fault(measured):
                    break
            return measured
        finally:
            self._idle.put(process)


def _may_be_anothers_fault(measured: Measured) -> bool:
    """Say whether a failure may be that of a server or a connection that somebody ended."""
    reply: Any = measured.built if measured.timed is None else measured.timed
    return (
        isinstance(reply, Failed)
        and reply.status is Status.ERROR
        and not reply.message.startswith(WRONG_NUMBERS)
    )
