"""Worker processes that build programs in parallel, and time one at a time while nothing is being built.

Checked in tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from records import Environment
from tuner.backends.environment import environment_of
from tuner.backends.protocol import Backend, TuningBackend
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.lowering.lower import partitions_by_backend
from tuner.measuring.messages import Build, Compare, Done, Reply, Run, Time, Timed, why_failed
from tuner.measuring.module_json import json_of, module_of
from tuner.measuring.program_pool import Job, Outcome
from tuner.measuring.race import RaceResult, race
from tuner.measuring.raced_programs import RunningPrograms
from tuner.measuring.request import Limits, MeasureRequest, ProgramKey
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.resolution import check_measurable
from tuner.targets.target import Target

_BUILDS_A_WORKER = 8
"""Programs that each of several workers builds before they are timed: enough to keep all of them busy, few
enough that what they hold stays small."""


@dataclass(frozen=True, slots=True)
class _Build:
    """A worker's reply to a build, which worker it was, and which of its lives holds what was built."""

    reply: Reply
    worker: int
    num_starts: int


class _Waiting:
    """Jobs that threads take, in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = deque(jobs)

    def take(self) -> Job | None:
        """Return the next one, or None."""
        try:
            return self._jobs.popleft()
        except IndexError:
            return None

    def clear(self) -> None:
        """Leave out those that nobody has taken."""
        self._jobs.clear()


class WorkerPool:
    """Worker processes for one target, which is this machine; a `ProgramPool`.

    Args:
        target: what is built for and measured on.
        backends: who lowers partitions.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
        size: programs built at once.

    Raises:
        TunerError: the target is not the device that is here.
    """

    def __init__(
        self, target: Target, backends: Sequence[Backend], *, limits: Limits, seed: int, size: int = 1
    ) -> None:
        if size < 1:
            raise ValueError(f"{size} jobs were asked for, but building needs one; give 1 or more")
        check_measurable(target)
        self._target = target
        self._backends = tuple(backends)
        self._limits = limits
        self._seed = seed
        self.num_runs = size
        self._workers = [WorkerProcess(target, backends) for _ in range(size)]
        # What none of several workers has built runs in one of its own, beside what one of them runs.
        self._other = WorkerProcess(target, backends) if size > 1 else self._workers[0]
        self._locks = {id(worker): threading.Lock() for worker in (*self._workers, self._other)}
        self._keys = itertools.count()
        self._held: dict[ProgramKey, tuple[int, int]] = {}
        self._built_by: dict[str, int] = {}

    def close(self) -> None:
        """End the processes."""
        for worker in (*self._workers, self._other):
            worker.close()

    def interrupt(self) -> None:
        """End what other threads run; their calls of `run` say that it failed."""
        for worker in (*self._workers, self._other):
            worker.interrupt()

    def environment(self, backends: Sequence[Backend]) -> Environment:
        """Return where programs that these backends lower run."""
        return environment_of(self._target, *backends)

    def job(self, request: MeasureRequest, *, check: bool) -> Job:
        """Return the job of a request, under a key of its own."""
        job = job_of(request, check=check, seed=self._seed, limits=self._limits, backends=self._backends)
        return replace(job, build=msgspec.structs.replace(job.build, key=next(self._keys)))

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Build jobs in parallel, a share at a time, then time one after the other."""
        num_workers = len(self._workers)
        size = num_workers * _BUILDS_A_WORKER if num_workers > 1 else 1
        waiting = iter(jobs)
        while share := tuple(itertools.islice(waiting, size)):
            yield from self._measure_share(share)

    def race(self, requests: Sequence[MeasureRequest]) -> RaceResult:
        """Run programs in turn in the first worker, until it is known which is the fastest."""
        running = RunningPrograms(self._first, self._racing_keys(requests), self._limits, self._seed)
        return race(running, num_programs=len(requests))

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Reply | tuple[np.ndarray, ...]:
        """Return the results of running a module once, or how that failed.

        It runs in the worker that built it to be measured, which may hold it still; among several workers,
        what none has built has one of its own. Threads may ask for several at once.
        """
        worker = self._reserved(self._built_by.get(Structure(module_of(request.module_json)).fingerprint))
        try:
            return worker.run(request, arrays, timeout_s)
        finally:
            self._locks[id(worker)].release()

    def compare(self, request: Compare, timeout_s: float) -> Reply:
        """Return how far two modules' results are apart, by the first worker, or how that failed."""
        return self._first.ask(request, timeout_s)

    @property
    def _first(self) -> WorkerProcess:
        """The worker that does what is no job, and holds the programs that race."""
        return self._workers[0]

    def _reserved(self, built_by: int | None) -> WorkerProcess:
        """Wait for the worker that built a module, or else for one that is free, and lock it."""
        candidates = (self._other, *self._workers) if built_by is None else (self._workers[built_by],)
        for worker in candidates:
            if self._locks[id(worker)].acquire(blocking=False):
                return worker
        self._locks[id(candidates[0])].acquire()
        return candidates[0]

    def _measure_share(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        builds = self._build_all(jobs)
        for job in jobs:
            build = builds[job.build.key]
            self._built_by[Structure(job.request.module).fingerprint] = build.worker
            is_built = isinstance(build.reply, Done)
            timed = self._time(self._workers[build.worker], job, build.num_starts) if is_built else None
            yield Outcome(job=job, built=build.reply, timed=timed, measured_at=time.time())

    def _racing_keys(self, requests: Sequence[MeasureRequest]) -> tuple[int, ...]:
        """Return what the first worker knows the programs by, having built those that it does not hold.

        Raises:
            TunerError: a program cannot be built; says why.
        """
        keys = []
        for request in requests:
            key, num_starts = self._held.pop(request.key, (0, 0))
            if num_starts != self._first.num_starts or not self._first.alive:
                job = self.job(request, check=False)
                reply = self._first.ask(job.build, job.timeout_s)
                if not isinstance(reply, Done):
                    raise TunerError(
                        f"a program could not be built for a race: {why_failed(reply).message}; "
                        "see the operators that it names"
                    )
                key = job.build.key
            keys.append(key)
        self._held.clear()
        return tuple(keys)

    def _build_all(self, jobs: Sequence[Job]) -> dict[int, _Build]:
        """Build jobs, all workers at once, each the next one when it is free; it will time what it built."""
        waiting = _Waiting(jobs)
        if len(self._workers) == 1 or len(jobs) == 1:
            return self._build_waiting(0, waiting)
        with ThreadPoolExecutor(len(self._workers)) as pool:
            shares = [pool.submit(self._build_waiting, index, waiting) for index in range(len(self._workers))]
            try:
                return {key: build for share in shares for key, build in share.result().items()}
            except BaseException:
                # Interrupted: the threads wait for workers that nobody needs any more.
                waiting.clear()
                self.interrupt()
                raise

    def _build_waiting(self, index: int, waiting: _Waiting) -> dict[int, _Build]:
        worker, builds = self._workers[index], {}
        while (job := waiting.take()) is not None:
            reply = worker.ask(job.build, job.timeout_s)
            builds[job.build.key] = _Build(reply, index, worker.num_starts)
        return builds

    def _time(self, worker: WorkerProcess, job: Job, num_starts: int) -> Reply:
        """Time what was built; what was lost with an earlier life of the worker is built again."""
        if worker.num_starts != num_starts or not worker.alive:
            reply = worker.ask(job.build, job.timeout_s)
            if not isinstance(reply, Done):
                return reply
        keep = job.request.races and worker is self._first
        request = Time(key=job.build.key, seed=self._seed, timing=self._limits.timing, keep=keep)
        reply = worker.ask(request, self._limits.run_timeout_s)
        if keep and isinstance(reply, Timed):
            self._held[job.request.key] = job.build.key, worker.num_starts
        return reply


def build_timeout_s(limits: Limits, backends: Sequence[Backend], module: IRModule) -> float:
    """Return the limit of a build, with what tuning backends ask for each of their partitions."""
    partitions = partitions_by_backend(module)
    return limits.build_timeout_s + sum(
        backend.tuning_timeout_s * len(partitions.get(backend.name, ()))
        for backend in backends
        if isinstance(backend, TuningBackend)
    )


def job_of(
    request: MeasureRequest, *, check: bool, seed: int, limits: Limits, backends: Sequence[Backend]
) -> Job:
    """Return the job of a request, under the key 0."""
    build = Build(
        key=0,
        module_json=json_of(request.module),
        check=check,
        reference_json=None if request.reference is None else json_of(request.reference),
        seed=seed,
        as_graph=request.races,
    )
    return Job(request, build, build_timeout_s(limits, backends, request.module))
