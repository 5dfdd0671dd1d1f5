"""Summary counts of a store, computed from a single covering index."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from records.backend_names import current_name
from records.database.schema import environments, measurements, targets, workloads
from records.errors import RecordFileError
from records.measurement import Status


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How many measurements a store holds, in total and by what they have in common."""

    measurements: int
    workloads: int
    environments: int
    by_status: dict[str, int]
    by_target: dict[str, int]
    by_backend: dict[str, int]


def count_records(connection: sa.Connection, *, location: str) -> Stats:
    """Count; O(records).

    Raises:
        RecordFileError: the index holds what never was written.
    """
    key = (measurements.c.target_fingerprint, measurements.c.backend, measurements.c.status)
    query = sa.select(*key, sa.func.count().label("amount")).group_by(*key).order_by(*key)
    text_by_target = {row.fingerprint: row.text for row in connection.execute(sa.select(targets))}
    statuses = set(map(str, Status))
    rows = connection.execute(query).all()
    if any(row.target_fingerprint not in text_by_target or row.status not in statuses for row in rows):
        raise RecordFileError(
            f"records in {location} are damaged (an index names an unknown status or target); run `tessel "
            "records verify` for all that is, and restore the file from a backup"
        )
    return Stats(
        measurements=sum(row.amount for row in rows),
        workloads=_count(connection, workloads),
        environments=_count(connection, environments),
        by_status=_totals((row.status, row.amount) for row in rows),
        by_target=_totals((str(text_by_target[row.target_fingerprint]), row.amount) for row in rows),
        by_backend=_totals((current_name(str(row.backend)), row.amount) for row in rows),
    )


def _count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def _totals(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, amount in amounts:
        totals[name] = totals.get(name, 0) + amount
    return dict(sorted(totals.items()))
