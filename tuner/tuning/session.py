"""The resources of a tuning session: target, backends, records, measuring process.

A session owns the open record store and the measuring worker, and releases both on any exit; every finished
measurement is in the records by then. It also carries the progress callback (`TuningProgress`).
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlencode

from records import Environment, Match, Measurement, RecordStore, Status, Workload, open_store
from tuner.backends.environment import environment_of
from tuner.backends.protocol import Backend
from tuner.backends.registry import available_backends, backends_for
from tuner.errors import TunerError, UnknownNameError
from tuner.measuring.measurer import MeasureProgress, Measurer
from tuner.measuring.program_pool import ProgramPool
from tuner.measuring.request import DEFAULT_LIMITS
from tuner.measuring.worker_pool import WorkerPool
from tuner.numerical_error import Deviation
from tuner.partition.assignment import Assignment
from tuner.pricing.protocol import Pricing
from tuner.stages.check import WholeResults
from tuner.targets.device_probe import ensure_probed, settle_probes
from tuner.targets.remote import is_remote
from tuner.targets.resolution import check_measurable, resolve_target
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

CHECK_BACKEND = "check"
"""What records of numerical checks carry for a backend; their samples are the check's own duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningProgress:
    """One sign of life: what is being done, and how much of it is done."""

    text: str
    completed: int | None = None
    total: int | None = None


def _ignore(_: object) -> None:
    """Take what is told, and leave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Who is told what is going on.

    Attributes:
        on_progress: takes signs of life.
        on_note: takes sentences that a user should read once.
    """

    on_progress: Callable[[TuningProgress], None] = _ignore
    on_note: Callable[[str], None] = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that measures, for one target.

    Attributes:
        target: what is built for and measured on.
        backends: who may run sub-graphs; available on the target.
        measurer: measures what the records do not have.
        pricing: how candidates get their prices.
        assignments: which backends may run some operators.
        whole_results: of the model whose stages were checked last.
    """

    target: Target
    backends: tuple[Backend, ...]
    store: RecordStore
    measurer: Measurer
    seed: int
    pricing: Pricing
    on_progress: Callable[[TuningProgress], None]
    assignments: tuple[Assignment, ...] = ()
    whole_results: WholeResults = field(default_factory=WholeResults)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Who may run sub-graphs, and how measurements are made.

    Attributes:
        backend_names: backends to choose among; every available one if None.
        trials: MetaSchedule trials per kernel; 0 leaves that backend out, unless there is a database.
        database: folder of a MetaSchedule database to read and add to; one of our own if None.
        proposer: who proposes MetaSchedule's trials; if None, evolution where they are enough for it.
        language_model: folder of the language model, if that proposes; the usual one if None.
        num_threads: threads each measurement uses; all cores if None.
        jobs: programs built at once.
        match: which records of other environments are used again.
        fleet: address of the scheduler of a fleet whose machines measure; this machine does if None.
        assignments: which backends may run some operators; any that can, if none are given.
    """

    backend_names: Sequence[str] | None = None
    trials: int = 0
    database: str | None = None
    proposer: str | None = None
    language_model: str | None = None
    num_threads: int | None = None
    jobs: int = 1
    seed: int = 0
    match: Match = Match.EXACT
    fleet: str | None = None
    assignments: tuple[Assignment, ...] = ()


@contextmanager
def start_session(
    target_name: str,
    settings: SessionSettings = SessionSettings(),
    *,
    records_url: str,
    pricing: Pricing | None = None,
    on_progress: Callable[[TuningProgress], None] = lambda progress: None,
) -> Iterator[Session]:
    """Open the records and start the measuring worker; both are given back when the body ends.

    Args:
        target_name: as a user writes it, such as `cpu`.
        settings: who may run sub-graphs, and how measurements are made.
        records_url: SQLAlchemy URL or path of the records.
        pricing: how candidates get their prices; all measured if None.

    Raises:
        UnknownNameError: there is no such target or backend; lists those there are.
        TunerError: the target is not the device that is here, or a backend that was asked for cannot run
            here, or no machine of the fleet measures for the target; says why.
        RecordError: the records cannot be opened.
    """
    if is_remote(target_name) and pricing is not None and pricing.mode != "measured":
        raise ValueError(
            f"prices by --price {pricing.mode} start from a device's peak rates, which are not probed behind "
            "an RPC tracker; leave out --price"
        )
    place = _measuring_place(target_name, settings, records_url)  # before a file of records is made
    target, backends = place.target, place.backends
    check_assignments(settings.assignments, backends)

    def report(progress: MeasureProgress) -> None:
        operators = progress.record.workload.operators
        name = operators[0].name if operators else progress.record.workload.role
        on_progress(
            TuningProgress(
                text=f"measuring {name} on {progress.record.measurement.backend}",
                completed=progress.completed,
                total=progress.total,
            )
        )

    with (
        open_store(records_url) as store,
        Measurer(
            store,
            target,
            backends,
            seed=settings.seed,
            match=settings.match,
            pool=place.pool,
            on_progress=report,
        ) as measurer,
    ):
        is_probed = place.is_probed and (pricing is None or pricing.mode != "rules")
        if is_probed:
            on_progress(TuningProgress(text="probing the device"))
            # No backend takes part in a probe, so that none's versions decide whether it is known.
            measurer.new_measurements += ensure_probed(
                store, target=target, environment=place.environment, measure=place.probe
            )
        yield Session(
            target=target,
            backends=backends,
            store=store,
            measurer=measurer,
            seed=settings.seed,
            pricing=pricing or Pricing(),
            on_progress=on_progress,
            assignments=settings.assignments,
        )
        if is_probed and measurer.new_measurements:
            _settle_probes(store, target, place)


