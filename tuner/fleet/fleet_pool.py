"""Measure through a fleet: each candidate is a task for a machine of the right device, threads and software.

A task's key is what its record is found by, so that two tuners that need the same candidate at the same time
measure it once. Checked in tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from records import Environment, Measurement, Workload
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.kernel_exchange import TunedKernel, add_kernels, read_kernels
from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.fleet.check_order import CheckOrder
from tuner.fleet.device_tasks import ALIKE, DEVICE, carry_out, describe
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
    Task,
    identity_of,
)
from tuner.fleet.process_tasks import arrays_of, bytes_of
from tuner.fleet.task_queue import Sent, TaskQueue
from tuner.measuring.messages import Compare, Ran, Reply, Run
from tuner.measuring.program_pool import Job, Outcome
from tuner.measuring.race import FEWEST_ROUNDS, RaceResult
from tuner.measuring.request import Limits, MeasureRequest
from tuner.measuring.worker_pool import job_of
from tuner.measuring.worker_process import START_TIMEOUT_S
from tuner.targets.target import Target

AnyResult = TypeVar("AnyResult", Measured, RaceEnded, Answered, Probed)

SPARE_S = 3 * START_TIMEOUT_S
"""How long a machine may take beside a task's own limits: it may start its measuring process again."""

PROBE_S = 600.0
"""How long a machine may take to measure its peak rates; half a minute is usual."""

TASK_S = "TESSEL_FLEET_TASK_S"
"""Environment variable: seconds that a machine may take for a task, in place of what its limits come to."""

_AHEAD = 2
"""Candidates on their way for each machine: one that ends a candidate finds the next one there."""


@dataclass(frozen=True, slots=True)
class FleetTarget:
    """The machines of a fleet that measure for a target.

    Attributes:
        target: as they resolve it.
        device: where programs run, without any backend's versions.
        num_machines: how many there were when they were asked.
    """

    identity: Identity
    target: Target
    device: Environment
    num_machines: int


def find_machines(
    tasks: TaskQueue,
    target_name: str,
    *,
    num_threads: int | None,
    backends: Sequence[str] | None,
    tuned: str | None = None,
) -> FleetTarget:
    """Return the machines of a fleet that measure for a target.

    Args:
        tasks: the connection to the fleet.
        target_name: as the user wrote it.
        num_threads: threads of a measurement; the machines' own number if None.
        backends: references of what lowers programs; every available one if None.
        tuned: reference of what tunes kernels, beside every available one.

    Raises:
        TunerError: there are none, or machines that are not alike; says what there is.
    """
    named = None if backends is None else tuple(backends)
    query = Query(target=target_name, num_threads=num_threads, backends=named, tuned=tuned)
    answers = tasks.ask_all(describe, msgspec.msgpack.encode(query))
    if not answers:
        raise TunerError(
            f"the fleet at {tasks.address} has no workers; start one on each machine by `tessel fleet worker "
            f"{tasks.address}`"
        )
    alike: defaultdict[tuple[str, str], list[Identity]] = defaultdict(list)
    obstacles = set()
    for answer in answers.values():
        found = identity_of(answer)
        if found.target is None or found.device is None:
            obstacles.add(found.obstacle)
        elif not found.resource.startswith(ALIKE):
            obstacles.add("a worker was not started by `tessel fleet worker`")
        else:
            alike[found.resource, found.fingerprint].append(found)
    if not alike:
        raise TunerError(
            f"none of the {len(answers)} workers of the fleet at {tasks.address} measures for "
            f"{target_name!r} ({'; '.join(sorted(obstacles))}); see `tessel fleet status {tasks.address}`"
        )
    if len(alike) > 1:
        kinds = sorted(f"{len(group)} x {_described(group[0].environments[''])}" for group in alike.values())
        raise TunerError(
            f"the fleet at {tasks.address} has machines that are not alike for {target_name!r} "
            f"({'; '.join(kinds)}), and what one measures does not hold for another; give a --target or "
            "--threads that only some have, or a fleet of their own"
        )
    ((group),) = alike.values()
    first = group[0]
    assert first.target is not None, "machines without the target are obstacles"
    assert first.device is not None, "the same"
    return FleetTarget(first, first.target, first.device, len(group))


def _described(environment: Environment) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions)
    return f"{environment.device_model}, {environment.num_threads} threads, {versions}"


