"""Measure programs: look up the records, else build and time in a worker process and record every outcome.

A program is a Relax module whose `main` is the workload; its weights are parameters like any other. What
cannot be built, crashes, hangs or gives wrong numbers becomes a record too, so that it is never tried twice.
Programs are built in parallel where asked, but timed one at a time, while nothing is being built. Checked in
tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

import numpy as np
import tvm

from records import Environment, Match, Measurement, Record, RecordStore, Status, Workload
from tuner.backends.environment import environment_of
from tuner.backends.protocol import Backend, TuningBackend
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.lowering.lower import partitions_by_backend
from tuner.measuring.messages import (
    DEFAULT_TIMING,
    WRONG_NUMBERS,
    ArrayInfo,
    Build,
    Compare,
    Compared,
    Done,
    Failed,
    Race,
    Raced,
    Reply,
    Run,
    Time,
    Timed,
    Timing,
)
from tuner.measuring.race import LOOKS, RaceResult, race
from tuner.measuring.worker_process import WorkerProcess
from tuner.numerical_error import Deviation
from tuner.targets.resolution import check_measurable
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

_Key: TypeAlias = tuple[str, str, str]
"""What names a program's outcome: workload, backend, settings."""

RACE = "race"
"""What records of programs that ran in turn carry for a backend."""

_ROUNDS_A_MESSAGE = 5
"""Rounds of a race that the worker runs before it answers: few, so that a race ends near its time."""

_BUILDS_A_WORKER = 8
"""Programs that each of several workers builds before they are timed: enough to keep all of them busy, few
enough that what they hold stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """One program to measure.

    Attributes:
        workload: what it is, as the records name it.
        module: its `main` is the program; lowered already, or with partitions that name their backends.
        backend: name of what lowers it, or a label such as `mix`.
        settings: what else changes the result, such as `trials=64` or a partition's fingerprint.
        check: whether its results are compared with a reference's first, once a kind of program (backend,
            operators and data types).
        reference: a module with the same parameters whose results are right; TVM's own default lowering of
            the program, which is slow, if None.
        races: whether the program stays built, to race against others afterwards.
    """

    workload: Workload
    module: IRModule
    backend: str
    settings: str = ""
    check: bool = False
    reference: IRModule | None = None
    races: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up on a program, and how long to time one.

    Attributes:
        build_timeout_s: longest lowering, building and checking.
        run_timeout_s: longest timing, the making of inputs and the first execution included.
        timing: how samples are taken.
        race_s: time after which a race gets no further rounds; the first look is always reached.
    """

    build_timeout_s: float = 90.0
    run_timeout_s: float = 60.0
    timing: Timing = DEFAULT_TIMING
    race_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureProgress:
    """One program is done: how many are, of how many, and the record."""

    completed: int
    total: int
    record: Record


