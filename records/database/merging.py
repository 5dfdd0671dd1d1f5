"""Records of other stores and files, added to a store: imported, or merged with a report of conflicts.

Every batch is one idempotent transaction: after a kill, running the same command again resumes. Checked in
tests/records/database/test_merging.py and, with kills, in tests/records/database/test_faults.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
import sqlalchemy as sa

from records.database.row import measurement_row
from records.database.schema import measurements
from records.database.store import RecordStore
from records.database.writer import PAGE, find_ids, insert_records, pages
from records.measurement import Measurement, Status
from records.record import measurement_digest, storable
from records.workload import Workload

TOLERANCE = 1.5
"""Ratio of two medians from which on a merge calls them a conflict: well over what noise explains."""

_Item = tuple[Workload, Measurement]
_Key = tuple[str, str, str, str, str]


class ImportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were read, and how many of them were new to the store."""

    read: int
    new: int

    @property
    def known(self) -> int:
        """Records that the store had already."""
        return self.read - self.new


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two records of one key (workload, target, backend, settings, environment) that do not agree.

    Attributes:
        kept_id: the newest record of the key that the store had.
        added_id: the record that was added; both stay.
        problem: in what they differ.
    """

    workload_fingerprint: str
    backend: str
    kept_id: int
    added_id: int
    problem: str


class MergeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge read and added, and where sources contradict what was there."""

    read: int
    new: int
    conflicts: tuple[Conflict, ...]


def import_items(store: RecordStore, items: Iterable[_Item]) -> ImportSummary:
    """Append items a thousand at a time, and count those that are new.

    Raises:
        ValueError: an item cannot be kept; batches before it are.
        RecordError: a batch could not be written; batches before it are.
    """
    num_read = num_new = 0
    for batch in _batches(items):
        kept = [(workload, storable(workload, measurement)) for workload, measurement in batch]
        num_new += store.in_transaction(partial(_insert_new, items=kept), writes=True)
        num_read += len(kept)
    return ImportSummary(read=num_read, new=num_new)


def merge_items(store: RecordStore, items: Iterable[_Item], *, tolerance: float = TOLERANCE) -> MergeSummary:
    """Add what another store holds, and report where it contradicts what was there before.

    Records are facts, so both sides of a conflict are kept, and look-ups go on by time of measurement.

    Args:
        store: what is added to.
        items: what is added; must not be read from the same store.
        tolerance: least ratio of two median latencies that is a conflict, more than 1.

    Raises:
        ValueError: the tolerance is at most 1, or an item cannot be kept.
        RecordError: a batch could not be written; batches before it are.
    """
    if not tolerance > 1:
        raise ValueError(
            f"tolerance {tolerance} is at most 1, so that noise is a conflict; give one such as 1.5"
        )
    horizon = store.in_transaction(
        lambda connection: connection.scalar(sa.select(sa.func.max(measurements.c.id)))
    )
    num_read = num_new = 0
    conflicts: list[Conflict] = []
    for batch in _batches(items):
        kept = [(workload, storable(workload, measurement)) for workload, measurement in batch]
        merge = partial(_merge_batch, items=kept, horizon=horizon or 0, tolerance=tolerance)
        added, found = store.in_transaction(merge, writes=True)
        num_read, num_new = num_read + len(kept), num_new + added
        conflicts += found
    return MergeSummary(read=num_read, new=num_new, conflicts=tuple(conflicts))


def is_same_store(first: RecordStore, second: RecordStore) -> bool:
    """Tell whether two open stores are one."""
    if os.path.exists(first.location) and os.path.exists(second.location):
        return os.path.samefile(first.location, second.location)
    return first.location == second.location


def _insert_new(connection: sa.Connection, items: Sequence[_Item]) -> int:
    digests = {measurement_digest(measurement) for _, measurement in items}
    num_known = len(find_ids(connection, sorted(digests)))
    insert_records(connection, items)
    return len(digests) - num_known


def _merge_batch(
    connection: sa.Connection, items: Sequence[_Item], horizon: int, tolerance: float
) -> tuple[int, list[Conflict]]:
    known = find_ids(connection, [measurement_digest(measurement) for _, measurement in items])
    record_ids = insert_records(connection, items)
    added = {
        record_id: measurement
        for record_id, (_, measurement) in zip(record_ids, items, strict=True)
        if record_id not in known.values()
    }
    newest = _newest_by_key(
        connection, sorted({item.workload_fingerprint for item in added.values()}), horizon
    )
    conflicts = []
    for record_id, measurement in added.items():
        kept = newest.get(_key(measurement))
        problem = None if kept is None else _contradiction(kept, measurement, tolerance)
        if kept is not None and problem is not None:
            conflicts.append(
                Conflict(
                    workload_fingerprint=measurement.workload_fingerprint,
                    backend=measurement.backend,
                    kept_id=kept.id,
                    added_id=record_id,
                    problem=problem,
                )
            )
    return len(added), conflicts


def _newest_by_key(
    connection: sa.Connection, fingerprints: Sequence[str], horizon: int
) -> dict[_Key, sa.Row[tuple[object, ...]]]:
    newest = {}
    for page in pages(fingerprints):
        query = (
            sa.select(measurements)
            .where(measurements.c.workload_fingerprint.in_(page), measurements.c.id <= horizon)
            .order_by(measurements.c.measured_at, measurements.c.id)
        )
        for row in connection.execute(query):
            key = (
                row.workload_fingerprint,
                row.target_fingerprint,
                row.backend,
                row.settings,
                row.environment_fingerprint,
            )
            newest[key] = row
    return newest


def _key(measurement: Measurement) -> _Key:
    row = measurement_row(measurement)
    return (
        row["workload_fingerprint"],
        row["target_fingerprint"],
        row["backend"],
        row["settings"],
        row["environment_fingerprint"],
    )


def _contradiction(kept: sa.Row[tuple[object, ...]], added: Measurement, tolerance: float) -> str | None:
    if (kept.status == Status.OK.value) != (added.status is Status.OK):
        return f"was {kept.status}, and is {added.status} where it was added from"
    if added.status is not Status.OK:
        return None
    ratio = added.latency_us / kept.latency_us
    if 1 / tolerance < ratio < tolerance:
        return None
    return f"{ratio:.2f} times the latency ({kept.latency_us:.4g} us and {added.latency_us:.4g} us)"


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, PAGE)):
        yield batch
