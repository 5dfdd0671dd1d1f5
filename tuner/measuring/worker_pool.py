"""Worker processes that build programs in parallel, and time one at a time while nothing is being built.

Checked in tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tvm

from tuner.backends.protocol import Backend, TuningBackend
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import partitions_by_backend
from tuner.measuring.messages import Build, Done, Reply, Time, Timed, why_failed
from tuner.measuring.request import Limits, MeasureRequest, ProgramKey
from tuner.measuring.worker_process import WorkerProcess
from tuner.targets.target import Target

_BUILDS_A_WORKER = 8
"""Programs that each of several workers builds before they are timed: enough to keep all of them busy, few
enough that what they hold stays small."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request on its way: what is built for it, and how long that may take."""

    request: MeasureRequest
    build: Build
    timeout_s: float


class WorkerPool:
    """Worker processes for one target.

    Args:
        target: what is built for and measured on.
        backends: who lowers partitions.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
        size: programs built at once.
    """

    def __init__(
        self, target: Target, backends: Sequence[Backend], *, limits: Limits, seed: int, size: int
    ) -> None:
        self._backends = tuple(backends)
        self._limits = limits
        self._seed = seed
        self._workers = [WorkerProcess(target, backends) for _ in range(size)]
        self._keys = itertools.count()
        self._held: dict[ProgramKey, tuple[int, int]] = {}

    @property
    def first(self) -> WorkerProcess:
        """The worker that does what is no job, and holds the programs that race."""
        return self._workers[0]

    @property
    def chunk(self) -> int:
        """Jobs that are built before the first of them is timed."""
        return len(self._workers) * _BUILDS_A_WORKER if len(self._workers) > 1 else 1

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()

    def job(self, request: MeasureRequest, *, check: bool) -> Job:
        """Return the job of a request, under a key of its own."""
        build = Build(
            key=next(self._keys),
            module_json=json_of(request.module),
            check=check,
            reference_json=None if request.reference is None else json_of(request.reference),
            seed=self._seed,
        )
        return Job(request, build, self.build_timeout_s(request.module))

    def build_timeout_s(self, module: IRModule) -> float:
        """Return the limit of a build, with what tuning backends ask for each of their partitions."""
        partitions = partitions_by_backend(module)
        return self._limits.build_timeout_s + sum(
            backend.tuning_timeout_s * len(partitions.get(backend.name, ()))
            for backend in self._backends
            if isinstance(backend, TuningBackend)
        )

    def measure(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Reply, Reply | None]]:
        """Build all jobs in parallel, then time one after the other.

        Yields:
            Each job with how its build ended, and, where that was done, its timing.
        """
        num_workers = len(self._workers)
        replies = self._build_all(jobs)
        for index, job in enumerate(jobs):
            built, num_starts = replies[job.build.key]
            worker = self._workers[index % num_workers]
            timed = self._time(worker, job, num_starts) if isinstance(built, Done) else None
            yield job, built, timed

    def racing_keys(self, requests: Sequence[MeasureRequest]) -> tuple[int, ...]:
        """Return what the first worker knows the programs by, having built those that it does not hold.

        Raises:
            TunerError: a program cannot be built; says why.
        """
        keys = []
        for request in requests:
            key, num_starts = self._held.pop(request.key, (0, 0))
            if num_starts != self.first.num_starts or not self.first.alive:
                job = self.job(request, check=False)
                reply = self.first.ask(job.build, job.timeout_s)
                if not isinstance(reply, Done):
                    raise TunerError(
                        f"a program could not be built for a race: {why_failed(reply).message}; "
                        "see the operators that it names"
                    )
                key = job.build.key
            keys.append(key)
        self._held.clear()
        return tuple(keys)

    def _build_all(self, jobs: Sequence[Job]) -> dict[int, tuple[Reply, int]]:
        """Build each job in the worker that will time it, all workers at once."""
        interrupted = threading.Event()
        if len(self._workers) == 1:
            return _build_share(self.first, jobs, interrupted)
        step = len(self._workers)
        with ThreadPoolExecutor(step) as pool:
            shares = [
                pool.submit(_build_share, worker, jobs[index::step], interrupted)
                for index, worker in enumerate(self._workers)
            ]
            try:
                return {key: reply for share in shares for key, reply in share.result().items()}
            except BaseException:
                # Interrupted: the threads wait for workers that nobody needs any more.
                interrupted.set()
                for worker in self._workers:
                    worker.interrupt()
                raise

    def _time(self, worker: WorkerProcess, job: Job, num_starts: int) -> Reply:
        """Time what was built; what was lost with an earlier life of the worker is built again."""
        if worker.num_starts != num_starts or not worker.alive:
            reply = worker.ask(job.build, job.timeout_s)
            if not isinstance(reply, Done):
                return reply
        keep = job.request.races and worker is self.first
        request = Time(key=job.build.key, seed=self._seed, timing=self._limits.timing, keep=keep)
        reply = worker.ask(request, self._limits.run_timeout_s)
        if keep and isinstance(reply, Timed):
            self._held[job.request.key] = job.build.key, worker.num_starts
        return reply


def json_of(module: IRModule) -> str:
    """Return a module as TVM writes it down."""
    return str(tvm.ir.save_json(module))


def _build_share(
    worker: WorkerProcess, jobs: Sequence[Job], interrupted: threading.Event
) -> dict[int, tuple[Reply, int]]:
    """Return each build's reply, and which of its worker's lives holds what was built."""
    return {
        job.build.key: (worker.ask(job.build, job.timeout_s), worker.num_starts)
        for job in jobs
        if not interrupted.is_set()
    }
