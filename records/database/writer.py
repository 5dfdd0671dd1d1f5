"""Insertion of records into the tables: shared rows first, then the measurements, each only once.

All writing goes through `insert_records`: appending, importing, merging and upgrading. The caller owns the
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from records.database.connection import location_of
from records.database.row import environment_row, measurement_row, workload_row
from records.database.schema import environments, measurements, target_fingerprint, targets, workloads
from records.errors import RecordFileError
from records.measurement import Measurement
from records.workload import Workload

PAGE = 1000
"""Rows a statement writes, and values it asks for, at once; SQLite allows 32 766 values."""

T = TypeVar("T")


def insert_records(
    connection: sa.Connection,
    items: Sequence[tuple[Workload, Measurement]],
    record_ids: Sequence[int] | None = None,
) -> list[int]:
    """Insert measurements that are not there yet, and what they refer to.

    Args:
        connection: inside a transaction.
        items: what `records.record.storable` has passed.
        record_ids: ids to insert them under; left out, the database counts on.

    Returns:
        The id of each item, whether it was inserted or there already.
    """
    _insert_shared(connection, items)
    rows = [measurement_row(measurement) for _, measurement in items]
    for start in range(0, len(rows), PAGE):
        page: list[Mapping[str, object]] = list(rows[start : start + PAGE])
        if record_ids is not None:
            page = [{"id": record_ids[start + index], **row} for index, row in enumerate(page)]
        _insert_new(connection, measurements, page, key="digest")
    id_by_digest = find_ids(connection, [row["digest"] for row in rows])
    if any(row["digest"] not in id_by_digest for row in rows):
        raise RecordFileError(
            f"records in {location_of(connection.engine.url)} are damaged (an index does not find what was "
            "just written); run `tessel records verify` for all that is, and restore the file from a backup"
        )
    return [id_by_digest[row["digest"]] for row in rows]


def find_ids(connection: sa.Connection, digests: Sequence[str]) -> dict[str, int]:
    """Return the ids of the records that are there, by digest."""
    found: dict[str, int] = {}
    for page in pages(digests):
        query = sa.select(measurements.c.digest, measurements.c.id).where(measurements.c.digest.in_(page))
        found.update((row.digest, row.id) for row in connection.execute(query))
    return found


def pages(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in order, `PAGE` at a time."""
    for start in range(0, len(values), PAGE):
        yield values[start : start + PAGE]


def _insert_shared(connection: sa.Connection, items: Sequence[tuple[Workload, Measurement]]) -> None:
    """Insert what the measurements refer to, where it is not there yet.

    In sorted order, so that two PostgreSQL writers never wait for each other in a circle.
    """
    used_workloads = {measurement.workload_fingerprint: workload for workload, measurement in items}
    used_environments = {
        environment.fingerprint: environment for environment in {item[1].environment: None for item in items}
    }
    used_targets = {target_fingerprint(target): target for target in {item[1].target: None for item in items}}
    _insert_new(connection, workloads, [workload_row(used_workloads[key]) for key in sorted(used_workloads)])
    _insert_new(
        connection,
        environments,
        [environment_row(used_environments[key]) for key in sorted(used_environments)],
    )
    _insert_new(
        connection,
        targets,
        [{"fingerprint": key, "text": used_targets[key]} for key in sorted(used_targets)],
    )


def _insert_new(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]], key: str = "fingerprint"
) -> None:
    # The two dialects share the clause that skips rows already there, but not the class that has it.
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).on_conflict_do_nothing(index_elements=[key])
    connection.execute(statement, [dict(row) for row in rows])
