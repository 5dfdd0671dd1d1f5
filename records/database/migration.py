"""Opening a database of records: it is created, used as it is, upgraded or refused.

The version is stored in the table `record_schema`. An older database is upgraded in one transaction: its
records are read as values according to the old tables, and written by the current code under their old ids (a
plan refers to its records by id). A crash in between leaves the old database unchanged. The old tables are
kept: an SQLite file is first copied to `NAME.v1-backup` beside it, and on PostgreSQL the old tables move to
the schema `records_v1_backup`. A newer database is refused. Checked in
tests/records/database/test_migration.py.

Versions: 1 held target and latency in no table of their own and had no digests; 2 is described in
`records.database.schema`.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import sqlalchemy as sa

from records.database.connection import is_read_only, not_of_records, write_version
from records.database.schema import SCHEMA_VERSION, metadata, record_schema
from records.database.writer import PAGE, insert_records
from records.environment import Environment
from records.errors import RecordFileError
from records.measurement import Measurement, Status
from records.record import storable
from records.workload import Workload

logger = logging.getLogger(__name__)

_LOCK_KEY = 0x7E55E1
"""Any fixed number: PostgreSQL lets one client at a time hold it, so that two do not make tables at once."""

_OldRecord = tuple[int, Workload, Measurement]


def prepare_schema(engine: sa.Engine, location: str) -> None:
    """Bring the database's tables to `SCHEMA_VERSION`.

    Raises:
        RecordFileError: the database is not one of records, or a newer version made it, or one of its records
            is damaged.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Waits for whoever is upgrading: half of an upgrade would look like somebody else's tables.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(_LOCK_KEY)))
        version = _read_version(connection, location)
        if version != SCHEMA_VERSION and is_read_only(connection):
            raise RecordFileError(
                f"records file {location} has schema version {version} and must be upgraded, but it or its "
                "folder is read-only; copy it to a folder that you may write in"
            )
    if version == SCHEMA_VERSION:
        return
    with engine.execution_options(writes=True).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
        # Asked again under the lock: another process may have been first.
        version = _read_version(connection, location)
        if version is None:
            write_version(connection)
        elif version < SCHEMA_VERSION:
            _upgrade(connection, version, location)


def _read_version(connection: sa.Connection, location: str) -> int | None:
    """Return the version; None where a PostgreSQL database is empty."""
    names = set(sa.inspect(connection).get_table_names())
    if record_schema.name not in names and connection.dialect.name == "postgresql":
        _refuse_foreign(connection, location)
        return None
    versions: Sequence[int] = ()
    if record_schema.name in names:
        versions = connection.execute(sa.select(record_schema.c.version)).scalars().all()
    if len(versions) != 1 or (versions[0] == SCHEMA_VERSION and not set(metadata.tables) <= names):
        raise not_of_records(location)
    if versions[0] > SCHEMA_VERSION:
        raise RecordFileError(
            f"records in {location} have schema version {versions[0]}, and this installation knows versions "
            f"up to {SCHEMA_VERSION}; upgrade tessel-tuner, or name another file"
        )
    if versions[0] < SCHEMA_VERSION and versions[0] not in _OLD_VERSIONS:
        raise RecordFileError(
            f"records in {location} have schema version {versions[0]}, which never was; restore a backup"
        )
    return versions[0]


