"""The store of records: append measurements, and find those that can be reused.

An append returns when its record is on the disk. A look-up always respects the target and the device model
(TVM's own database checks neither), and by default every field of the environment, because latencies under
another number of threads or another library version differ. Appending an existing record changes nothing and
returns its id. Both databases pass the same contract test, tests/records/database/test_store.py.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

import sqlalchemy as sa

from records.backend_names import kept_name
from records.database.claims import claims_of
from records.database.connection import connect, explained_errors, location_of, parse_url
from records.database.counts import Stats, count_records
from records.database.migration import prepare_schema
from records.database.row import decode_record, decode_workload, select_records
from records.database.schema import environments, measurements, target_fingerprint, workloads
from records.database.verification import Finding, collect_damage
from records.database.writer import PAGE, insert_records, pages
from records.environment import Environment
from records.errors import RecordError, RecordFileError
from records.limits import MAX_INTEGER
from records.measurement import FOREIGN_FAULTS, Measurement, Status
from records.record import Match, Record, preference, storable
from records.workload import Role, Workload

RESTART_PATIENCE_S = 30.0
"""How long to wait for a server that went away: a PostgreSQL restart takes a few seconds."""

_STARTING = "the database system is "
"""Begins what PostgreSQL answers while it starts or stops."""

_reached: set[str] = set()
"""Locations that this process opened before: who does not answer there has gone away, and may come back."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


def open_store(url: str, *, clock: Callable[[], float] = time.time) -> RecordStore:
    """Open the records at a URL, making the file or the tables where they are missing.

    Args:
        url: `sqlite:///path`, `postgresql+psycopg://user@host/database`, or a path of an SQLite file.
        clock: tells seconds since 1970-01-01 UTC, so that a look-up knows a date in the future.

    Returns:
        The store; close it, or use it as a context manager.

    Raises:
        ValueError: the URL names no database that can hold records.
        RecordFileError: the file is damaged, is something else, is read-only, or is of a newer version.
        RecordError: the server does not answer; one that did so before has `RESTART_PATIENCE_S` to return.
    """
    parsed = parse_url(url)
    engine = connect(parsed)
    location = location_of(parsed)

    def prepare() -> None:
        with explained_errors(location):
            prepare_schema(engine, location)

    try:
        _while_it_restarts(prepare, lambda error: location in _reached or _STARTING in str(error))
    except BaseException:
        engine.dispose()
        raise
    _reached.add(location)
    return RecordStore(engine, location, clock=clock)