class FleetPool:
    """The machines of a fleet that measure for a target; a `ProgramPool`.

    Args:
        tasks: the connection to the fleet, closed with the pool.
        machines: those that measure.
        backends: who lowers partitions.
        limits: when to give up, and how long to time.
        seed: seed of the random inputs.
    """

    num_runs = 1

    def __init__(
        self,
        tasks: TaskQueue,
        machines: FleetTarget,
        backends: Sequence[Backend],
        *,
        limits: Limits,
        seed: int,
    ) -> None:
        self._tasks = tasks
        self._backends = tuple(backends)
        self._limits = limits
        self._seed = seed
        self._environments: Mapping[str, Environment] = machines.identity.environments
        self._machine = Machine(
            target=machines.target,
            backends=machines.identity.backends,
            fingerprint=machines.identity.fingerprint,
        )
        self._resources = (DEVICE, machines.identity.resource)
        self._numbers = itertools.count()
        self._task_s = task_time_s(os.environ.get(TASK_S))
        tuners = [each for each in self._backends if isinstance(each, MetaSchedule)]
        self._kernel_folders = [each.folder(machines.target) for each in tuners]
        self._kernels = {
            name: kernel for folder in self._kernel_folders for name, kernel in read_kernels(folder).items()
        }

    def close(self) -> None:
        """Close the connection to the fleet, whose machines go on."""
        self._tasks.close()

    def interrupt(self) -> None:
        """Do nothing: one module runs at a time, for the thread that is interrupted itself."""

    def environment(self, backends: Sequence[Backend]) -> Environment:
        """Return where programs that these backends lower run: on the fleet's machines."""
        if len(backends) == 1 and backends[0].name in self._environments:
            return self._environments[backends[0].name]
        return self._environments[""]

    def job(self, request: MeasureRequest, *, check: bool) -> Job:
        """Return the job of a request; its results are checked where asked."""
        return job_of(request, check=check, seed=self._seed, limits=self._limits, backends=self._backends)

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Send jobs to the machines as these become free; yield each outcome when it is known.

        An outcome that another program's check may overturn waits for that check.
        """
        order = CheckOrder()

        def tasks() -> Iterator[Sent[tuple[Job, str]]]:
            for job in jobs:
                order.begin(job)
                candidate = Candidate(
                    machine=self._machine,
                    kernels=self._known_kernels() if job.request.backend == MetaSchedule.name else (),
                    build=job.build,
                    build_timeout_s=job.timeout_s,
                    limits=self._limits,
                )
                key = self._candidate_key(job)
                document = msgspec.msgpack.encode(Request(asked=key, task=candidate))
                yield Sent((job, key), key, (document,), limit_s=self._limit_s(candidate))

        for (job, key), (document, *_) in self._tasks.results(
            carry_out, tasks(), resources=self._resources, in_flight=self._num_in_flight
        ):
            measured = _decoded(document, Measured, asked=key)
            self._keep(measured.kernels)
            outcome = Outcome(
                job=job, built=measured.built, timed=measured.timed, measured_at=measured.measured_at
            )
            yield from order.end(outcome)

    def race(self, requests: Sequence[MeasureRequest]) -> RaceResult:
        """Run programs in turn on one machine until it is known which is the fastest."""
        jobs = [self.job(request, check=False) for request in requests]
        task = RaceOf(
            machine=self._machine,
            builds=tuple(job.build for job in jobs),
            build_timeouts_s=tuple(job.timeout_s for job in jobs),
            limits=self._limits,
            seed=self._seed,
            kernels=self._known_kernels(),
        )
        result = self._do(task, RaceEnded)[0].result
        samples = tuple(itertools.chain.from_iterable(result.samples))
        if (
            len(result.samples) != len(requests)
            or not all(result.samples)
            or not all(0 < sample < math.inf for sample in samples)
            or not result.survivors
            or not set(result.survivors) <= set(range(len(requests)))
        ):
            raise TunerError(
                "a machine of the fleet answers with a race that cannot be: each program has latencies above "
                "0 in it, and one is the fastest; look at its clock, and start its worker again"
            )
        return result

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Reply | tuple[np.ndarray, ...]:
        """Return the results of running a module once, on one machine, or how that failed."""
        task = Ask(machine=self._machine, request=request, timeout_s=timeout_s, kernels=self._known_kernels())
        answered, results = self._do(task, Answered, bytes_of(arrays))
        reply = answered.reply
        if not isinstance(reply, Ran):
            return reply
        try:
            return arrays_of(reply.arrays, results)
        except (ValueError, TypeError) as error:
            raise TunerError(
                f"a machine of the fleet answers with arrays that are not what it says of them ({error}); "
                "start its worker again"
            ) from error

    def compare(self, request: Compare, timeout_s: float) -> Reply:
        """Return how far two modules' results are apart, by one machine, or how that failed."""
        task = Ask(machine=self._machine, request=request, timeout_s=timeout_s, kernels=self._known_kernels())
        return self._do(task, Answered)[0].reply

    def probe(self) -> list[tuple[Workload, Measurement]]:
        """Measure the peak rates of one machine's device, which is like all others'."""
        return list(self._do(Probe(machine=self._machine), Probed)[0].probes)

    def _known_kernels(self) -> tuple[TunedKernel, ...]:
        """Return the kernels that are tuned, by this tuner's database and by what the fleet found since."""
        return tuple(self._kernels.values())

    def _keep(self, kernels: Iterable[TunedKernel]) -> None:
        """Add kernels that a machine has tuned to this tuner's database."""
        new = [kernel for kernel in kernels if kernel.name not in self._kernels]
        if new:
            self._kernels.update((kernel.name, kernel) for kernel in new)
            for folder in self._kernel_folders:
                add_kernels(folder, new)

    def _do(
        self, task: Task, kind: type[AnyResult], arrays: Sequence[bytes] = ()
    ) -> tuple[AnyResult, Sequence[bytes]]:
        """Have one machine do one task, and return its result and the bytes that belong to it."""
        # Two tuners that ask the same want answers of their own: they may be arrays of any size.
        digest = _digest(msgspec.msgpack.encode(task))
        key = f"tessel-{type(task).__name__.lower()}-{id(self)}-{next(self._numbers)}-{digest}"
        document = msgspec.msgpack.encode(Request(asked=key, task=task))
        sent = Sent(None, key, (document, *arrays), limit_s=self._limit_s(task))
        results = self._tasks.results(carry_out, [sent], resources=self._resources, in_flight=lambda: 1)
        ((_, (answer, *more)),) = results
        return _decoded(answer, kind, asked=key), more

    def _limit_s(self, task: Task) -> float:
        """Return how long a machine may take for a task: as the user says, or by the task's own limits."""
        if self._task_s is not None:
            return self._task_s
        run_s = self._limits.run_timeout_s
        match task:
            case Candidate():
                own_s = task.build_timeout_s + run_s
            case RaceOf():
                rounds_s = FEWEST_ROUNDS * len(task.builds) * run_s
                own_s = sum(task.build_timeouts_s) + self._limits.race_s + rounds_s
            case Ask():
                own_s = task.timeout_s
            case Probe():
                own_s = PROBE_S
        return own_s + SPARE_S

    def _candidate_key(self, job: Job) -> str:
        limits = msgspec.msgpack.encode(self._limits)
        parts = (*job.request.key, self._machine.fingerprint, str(self._seed), str(job.build.check))
        return f"tessel-candidate-{_digest(b'|'.join([*(part.encode() for part in parts), limits]))}"

    def _num_in_flight(self) -> int:
        machines = [
            info for info in self._tasks.workers().values() if self._resources[1] in info["resources"]
        ]
        return _AHEAD * max(1, len(machines))


def task_time_s(text: str | None) -> float | None:
    """Return the seconds that `TASK_S` says, None where it says nothing.

    Raises:
        TunerError: they are no time.
    """
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise TunerError(f"{TASK_S} is {text!r}, which is no time; give seconds above 0, such as 600")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _decoded(document: bytes, kind: type[AnyResult], *, asked: str) -> AnyResult:
    """Return a result of the kind that was asked for.

    Raises:
        TunerError: the machine refused, or answers as another version would, or another request.
    """
    try:
        answer = msgspec.msgpack.decode(document, type=Answer)
    except msgspec.MsgspecError as error:
        raise TunerError(
            f"a machine of the fleet answers what this version does not understand ({error}); install the "
            "same version on all of them"
        ) from error
    result = answer.result
    if answer.asked != asked:
        raise TunerError(
            f"a machine of the fleet answers request {answer.asked[:80]!r}, and was asked {asked!r}; start "
            "its worker again"
        )
    if isinstance(result, Refused):
        raise TunerError(f"a machine of the fleet refused a task: {result.message}; start its worker again")
    if not isinstance(result, kind):
        raise TunerError(f"a machine of the fleet answered with {type(result).__name__}; start it again")
    return result