class Measurer:
    """Measures programs for one target, through one record store.

    Args:
        store: where outcomes are looked up and kept.
        target: what is built for and measured on, and with how many threads.
        backends: who lowers partitions.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
        jobs: programs built at once; timing is always one at a time.
        match: which records of other environments count as this one's; target and device model always must.
        on_progress: called after each program.

    Raises:
        TunerError: the target is not the device that is here.

    Attributes:
        new_measurements: programs measured.
        reused_measurements: programs found in the records.
    """

    def __init__(
        self,
        store: RecordStore,
        target: Target,
        backends: Sequence[Backend],
        *,
        limits: Limits = Limits(),
        seed: int = 0,
        jobs: int = 1,
        match: Match = Match.EXACT,
        on_progress: Callable[[MeasureProgress], None] = lambda progress: None,
    ) -> None:
        if jobs < 1:
            raise ValueError(f"{jobs} jobs were asked for, but building needs one; give 1 or more")
        check_measurable(target)
        self.store = store
        self.target = target
        self.backends = tuple(backends)
        self.limits = limits
        self.seed = seed
        self.match = match
        self.new_measurements = 0
        self.reused_measurements = 0
        self._on_progress = on_progress
        self._workers = [WorkerProcess(target, backends) for _ in range(jobs)]
        self._keys = itertools.count()
        self._built: dict[_Key, tuple[int, int]] = {}
        self._checked_kinds: dict[str, str] = {}
        self._environments: dict[str, Environment] = {}

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes; the store stays open."""
        for worker in self._workers:
            worker.close()

    def measure_function(
        self,
        workload: Workload,
        module: IRModule,
        backend: str,
        *,
        settings: str = "",
        check: bool = False,
        reference: IRModule | None = None,
        races: bool = False,
    ) -> Record:
        """Return the record of one program, measured now unless the records have it; see `MeasureRequest`."""
        request = MeasureRequest(
            workload=workload,
            module=module,
            backend=backend,
            settings=settings,
            check=check,
            reference=reference,
            races=races,
        )
        return self.measure_many([request])[0]

    def measure_many(self, requests: Sequence[MeasureRequest]) -> tuple[Record, ...]:
        """Return one record a request, in order; requests with one workload, backend and settings are one.

        Raises:
            TunerError: the worker process cannot be started.
            RecordError: the records cannot be read or written.
        """
        distinct = {_key(request): request for request in requests}
        record_by_key = self._find_all(distinct.values())
        missing = [request for key, request in distinct.items() if key not in record_by_key]
        self.reused_measurements += len(record_by_key)
        for request, reply, error in self._measure_missing(missing):
            record = self._keep(request, reply, error)
            record_by_key[_key(request)] = record
            self._report(record, len(record_by_key), len(distinct))
        return tuple(record_by_key[_key(request)] for request in requests)

    def race(self, requests: Sequence[MeasureRequest]) -> tuple[RaceResult, tuple[Record, ...]]:
        """Run programs in turn in one process until it is known which is the fastest; see
        `tuner.measuring.race`.

        Each program's samples become a record, one sample per round, in order. A race of the same
        programs that the records have is not run again.

        Args:
            requests: programs of one workload, of different settings, each with the module that is built.

        Returns:
            How the race ended, and a record a request, in order.

        Raises:
            TunerError: a program cannot be built or run; says why.
        """
        named = [replace(each, backend=RACE, settings=_race_settings(each, requests)) for each in requests]
        found = [self.find(each.workload, RACE, settings=each.settings) for each in named]
        records = tuple(record for record in found if record is not None)
        if len(records) == len(named) and len({each.measurement.measured_at for each in records}) == 1:
            self.reused_measurements += len(records)
            recorded = _Recorded([each.measurement.samples_us for each in records])
            return race(recorded, num_programs=len(named)), records
        result = race(
            _Running(self._workers[0], self._racing_keys(requests), self.limits, self.seed),
            num_programs=len(named),
        )
        now = time.time()
        measurements = [
            Measurement(
                workload_fingerprint=request.workload.fingerprint,
                backend=RACE,
                settings=request.settings,
                target=self.target.text,
                environment=self.environment(RACE),
                status=Status.OK,
                samples_us=samples,
                measured_at=now,
                seed=self.seed,
            )
            for request, samples in zip(named, result.samples, strict=True)
        ]
        pairs = [(each.workload, found) for each, found in zip(named, measurements, strict=True)]
        record_ids = self.store.append_many(pairs)
        self.new_measurements += len(pairs)
        return result, tuple(
            Record(record_id=record_id, workload=workload, measurement=measurement)
            for record_id, (workload, measurement) in zip(record_ids, pairs, strict=True)
        )

    def note_failure(self, request: MeasureRequest, reason: str) -> Record:
        """Keep as a record that a program fails where its own measurement could not show it."""
        return self._keep(request, Failed(Status.ERROR, reason), None)

    def find(self, workload: Workload, backend: str, *, settings: str = "") -> Record | None:
        """Return the newest record of a program for this target and what matches its environment, or None."""
        return self.store.find_latest(
            workload.fingerprint,
            backend=backend,
            settings=settings,
            target=self.target.text,
            environment=self.environment(backend),
            match=self.match,
        )

    def environment(self, backend: str) -> Environment:
        """Return the environment of programs that carry a backend's name, or a label such as `mix`.

        A label depends on the versions of every backend, because any of them may be in the mix.
        """
        if backend not in self._environments:
            named = [known for known in self.backends if known.name == backend]
            self._environments[backend] = environment_of(self.target, *(named or self.backends))
        return self._environments[backend]

    def run(
        self, module: IRModule, inputs: Sequence[np.ndarray], *, function: str = "main"
    ) -> tuple[np.ndarray, ...]:
        """Return the results of running a module once, in the worker.

        Raises:
            TunerError: it cannot be built or run; says why.
        """
        request = Run(
            module_json=_json(module),
            function=function,
            arrays=tuple(ArrayInfo(array.shape, str(array.dtype)) for array in inputs),
        )
        timeout_s = self._build_timeout_s(module) + self.limits.run_timeout_s
        results = self._workers[0].run(request, inputs, timeout_s)
        if isinstance(results, Failed):
            raise TunerError(f"function {function!r} could not be run: {results.message}; see its operators")
        return results

    def compare(self, module: IRModule, reference: IRModule, *, unscheduled: bool = False) -> Deviation:
        """Return the result of a module on random inputs that is furthest from a reference's.

        Each result's error is relative to the largest magnitude of the reference's result. Both modules have
        the same parameters; inputs are made in the worker, so that large weights do not travel.

        Args:
            module: with or without partitions.
            reference: the same program.
            unscheduled: see `Compare`.

        Raises:
            TunerError: either cannot be built or run; says why.
        """
        request = Compare(
            module_json=_json(module),
            reference_json=_json(reference),
            seed=self.seed,
            unscheduled=unscheduled,
        )
        builds_s = self._build_timeout_s(module) + self._build_timeout_s(reference)
        reply = self._workers[0].ask(request, builds_s + 2 * self.limits.run_timeout_s)
        if not isinstance(reply, Compared):
            message = reply.message if isinstance(reply, Failed) else repr(reply)
            raise TunerError(
                f"the two modules could not be compared: {message}; see which of them fails alone"
            )
        return reply.worst

    def _find_all(self, requests: Iterable[MeasureRequest]) -> dict[_Key, Record]:
        """Return the newest record of each request that the records hold, by few queries."""
        by_environment: dict[Environment, list[MeasureRequest]] = {}
        for request in requests:
            by_environment.setdefault(self.environment(request.backend), []).append(request)
        newest: dict[_Key, Record] = {}
        for environment, group in by_environment.items():
            wanted = {_key(request) for request in group}
            fingerprints = sorted({fingerprint for fingerprint, _, _ in wanted})
            found = self.store.find_many(
                fingerprints, target=self.target.text, environment=environment, match=self.match
            )
            for record in itertools.chain.from_iterable(found.values()):
                measurement = record.measurement
                key = measurement.workload_fingerprint, measurement.backend, measurement.settings
                if key in wanted:
                    newest[key] = record
        return newest

    def _measure_missing(
        self, requests: Sequence[MeasureRequest]
    ) -> Iterator[tuple[MeasureRequest, Reply, float | None]]:
        """Yield each request with its outcome as soon as it has one."""
        # The smallest program of a kind is the one that is checked: the check's reference is slow.
        ordered = sorted(requests, key=lambda request: request.workload.flops)
        size = len(self._workers) * _BUILDS_A_WORKER if len(self._workers) > 1 else 1
        for start in range(0, len(ordered), size):
            yield from self._measure_chunk(ordered[start : start + size])

    def _measure_chunk(
        self, requests: Sequence[MeasureRequest]
    ) -> Iterator[tuple[MeasureRequest, Reply, float | None]]:
        """Build all of them in parallel, then time one after the other."""
        jobs = [self._job(request) for request in requests]
        num_workers = len(self._workers)
        replies = self._build_all(jobs)
        for index, job in enumerate(jobs):
            reply, num_starts = replies[job.build.key]
            error = None
            self._note_check(job, reply)
            if isinstance(reply, Done):
                error = reply.relative_error
                reply = self._time(self._workers[index % num_workers], job, num_starts)
            yield job.request, self._unless_kind_is_wrong(job.request, reply), error

    def _build_all(self, jobs: Sequence[_Job]) -> dict[int, tuple[Reply, int]]:
        """Build each job in the worker that will time it, all workers at once."""
        interrupted = threading.Event()
        if len(self._workers) == 1:
            return _build_share(self._workers[0], jobs, interrupted)
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

    def _time(self, worker: WorkerProcess, job: _Job, num_starts: int) -> Reply:
        """Time what was built; what was lost with an earlier life of the worker is built again."""
        if worker.num_starts != num_starts or not worker.alive:
            reply = worker.ask(job.build, job.timeout_s)
            if not isinstance(reply, Done):
                return reply
        keep = job.request.races and worker is self._workers[0]
        request = Time(key=job.build.key, seed=self.seed, timing=self.limits.timing, keep=keep)
        reply = worker.ask(request, self.limits.run_timeout_s)
        if keep and isinstance(reply, Timed):
            self._built[_key(job.request)] = job.build.key, worker.num_starts
        return reply

    def _racing_keys(self, requests: Sequence[MeasureRequest]) -> tuple[int, ...]:
        """Return what the worker knows the programs by, having built those that it does not hold."""
        worker = self._workers[0]
        keys = []
        for request in requests:
            key, num_starts = self._built.pop(_key(request), (0, 0))
            if num_starts != worker.num_starts or not worker.alive:
                job = self._job(replace(request, check=False))
                reply = worker.ask(job.build, job.timeout_s)
                if not isinstance(reply, Done):
                    raise TunerError(
                        f"a program could not be built for a race: {_failure(reply).message}; "
                        "see the operators that it names"
                    )
                key = job.build.key
            keys.append(key)
        self._built.clear()
        return tuple(keys)

    def _job(self, request: MeasureRequest) -> _Job:
        kind = _kind(request)
        check = request.check and kind not in self._checked_kinds
        if check:
            self._checked_kinds[kind] = ""
        build = Build(
            key=next(self._keys),
            module_json=_json(request.module),
            check=check,
            reference_json=None if request.reference is None else _json(request.reference),
            seed=self.seed,
        )
        return _Job(request, build, self._build_timeout_s(request.module))

    def _build_timeout_s(self, module: IRModule) -> float:
        """Return the limit of a build, with what tuning backends ask for each of their partitions."""
        partitions = partitions_by_backend(module)
        return self.limits.build_timeout_s + sum(
            backend.tuning_timeout_s * len(partitions.get(backend.name, ()))
            for backend in self.backends
            if isinstance(backend, TuningBackend)
        )

    def _note_check(self, job: _Job, reply: Reply) -> None:
        if job.build.check and isinstance(reply, Failed):
            if reply.message.startswith(WRONG_NUMBERS):
                self._checked_kinds[_kind(job.request)] = reply.message
            else:
                del self._checked_kinds[_kind(job.request)]

    def _unless_kind_is_wrong(self, request: MeasureRequest, reply: Reply) -> Reply:
        """Return the failure of the kind where another program of the same kind gave wrong numbers."""
        wrong = self._checked_kinds.get(_kind(request), "") if request.check else ""
        return Failed(Status.ERROR, wrong) if wrong else reply

    def _keep(self, request: MeasureRequest, reply: Reply, relative_error: float | None) -> Record:
        measurement = Measurement(
            workload_fingerprint=request.workload.fingerprint,
            backend=request.backend,
            settings=request.settings,
            target=self.target.text,
            environment=self.environment(request.backend),
            status=Status.OK if isinstance(reply, Timed) else _failure(reply).status,
            samples_us=reply.samples_us if isinstance(reply, Timed) else (),
            message="" if isinstance(reply, Timed) else _failure(reply).message,
            peak_memory_bytes=reply.peak_memory_bytes if isinstance(reply, Timed) else None,
            relative_error=relative_error,
            measured_at=time.time(),
            seed=self.seed,
        )
        self.new_measurements += 1
        record_id = self.store.append(request.workload, measurement)
        logger.debug(
            "measured %s on %s: %s", request.workload.fingerprint, request.backend, measurement.status
        )
        return Record(record_id=record_id, workload=request.workload, measurement=measurement)

    def _report(self, record: Record, completed: int, total: int) -> None:
        self._on_progress(MeasureProgress(completed=completed, total=total, record=record))


class _Running:
    """Programs that run in the worker, until their time is spent."""

    def __init__(self, worker: WorkerProcess, keys: Sequence[int], limits: Limits, seed: int) -> None:
        self._worker = worker
        self._keys = keys
        self._limits = limits
        self._seed = seed
        self._num_rounds = 0
        self._end_s = time.monotonic() + limits.race_s

    def run(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        samples: tuple[tuple[float, ...], ...] = ((),) * len(programs)
        end = self._num_rounds + num_rounds
        while self._num_rounds < end and (self._num_rounds < LOOKS[0] or time.monotonic() < self._end_s):
            more = self._ask(programs, min(_ROUNDS_A_MESSAGE, end - self._num_rounds))
            samples = tuple((*before, *new) for before, new in zip(samples, more, strict=True))
        return samples

    def _ask(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        request = Race(
            keys=tuple(self._keys[program] for program in programs),
            seed=self._seed,
            first_round=self._num_rounds,
            num_rounds=num_rounds,
            sample_s=self._limits.timing.sample_s,
        )
        reply = self._worker.ask(request, self._limits.run_timeout_s * len(programs))
        if not isinstance(reply, Raced):
            raise TunerError(
                f"{len(programs)} programs could not run in turn: {_failure(reply).message}; each alone can, "
                "so that together they may need more memory than there is"
            )
        self._num_rounds += num_rounds
        return reply.samples_us


class _Recorded:
    """Samples of a race that was run before."""

    def __init__(self, samples: Sequence[Sequence[float]]) -> None:
        self._samples = samples
        self._num_rounds = 0

    def run(self, programs: Sequence[int], num_rounds: int) -> tuple[tuple[float, ...], ...]:
        begin, self._num_rounds = self._num_rounds, self._num_rounds + num_rounds
        found = [tuple(self._samples[program][begin : self._num_rounds]) for program in programs]
        shortest = min(map(len, found))
        return tuple(each[:shortest] for each in found)


@dataclass(frozen=True, slots=True)
class _Job:
    """A request on its way: what is built for it, and how long that may take."""

    request: MeasureRequest
    build: Build
    timeout_s: float


def _build_share(
    worker: WorkerProcess, jobs: Sequence[_Job], interrupted: threading.Event
) -> dict[int, tuple[Reply, int]]:
    """Return each build's reply, and which of its worker's lives holds what was built."""
    return {
        job.build.key: (worker.ask(job.build, job.timeout_s), worker.num_starts)
        for job in jobs
        if not interrupted.is_set()
    }


def _race_settings(request: MeasureRequest, rivals: Sequence[MeasureRequest]) -> str:
    """Return settings that name a program in a race against certain others."""
    names = ";".join(sorted(rival.settings for rival in rivals))
    digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
    return f"{request.settings};race={digest}"


def _key(request: MeasureRequest) -> _Key:
    return request.workload.fingerprint, request.backend, request.settings


def _kind(request: MeasureRequest) -> str:
    """Name what is checked once: a backend with operators and data types, whatever the shapes."""
    operators = [operator.name for operator in request.workload.operators]
    dtypes = sorted({tensor.dtype for tensor in request.workload.values})
    return f"{request.backend} {request.settings} {operators} {dtypes}"


def _json(module: IRModule) -> str:
    return str(tvm.ir.save_json(module))


def _failure(reply: Reply) -> Failed:
    return reply if isinstance(reply, Failed) else Failed(Status.ERROR, f"unexpected reply {reply!r}")
