"""Measure programs: look up the records, else build and time in a worker process and record every outcome.

A program is a Relax module whose `main` is the workload; its weights are parameters like any other. What
cannot be built, crashes, hangs or gives wrong numbers becomes a record too, so that it is never tried twice.
What failed because of the machine (memory, a missing library or tool, a kill) is tried again by the next
process, since a look-up leaves it out.
Programs are built in parallel where asked, but timed one at a time, while nothing is being built. Checked in
tests/tuner/measuring/test_measurer.py.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from records import Environment, Match, Measurement, Record, RecordStore, Status, Workload
from records.database.claims import POLL_S, Claims, claim_key, claimed
from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.measuring.checked_kinds import CheckedKinds
from tuner.measuring.messages import (
    ArrayInfo,
    Compare,
    Compared,
    Done,
    Failed,
    Reply,
    Run,
    Timed,
    not_by_program,
    why_failed,
)
from tuner.measuring.module_json import json_of
from tuner.measuring.program_pool import Job, Outcome, ProgramPool
from tuner.measuring.race import RaceResult, race
from tuner.measuring.raced_programs import RecordedPrograms, race_settings
from tuner.measuring.request import DEFAULT_LIMITS, Limits, MeasureRequest, ProgramKey
from tuner.measuring.worker_pool import WorkerPool, build_timeout_s
from tuner.numerical_error import Deviation
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

RACE = "race"
"""What records of programs that ran in turn carry for a backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureProgress:
    """One program is done: how many are, of how many, and the record."""

    completed: int
    total: int
    record: Record


@dataclass(frozen=True, slots=True)
class _Share:
    """Requests that are measured in one go: those claimed, those found by now, those that others measure."""

    requests: Sequence[MeasureRequest]
    ignores_claims: bool
    key_by_request: dict[ProgramKey, str] = field(default_factory=dict)
    found: list[Record] = field(default_factory=list)
    elsewhere: list[MeasureRequest] = field(default_factory=list)

    def give_back(self, request: MeasureRequest, claims: Claims) -> None:
        key = self.key_by_request.pop(request.key, None)
        if key is not None:
            claims.give_back(key)

    def give_back_all(self, claims: Claims) -> None:
        for key in self.key_by_request.values():
            claims.give_back(key)