class RecordStore:
    """Measurements in one database. Open it with `open_store`; it may be used from several threads.

    Attributes:
        claims: what this process is measuring, and others with the same database are not to.
    """

    def __init__(self, engine: sa.Engine, location: str, *, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._location = location
        self.clock = clock
        self.claims = claims_of(engine)

    @property
    def location(self) -> str:
        """Path or URL without password, for messages."""
        return self._location

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give claims back and close all connections; SQLite then folds its write-ahead file in."""
        self.claims.close()
        self._engine.dispose()

    def compact(self) -> None:
        """Give the space of removed records back to the file system; SQLite alone needs to be told."""
        if self._engine.dialect.name != "sqlite":
            return
        with explained_errors(self._location), self._engine.connect() as connection:
            connection.execution_options(within_transaction=False).exec_driver_sql("VACUUM")

    def append(self, workload: Workload, measurement: Measurement) -> int:
        """Keep one measurement and return its record id; on return it is on the disk.

        Raises:
            ValueError: the measurement is not of this workload, or cannot be kept.
            RecordError: it could not be written; nothing was.
        """
        return self.append_many([(workload, measurement)])[0]

    def append_many(self, items: Iterable[tuple[Workload, Measurement]]) -> list[int]:
        """Keep measurements in one transaction: all of them or none.

        Returns:
            The record ids, in the order of the items; equal ids for equal measurements.

        Raises:
            ValueError: a measurement is not of its workload, or cannot be kept; nothing was written.
            RecordError: they could not be written; nothing was.
        """
        pairs = [(workload, storable(workload, measurement)) for workload, measurement in items]
        if not pairs:
            return []
        return self.in_transaction(lambda connection: insert_records(connection, pairs), writes=True)

    def find(
        self,
        fingerprint: str,
        *,
        backend: str,
        target: str,
        environment: Environment,
        settings: str = "",
        match: Match = Match.EXACT,
    ) -> list[Record]:
        """Return what is known of a workload on a backend, failures of the program included.

        The last is the one to use: of the closest environment, and there the newest; see
        `records.record.preference`.

        Raises:
            RecordFileError: a record that was found is damaged.
        """
        query = select_records.where(
            *_matching(target, environment, match),
            measurements.c.workload_fingerprint == fingerprint,
            measurements.c.backend == kept_name(backend),
            measurements.c.settings == settings,
        )
        return self._by_preference(self._read(query), environment)

    def find_latest(
        self,
        fingerprint: str,
        *,
        backend: str,
        target: str,
        environment: Environment,
        settings: str = "",
        match: Match = Match.EXACT,
    ) -> Record | None:
        """Return the last record that `find` returns, or None where it returns none."""
        found = self.find(
            fingerprint,
            backend=backend,
            target=target,
            environment=environment,
            settings=settings,
            match=match,
        )
        return found[-1] if found else None

    def find_many(
        self,
        fingerprints: Iterable[str],
        *,
        target: str,
        environment: Environment,
        match: Match = Match.EXACT,
    ) -> dict[str, list[Record]]:
        """Return what is known of each workload on all backends and settings, in the order of `find`.

        Every fingerprint that was asked for is a key, with an empty list where nothing is known.
        """
        found: dict[str, list[Record]] = {fingerprint: [] for fingerprint in fingerprints}
        query = select_records.where(*_matching(target, environment, match))
        for page in pages(list(found)):
            read = self._read(query.where(measurements.c.workload_fingerprint.in_(page)))
            for record in self._by_preference(read, environment):
                found[record.measurement.workload_fingerprint].append(record)
        return found

    def get(self, record_id: int) -> Record:
        """Return one record.

        Raises:
            RecordError: there is no such record.
        """
        in_range = 0 < record_id <= MAX_INTEGER
        found = self._read(select_records.where(measurements.c.id == record_id)) if in_range else []
        if not found:
            raise RecordError(
                f"record {record_id} is not in {self._location}; `tessel records list` shows those that are"
            )
        return found[0]

    def workload(self, fingerprint: str) -> Workload:
        """Return a stored workload.

        Raises:
            RecordError: there is none with this fingerprint.
        """
        query = sa.select(workloads.c.description).where(workloads.c.fingerprint == fingerprint)
        description = self.in_transaction(lambda connection: connection.scalar(query))
        if description is None:
            raise RecordError(
                f"workload {fingerprint} is not in {self._location}; only measured workloads are kept"
            )
        return decode_workload(fingerprint, description, self._location)

    def iterate(
        self,
        *,
        status: Status | None = None,
        backend: str | None = None,
        target: str | None = None,
        role: Role | None = None,
        after_id: int = 0,
    ) -> Iterator[Record]:
        """Yield records in the order of their ids, reading a page at a time.

        Args:
            status: only those that ended so.
            backend: only this backend's.
            target: only those of this target's canonical text.
            role: only workloads that stand for this.
            after_id: only records with a greater id; the way to go on after an interruption.
        """
        query = select_records.order_by(measurements.c.id).limit(PAGE)
        after_id = min(max(after_id, 0), MAX_INTEGER)
        if status is not None:
            query = query.where(measurements.c.status == status.value)
        if backend is not None:
            query = query.where(measurements.c.backend == kept_name(backend))
        if target is not None:
            query = query.where(measurements.c.target_fingerprint == target_fingerprint(target))
        if role is not None:
            query = query.where(workloads.c.role == role)
        while page := self._read(query.where(measurements.c.id > after_id)):
            yield from page
            after_id = page[-1].record_id

    def best(
        self,
        fingerprints: Sequence[str] | None = None,
        *,
        target: str | None = None,
        environment: Environment | None = None,
        match: Match = Match.EXACT,
    ) -> list[Record]:
        """Return the fastest successful record of each workload, target and device model.

        Ties go to the older record; the order is by workload fingerprint.

        Args:
            fingerprints: only these workloads; None for all.
            target: only this target; None for all.
            environment: only records that match it; needs the target.
            match: how the environment must match.

        Raises:
            ValueError: an environment was given without a target.
        """
        if environment is not None and target is None:
            raise ValueError(
                "an environment was given without a target; records match only within one target"
            )
        rank = (
            sa.func.row_number()
            .over(
                partition_by=(
                    measurements.c.workload_fingerprint,
                    measurements.c.target_fingerprint,
                    environments.c.device_model,
                ),
                order_by=(measurements.c.latency_us, measurements.c.id),
            )
            .label("rank")
        )
        ranked = (
            sa.select(measurements.c.id, rank)
            .select_from(measurements.join(environments))
            .where(measurements.c.status == Status.OK.value)
        )
        if target is not None and environment is not None:
            ranked = ranked.where(*_matching(target, environment, match))
        elif target is not None:
            ranked = ranked.where(measurements.c.target_fingerprint == target_fingerprint(target))
        found = []
        for page in [None] if fingerprints is None else pages(sorted(set(fingerprints))):
            within = ranked if page is None else ranked.where(measurements.c.workload_fingerprint.in_(page))
            chosen = within.subquery()
            query = select_records.join(chosen, chosen.c.id == measurements.c.id).where(chosen.c.rank == 1)
            found += self._read(query)
        return sorted(found, key=lambda record: (record.workload.fingerprint, record.record_id))

    def stats(self) -> Stats:
        """Count the records by status, target and backend."""
        return self.in_transaction(partial(count_records, location=self._location))

    def verify(self) -> list[Finding]:
        """Read everything and return what is not as it was written; empty for a sound store."""
        findings: list[Finding] = []
        try:
            self.in_transaction(partial(collect_damage, location=self._location, findings=findings))
        except RecordFileError as error:
            findings.append(Finding(subject=self._location, problem=str(error)))
        return findings

    def _by_preference(self, found: Iterable[Record], environment: Environment) -> list[Record]:
        now = self.clock()
        return sorted(found, key=lambda record: preference(record, environment, now=now))

    def _read(self, query: sa.Select[tuple[object, ...]]) -> list[Record]:
        return [decode_record(row, self._location) for row in self._rows(query)]

    def _rows(self, query: sa.Select[tuple[object, ...]]) -> Sequence[sa.Row[tuple[object, ...]]]:
        return self.in_transaction(lambda connection: connection.execute(query).all())

    def in_transaction(self, work: Callable[[sa.Connection], T], *, writes: bool = False) -> T:
        """Run the work in one transaction, again where a server went away in the middle.

        For the modules of this package, which add what the store itself need not know. Doing it again is
        safe: a record that was written but not answered is found by its digest.
        """
        engine = self._engine.execution_options(writes=writes)
        if not writes and engine.dialect.name == "postgresql":
            # One state for all of its queries, as SQLite gives: what appends meanwhile is not half seen.
            engine = engine.execution_options(isolation_level="REPEATABLE READ")

        def transaction() -> T:
            with explained_errors(self._location), engine.begin() as connection:
                return work(connection)

        return _while_it_restarts(transaction, lambda error: True)


def _while_it_restarts(work: Callable[[], T], may_return: Callable[[RecordError], bool]) -> T:
    """Do some work, again where a server went away that may return."""
    give_up_at = time.monotonic() + RESTART_PATIENCE_S
    for attempt in itertools.count():
        try:
            return work()
        except RecordError as error:
            if not _server_went_away(error) or not may_return(error) or time.monotonic() > give_up_at:
                raise
            logger.warning("%s; trying again", error)
            time.sleep(min(0.1 * 2**attempt, 2.0))
    raise AssertionError("the loop ends by returning or raising")


def _server_went_away(error: RecordError) -> bool:
    cause = error.__cause__
    if isinstance(cause, sa.exc.DBAPIError) and cause.connection_invalidated:
        return True
    return isinstance(cause, sa.exc.OperationalError) and type(cause.orig).__module__.startswith("psycopg")


def _matching(target: str, environment: Environment, match: Match) -> list[sa.ColumnElement[bool]]:
    """Return the conditions under which a record of this target may stand for the environment."""
    conditions = [
        measurements.c.target_fingerprint == target_fingerprint(target),
        *(~measurements.c.message.startswith(fault) for fault in FOREIGN_FAULTS),
    ]
    if match is Match.EXACT:
        return [*conditions, measurements.c.environment_fingerprint == environment.fingerprint]
    conditions += [
        environments.c.device_kind == environment.device_kind,
        environments.c.device_model == environment.device_model,
    ]
    if match is Match.COMPATIBLE:
        conditions.append(environments.c.num_threads == environment.num_threads)
    return conditions