def _refuse_foreign(connection: sa.Connection, location: str) -> None:
    """Refuse a database that somebody else uses, before anything is written into it.

    Raises:
        RecordFileError: it has tables (those of PostgreSQL's extensions do not count), or something else by a
            name of ours.
    """
    query = sa.text(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = current_schema() AND (c.relname = ANY(:names) OR (c.relkind IN ('r', 'p', 'f') "
        "AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e'))) "
        "ORDER BY c.relname"
    )
    indexes = [str(index.name) for table in metadata.tables.values() for index in table.indexes]
    found = connection.execute(query, {"names": [*metadata.tables, *indexes]}).scalars().all()
    if found:
        shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise RecordFileError(
            f"{location} is a database of something else: it has {shown}, and not the tables of records; "
            "make one for the records alone (createdb records) and name that"
        )


def _upgrade(connection: sa.Connection, version: int, location: str) -> None:
    logger.info("upgrading records in %s from schema version %d to %d", location, version, SCHEMA_VERSION)
    old = _OLD_VERSIONS[version]
    if connection.dialect.name == "sqlite":
        _back_up_file(Path(location), version)
        _set_aside_sqlite(connection, old.tables)
        name_of_old = {name: f"old_{name}" for name in old.tables}
    else:
        schema = _set_aside_postgresql(connection, old.tables, version)
        name_of_old = {name: f"{schema}.{name}" for name in old.tables}
    write_version(connection)
    num_read = 0
    records = old.read(connection, name_of_old, location)
    while page := list(itertools.islice(records, PAGE)):
        insert_records(
            connection,
            [(workload, measurement) for _, workload, measurement in page],
            [row[0] for row in page],
        )
        num_read += len(page)
    if connection.dialect.name == "sqlite":
        # Referring tables first: foreign keys are checked when a table is dropped.
        for name in reversed(old.tables):
            connection.exec_driver_sql(f"DROP TABLE {name_of_old[name]}")
    else:
        _continue_ids(connection)
    logger.info("upgraded %d records in %s", num_read, location)


def _back_up_file(path: Path, version: int) -> None:
    """Copy the file as it is to a name of its own; an equal one from an earlier attempt is as good."""
    backup = path.with_name(f"{path.name}.v{version}-backup")
    partial = backup.with_name(f".tessel-{secrets.token_hex(8)}.part")  # a name that nobody can lay a link at
    try:
        # A connection of its own reads what is committed, while the upgrade holds the write lock.
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(partial)) as copy,
        ):
            source.backup(copy)
        number = 1
        while backup.exists() and not filecmp.cmp(partial, backup, shallow=False):
            number += 1
            backup = path.with_name(f"{path.name}.v{version}-backup-{number}")
        os.rename(partial, backup)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise RecordFileError(
            f"records file {path} has schema version {version} and must be upgraded, but its backup {backup} "
            f"could not be written ({error}); free some space there and run again"
        ) from error
    logger.warning("records file %s is upgraded; the old one is kept as %s", path, backup)


def _set_aside_sqlite(connection: sa.Connection, names: tuple[str, ...]) -> None:
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO old_{name}")
    # Indexes keep their names when their table is renamed, and would be in the way of the new ones.
    query = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    for index in connection.exec_driver_sql(query).scalars().all():
        connection.exec_driver_sql(f'DROP INDEX "{index}"')


def _set_aside_postgresql(connection: sa.Connection, names: tuple[str, ...], version: int) -> str:
    schema = f"records_v{version}_backup"
    connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {name} SET SCHEMA {schema}")
    return schema


def _continue_ids(connection: sa.Connection) -> None:
    connection.exec_driver_sql(
        "SELECT setval(pg_get_serial_sequence('measurements', 'id'), "
        "(SELECT COALESCE(MAX(id), 0) + 1 FROM measurements), false)"
    )


def _read_version_1(
    connection: sa.Connection, name_of: Mapping[str, str], location: str
) -> Iterator[_OldRecord]:
    after_id = 0
    query = sa.text(
        f"SELECT m.*, w.description AS workload, e.description AS environment "
        f"FROM {name_of['measurements']} m "
        f"JOIN {name_of['workloads']} w ON w.fingerprint = m.workload_fingerprint "
        f"JOIN {name_of['environments']} e ON e.fingerprint = m.environment_fingerprint "
        f"WHERE m.id > :after_id ORDER BY m.id LIMIT {PAGE}"
    )
    while rows := connection.execute(query, {"after_id": after_id}).all():
        for row in rows:
            yield _decode_version_1(row, location)
        after_id = rows[-1].id


def _decode_version_1(row: sa.Row[tuple[object, ...]], location: str) -> _OldRecord:
    try:
        workload = Workload.from_json(row.workload)
        measurement = Measurement(
            workload_fingerprint=row.workload_fingerprint,
            backend=row.backend,
            target=row.target,
            environment=msgspec.json.decode(row.environment, type=Environment),
            status=Status(row.status),
            samples_us=msgspec.json.decode(row.samples_us, type=tuple[float, ...]),
            settings=row.settings,
            message=row.message,
            peak_memory_bytes=row.peak_memory_bytes,
            measured_at=row.measured_at,
            seed=row.seed,
        )
        return row.id, workload, storable(workload, measurement)
    except (ValueError, TypeError) as error:
        raise RecordFileError(
            f"record {row.id} in {location} is damaged ({error}), so the file was not upgraded; restore it "
            "from a backup"
        ) from error


class _OldVersion(msgspec.Struct, frozen=True):
    """What is known of tables that are no longer written.

    `tables` are those set aside, referred-to ones first; `read` yields the records in the order of their ids.
    """

    tables: tuple[str, ...]
    read: Callable[[sa.Connection, Mapping[str, str], str], Iterator[_OldRecord]]


_OLD_VERSIONS = {
    1: _OldVersion(("record_schema", "workloads", "environments", "measurements"), _read_version_1)
}
