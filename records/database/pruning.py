"""Pruning of a store: records that no look-up needs are removed, in one transaction.

Checked in tests/records/database/test_pruning.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from records.database.schema import environments, measurements, targets, workloads
from records.database.store import RecordStore
from records.database.writer import pages
from records.measurement import Status


class PruneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many records a prune removes and keeps, and whether it has done so."""

    removed: int
    kept: int
    applied: bool


def prune(store: RecordStore, *, keep_newest: int, apply: bool = False) -> PruneSummary:
    """Remove what no look-up needs: of each key, all but the fastest success and the newest few.

    A key is workload, target, backend, settings and environment. Workloads, environments and targets that no
    record refers to any more go too. Ids of removed records are never given out again.

    Args:
        keep_newest: how many of the newest records to keep, successes or not; at least 1.
        apply: do it; left out, only count.

    Raises:
        ValueError: `keep_newest` is less than 1.
        RecordError: it could not be done; nothing was removed.
    """
    if keep_newest < 1:
        raise ValueError(f"keep_newest is {keep_newest}; keep at least the newest record of each key")

    def work(connection: sa.Connection) -> PruneSummary:
        if apply and connection.dialect.name == "postgresql":
            # A writer that has seen a workload there must not find it gone when its measurement comes.
            connection.exec_driver_sql(
                "LOCK TABLE workloads, environments, targets, measurements IN SHARE ROW EXCLUSIVE MODE"
            )
        total = connection.scalar(sa.select(sa.func.count()).select_from(measurements)) or 0
        unneeded = [row.id for row in connection.execute(_unneeded_ids(keep_newest, now=store.clock()))]
        if apply:
            _remove(connection, unneeded)
        return PruneSummary(removed=len(unneeded), kept=total - len(unneeded), applied=apply)

    summary = store.in_transaction(work, writes=apply)
    if apply:
        store.compact()
    return summary


def _unneeded_ids(keep_newest: int, *, now: float) -> sa.Select[tuple[int]]:
    key = (
        measurements.c.workload_fingerprint,
        measurements.c.target_fingerprint,
        measurements.c.backend,
        measurements.c.settings,
        measurements.c.environment_fingerprint,
    )
    # A look-up takes a date in the future for the oldest (`records.record.preference`).
    is_past = sa.case((measurements.c.measured_at <= now, 1), else_=0)
    date = sa.case((measurements.c.measured_at <= now, measurements.c.measured_at), else_=0.0)
    by_age = sa.func.row_number().over(
        partition_by=key, order_by=(is_past.desc(), date.desc(), measurements.c.id.desc())
    )
    by_latency = sa.func.row_number().over(
        partition_by=key, order_by=(measurements.c.latency_us.asc().nulls_last(), measurements.c.id)
    )
    ranked = sa.select(
        measurements.c.id,
        measurements.c.status,
        by_age.label("age_rank"),
        by_latency.label("latency_rank"),
    ).subquery()
    is_best = sa.and_(ranked.c.latency_rank == 1, ranked.c.status == Status.OK.value)
    return sa.select(ranked.c.id).where(ranked.c.age_rank > keep_newest, sa.not_(is_best))


def _remove(connection: sa.Connection, record_ids: Sequence[int]) -> None:
    for page in pages(record_ids):
        connection.execute(sa.delete(measurements).where(measurements.c.id.in_(page)))
    for table, column in (
        (workloads, measurements.c.workload_fingerprint),
        (environments, measurements.c.environment_fingerprint),
        (targets, measurements.c.target_fingerprint),
    ):
        used = sa.select(column).where(column == table.c.fingerprint).exists()
        connection.execute(sa.delete(table).where(sa.not_(used)))