class Measurer:
    """Measures programs for one target, through one record store.

    Args:
        store: where outcomes are looked up and kept.
        target: what is built for and measured on, and with how many threads.
        backends: who lowers partitions.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
        match: which records of other environments count as this one's; target and device model always must.
        pool: what programs are measured through, with these limits and seed; one worker process of this
            machine if None. It is closed with the measurer.
        on_progress: called after each program.

    Raises:
        TunerError: the target is not the device that is here, and there is no pool.

    Attributes:
        reused_measurements: programs found in the records.
    """

    def __init__(
        self,
        store: RecordStore,
        target: Target,
        backends: Sequence[Backend],
        *,
        limits: Limits = DEFAULT_LIMITS,
        seed: int = 0,
        match: Match = Match.EXACT,
        pool: ProgramPool | None = None,
        on_progress: Callable[[MeasureProgress], None] = lambda progress: None,
    ) -> None:
        self.store = store
        self.target = target
        self.backends = tuple(backends)
        self.limits = limits
        self.seed = seed
        self.match = match
        self.new_measurements = 0
        self.reused_measurements = 0
        self._on_progress = on_progress
        self._pool = pool or WorkerPool(target, backends, limits=limits, seed=seed)
        self._kinds = CheckedKinds()
        self._environments: dict[str, Environment] = {}
        self._failed_here: dict[ProgramKey, Record] = {}

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes; the store stays open."""
        self._pool.close()

    @property
    def num_runs(self) -> int:
        """Modules that `run` runs at once, called by as many threads."""
        return self._pool.num_runs

    def interrupt(self) -> None:
        """End what threads run at once; each call of `run` raises an error."""
        self._pool.interrupt()

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
        """Return one record per request, in order; requests with one workload, backend and settings are one.

        Raises:
            TunerError: the worker process cannot be started.
            RecordError: the records cannot be read or written.
        """
        distinct = {request.key: request for request in requests}
        record_by_key = self._find_all(distinct.values())
        missing = [request for key, request in distinct.items() if key not in record_by_key]
        self.reused_measurements += len(record_by_key)
        for record in self._measure_missing(missing):
            measurement = record.measurement
            key = measurement.workload_fingerprint, measurement.backend, measurement.settings
            record_by_key[key] = record
            self._report(record, len(record_by_key), len(distinct))
        return tuple(record_by_key[request.key] for request in requests)

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
        named = [replace(each, backend=RACE, settings=race_settings(each, requests)) for each in requests]
        with claimed(self.store.claims, self._claim_key(named[0])):
            return self._race_claimed(requests, named)

    def _race_claimed(
        self, requests: Sequence[MeasureRequest], named: Sequence[MeasureRequest]
    ) -> tuple[RaceResult, tuple[Record, ...]]:
        found = [self.find(each.workload, RACE, settings=each.settings) for each in named]
        records = tuple(record for record in found if record is not None)
        if len(records) == len(named) and len({each.measurement.measured_at for each in records}) == 1:
            self.reused_measurements += len(records)
            recorded = RecordedPrograms([each.measurement.samples_us for each in records])
            return race(recorded, num_programs=len(named)), records
        result = self._pool.race(requests)
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
        return self._keep(request, Failed(Status.ERROR, reason), None, time.time())

    def find(self, workload: Workload, backend: str, *, settings: str = "") -> Record | None:
        """Return the newest record of a program for this target and what matches its environment, or None.

        A failure that is not the program's own is one of this measurer's.
        """
        found = self.store.find_latest(
            workload.fingerprint,
            backend=backend,
            settings=settings,
            target=self.target.text,
            environment=self.environment(backend),
            match=self.match,
        )
        return found or self._failed_here.get((workload.fingerprint, backend, settings))

    def environment(self, backend: str) -> Environment:
        """Return the environment of programs that carry a backend's name, or a label such as `mix`.

        A label depends on the versions of every backend, because any of them may be in the mix.
        """
        if backend not in self._environments:
            named = [known for known in self.backends if known.name == backend]
            self._environments[backend] = self._pool.environment(named or self.backends)
        return self._environments[backend]

    def claimed(self, what: str) -> AbstractContextManager[None]:
        """Hold a claim for the body, so that no other process with these records measures the same now."""
        key = claim_key(what, target=self.target.text, environment=self.environment(RACE))
        return claimed(self.store.claims, key)

    def run(
        self,
        module: IRModule,
        inputs: Sequence[np.ndarray],
        *,
        function: str = "main",
        calls_blas: bool = False,
    ) -> tuple[np.ndarray, ...]:
        """Return the results of running a module once, in the worker; see `Run`.

        Raises:
            TunerError: it cannot be built or run; says why.
        """
        request = Run(
            module_json=json_of(module),
            function=function,
            arrays=tuple(ArrayInfo(array.shape, str(array.dtype)) for array in inputs),
            calls_blas=calls_blas,
        )
        timeout_s = self._build_timeout_s(module) + self.limits.run_timeout_s
        results = self._pool.run(request, inputs, timeout_s)
        if isinstance(results, tuple):
            return results
        message = why_failed(results).message
        raise TunerError(f"function {function!r} could not be run: {message}; see its operators")

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
            module_json=json_of(module),
            reference_json=json_of(reference),
            seed=self.seed,
            unscheduled=unscheduled,
        )
        builds_s = self._build_timeout_s(module) + self._build_timeout_s(reference)
        reply = self._pool.compare(request, builds_s + 2 * self.limits.run_timeout_s)
        if not isinstance(reply, Compared):
            message = reply.message if isinstance(reply, Failed) else repr(reply)
            raise TunerError(
                f"the two modules could not be compared: {message}; see which of them fails alone"
            )
        return reply.worst

    def _find_all(self, requests: Iterable[MeasureRequest]) -> dict[ProgramKey, Record]:
        """Return the newest record of each request that the records hold, by few queries."""
        by_environment: dict[Environment, list[MeasureRequest]] = {}
        for request in requests:
            by_environment.setdefault(self.environment(request.backend), []).append(request)
        newest: dict[ProgramKey, Record] = {}
        for environment, group in by_environment.items():
            wanted = {request.key: request for request in group}
            newest |= {key: self._failed_here[key] for key in wanted if key in self._failed_here}
            fingerprints = sorted({fingerprint for fingerprint, _, _ in wanted})
            found = self.store.find_many(
                fingerprints, target=self.target.text, environment=environment, match=self.match
            )
            for record in itertools.chain.from_iterable(found.values()):
                measurement = record.measurement
                key = measurement.workload_fingerprint, measurement.backend, measurement.settings
                if key in wanted and _is_answer(record, wanted[key]):
                    newest[key] = record
        return newest

    def _build_timeout_s(self, module: IRModule) -> float:
        return build_timeout_s(self.limits, self.backends, module)

    def _measure_missing(self, requests: Sequence[MeasureRequest]) -> Iterator[Record]:
        """Yield the record of each request, as soon as it has one.

        What another process measures is left for last, and then found in the records. Nothing is waited for
        while a claim is held, so that two processes never wait for each other.
        """
        # The smallest program of a kind is the one that is checked: the check's reference is slow.
        left = sorted(requests, key=lambda request: request.workload.flops)
        num_left, give_up_at = 0, 0.0
        while left:
            if len(left) != num_left:  # somebody has got on
                num_left, give_up_at = len(left), time.monotonic() + max(map(self._patience_s, left))
            else:
                time.sleep(POLL_S)
            share = _Share(left, ignores_claims=time.monotonic() > give_up_at)
            try:
                for outcome in self._pool.measure(self._jobs(share)):
                    record = self._outcome_record(outcome)
                    share.give_back(outcome.job.request, self.store.claims)
                    yield record
            finally:
                share.give_back_all(self.store.claims)
            yield from share.found
            left = share.elsewhere

    def _jobs(self, share: _Share) -> Iterator[Job]:
        """Yield the jobs of what nobody else measures, each claimed, and sort the other requests."""
        for request in share.requests:
            key = self._claim_key(request)
            if self.store.claims.take(key):
                share.key_by_request[request.key] = key
            elif not share.ignores_claims:
                share.elsewhere.append(request)
                continue
            found = self._answer_of(request)
            if found is None:
                yield self._pool.job(request, check=self._kinds.claim(request))
            else:
                share.give_back(request, self.store.claims)
                share.found.append(found)

    def _claim_key(self, request: MeasureRequest) -> str:
        return claim_key(*request.key, target=self.target.text, environment=self.environment(request.backend))

    def _patience_s(self, request: MeasureRequest) -> float:
        """Return how long somebody else may be at a program."""
        return self._build_timeout_s(request.module) + self.limits.run_timeout_s

    def _outcome_record(self, outcome: Outcome) -> Record:
        request, built = outcome.job.request, outcome.built
        if outcome.job.build.check:
            self._kinds.note(request, built)
        # Another tuner that took a fleet's same answer, or gave up waiting for this one, may have kept it.
        found = self._answer_of(request)
        if found is not None:
            return found
        error = built.relative_error if isinstance(built, Done) else None
        reply = self._kinds.outcome(request, built if outcome.timed is None else outcome.timed)
        return self._keep(request, reply, error, outcome.measured_at)

    def _keep(
        self, request: MeasureRequest, reply: Reply, relative_error: float | None, measured_at: float
    ) -> Record:
        try:
            measurement = self._measurement(request, reply, relative_error, measured_at)
            record_id = self.store.append(request.workload, measurement)
        except ValueError as error:
            # A device or a machine of a fleet may say anything: that tells of it, and not of the program.
            failed = not_by_program(f"it was answered by what no measurement says ({error})")
            measurement = self._measurement(request, failed, None, time.time())
            record_id = self.store.append(request.workload, measurement)
        self.new_measurements += 1
        logger.debug(
            "measured %s on %s: %s", request.workload.fingerprint, request.backend, measurement.status
        )
        record = Record(record_id=record_id, workload=request.workload, measurement=measurement)
        if not measurement.tells_of_program:
            self._failed_here[request.key] = record
        return record

    def _measurement(
        self, request: MeasureRequest, reply: Reply, relative_error: float | None, measured_at: float
    ) -> Measurement:
        return Measurement(
            workload_fingerprint=request.workload.fingerprint,
            backend=request.backend,
            settings=request.settings,
            target=self.target.text,
            environment=self.environment(request.backend),
            status=Status.OK if isinstance(reply, Timed) else why_failed(reply).status,
            samples_us=reply.samples_us if isinstance(reply, Timed) else (),
            message="" if isinstance(reply, Timed) else why_failed(reply).message,
            peak_memory_bytes=reply.peak_memory_bytes if isinstance(reply, Timed) else None,
            relative_error=relative_error,
            measured_at=measured_at,
            seed=self.seed,
        )

    def _answer_of(self, request: MeasureRequest) -> Record | None:
        found = self.find(request.workload, request.backend, settings=request.settings)
        return found if found is not None and _is_answer(found, request) else None

    def _report(self, record: Record, completed: int, total: int) -> None:
        self._on_progress(MeasureProgress(completed=completed, total=total, record=record))


def _is_answer(record: Record, request: MeasureRequest) -> bool:
    """Say whether a record makes it needless to measure."""
    return record.measurement.status is Status.OK or not request.runs_anywhere