def _settle_probes(store: RecordStore, target: Target, place: _MeasuringPlace) -> None:
    """See that the next session finds probes that no kernel of this one contradicts."""
    try:
        settle_probes(store, target=target, environment=place.environment, measure=place.probe)
    except TunerError as error:
        logger.warning("%s; what was measured is kept, and the next session probes the device again", error)


def check_assignments(assignments: Sequence[Assignment], backends: Sequence[Backend]) -> None:
    """Refuse assignments to backends that do not take part.

    Raises:
        UnknownNameError: one names such a backend; lists those that do.
    """
    names = [backend.name for backend in backends]
    for assignment in assignments:
        missing = [name for name in assignment.backends if not fnmatch.filter(names, name)]
        if missing:
            raise UnknownNameError(
                f"{assignment} names backend {missing[0]!r}, which does not take part; choose among "
                f"{', '.join(names)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuringPlace:
    """Where programs are measured.

    Attributes:
        target: as it is resolved there.
        environment: without any backend's versions.
        probe: measures the device's peak rates; None where that is this machine's.
        is_probed: whether the peak rates, from which predictions start, are measured.
    """

    target: Target
    backends: tuple[Backend, ...]
    pool: ProgramPool
    environment: Environment
    probe: Callable[[], list[tuple[Workload, Measurement]]] | None
    is_probed: bool = True


def _measuring_place(target_name: str, settings: SessionSettings, records_url: str) -> _MeasuringPlace:
    limits, seed = DEFAULT_LIMITS, settings.seed
    if settings.fleet is not None:
        return _place_in_fleet(settings.fleet, target_name, settings, records_url)
    if is_remote(target_name):
        return _place_behind_tracker(target_name, settings)
    target = resolve_target(target_name, num_threads=settings.num_threads)
    check_measurable(target)
    backends = _backends(settings.backend_names, target, _tuned(settings, records_url))
    pool = WorkerPool(target, backends, limits=limits, seed=seed, size=settings.jobs)
    environment = environment_of(target)
    return _MeasuringPlace(target=target, backends=backends, pool=pool, environment=environment, probe=None)


def _tuned_in_fleet(settings: SessionSettings, records_url: str) -> str | None:
    """Return the reference of the tuned backend that was asked for, as machines of a fleet can use it.

    Raises:
        ValueError: it needs files of the tuner's machine.
    """
    if settings.database is not None:
        raise ValueError(
            "--tvm-database names a folder of this machine, which those of a fleet do not have; leave it "
            "out, or tune without --fleet"
        )
    if records_url.startswith("postgresql"):
        return _tuned(settings, records_url)
    if settings.proposer in ("draft", "neighbour"):
        raise ValueError(
            "the machines of a fleet learn from records only where they reach them, and these are a file of "
            "this machine; give --records with a PostgreSQL server, or leave out --proposer"
        )
    return _tuned(settings, "")


def _place_in_fleet(
    address: str, target_name: str, settings: SessionSettings, records_url: str
) -> _MeasuringPlace:
    tuned = _tuned_in_fleet(settings, records_url)
    names = settings.backend_names
    if names is not None:
        names = [tuned if name == "metaschedule" and tuned else name for name in names]
    try:
        from tuner.fleet.fleet_pool import FleetPool, find_machines  # noqa: PLC0415 - Dask, where it is asked for
        from tuner.fleet.task_queue import TaskQueue  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise TunerError(
            f"--fleet needs {error.name}, which is not installed; install the extra `fleet`"
        ) from error
    queue = TaskQueue(address)
    try:
        machines = find_machines(
            queue, target_name, num_threads=settings.num_threads, backends=names, tuned=tuned
        )
        backends = backends_for(machines.identity.backends, machines.target)
    except BaseException:
        queue.close()
        raise
    pool = FleetPool(queue, machines, backends, limits=DEFAULT_LIMITS, seed=settings.seed)
    return _MeasuringPlace(
        target=machines.target,
        backends=backends,
        pool=pool,
        environment=machines.device,
        probe=pool.probe,
    )


def _place_behind_tracker(target_name: str, settings: SessionSettings) -> _MeasuringPlace:
    from tuner.fleet.rpc_pool import CAN_TRAVEL, RpcPool, find_device  # noqa: PLC0415 - only where it is asked for

    if settings.trials or settings.database is not None:
        raise ValueError(
            "kernels are not tuned on devices behind an RPC tracker yet; leave out --trials and "
            "--tvm-database"
        )
    names = CAN_TRAVEL if settings.backend_names is None else tuple(settings.backend_names)
    bound = sorted(name for name in names if name.partition("?")[0] not in CAN_TRAVEL)
    if bound:
        raise ValueError(
            f"backend {bound[0]!r} calls what is loaded in the process that runs it, which a device behind "
            f"an RPC tracker lacks; choose among {', '.join(CAN_TRAVEL)}"
        )
    if settings.num_threads is not None:
        raise ValueError(
            "--threads says nothing to a device behind an RPC tracker; give it to the `tessel fleet server` "
            "that offers the device"
        )
    found = find_device(target_name)
    backends = backends_for(names, found.target)
    pool = RpcPool(found, backends, limits=DEFAULT_LIMITS, seed=settings.seed, size=settings.jobs)
    return _MeasuringPlace(
        target=found.target,
        backends=backends,
        pool=pool,
        environment=found.environment,
        probe=None,
        is_probed=False,
    )


def checked_error(
    session: Session, workload: Workload, *, settings: str, tolerance: float, check: Callable[[], Deviation]
) -> Deviation:
    """Return a numerical check's worst tensor, from the records where the check was passed before.

    A check that failed is made again, because the records know by how much, but not in which tensor.

    Args:
        workload: names what is checked.
        settings: what else the result depends on, such as a partition's fingerprint.
        tolerance: largest relative error that passes.
        check: makes the check and returns the worst tensor.
    """
    with session.measurer.claimed(f"{CHECK_BACKEND} {workload.fingerprint} {settings}"):
        return _checked_error(session, workload, settings, tolerance, check)


def _checked_error(
    session: Session, workload: Workload, settings: str, tolerance: float, check: Callable[[], Deviation]
) -> Deviation:
    measurer = session.measurer
    found = measurer.find(workload, CHECK_BACKEND, settings=settings)
    if found is not None:
        known = Deviation(tensor="what was checked before", relative_error=found.measurement.relative_error)
        if known.is_within(tolerance):
            return known
    start = time.perf_counter()
    deviation = check()
    if deviation.relative_error is None:
        return deviation
    session.store.append(
        workload,
        Measurement(
            workload_fingerprint=workload.fingerprint,
            backend=CHECK_BACKEND,
            settings=settings,
            target=session.target.text,
            environment=measurer.environment(CHECK_BACKEND),
            status=Status.OK,
            samples_us=((time.perf_counter() - start) * 1e6,),
            relative_error=deviation.relative_error,
            measured_at=time.time(),
            seed=session.seed,
        ),
    )
    measurer.new_measurements += 1
    return deviation


def _tuned(settings: SessionSettings, records_url: str) -> str | None:
    """Return the reference of the tuned backend that was asked for."""
    if not settings.trials and settings.database is None:
        return None
    where = {} if settings.database is None else {"database": settings.database}
    named = {
        "trials": settings.trials,
        **where,
        **({"records": records_url} if records_url else {}),
        **({} if settings.proposer is None else {"proposer": settings.proposer}),
        **({} if settings.language_model is None else {"language_model": settings.language_model}),
    }
    return f"metaschedule?{urlencode(named)}"


def _backends(names: Sequence[str] | None, target: Target, tuned: str | None) -> tuple[Backend, ...]:
    if names is None:
        found = [backend for backend in available_backends(target) if backend.name != "metaschedule"]
        return (*found, *backends_for([tuned], target)) if tuned else tuple(found)
    return backends_for([tuned if name == "metaschedule" and tuned else name for name in names], target)
