"""All records in canonical order, and recovery of the readable ones from a damaged file.

The order is the time of measurement, then the digest. In a damaged file, a page of the database or a single
value may be unreadable, and even the index by which all records are found; then every id ever assigned is
tried separately, so that a bad page loses only the records on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sqlalchemy as sa

from records.database.row import decode_record, select_records
from records.database.schema import measurements
from records.database.store import RecordStore
from records.database.writer import pages
from records.errors import RecordFileError
from records.record import Record


def iterate_by_time(
    store: RecordStore, *, on_damage: Callable[[str], None] | None = None
) -> Iterator[Record]:
    """Yield all records by time of measurement, then by digest; memory grows by a few bytes per record.

    Args:
        store: where they are.
        on_damage: called with a description of each record that is damaged, which is then left out; what is
            left may come in another order.

    Raises:
        RecordFileError: a record is damaged, and `on_damage` was not given.
    """
    try:
        record_ids = store.in_transaction(_ids_by_time)
    except RecordFileError as error:
        if on_damage is None:
            raise
        on_damage(f"the order of all records: {error}")
        record_ids = store.in_transaction(_possible_ids)
    for page in pages(record_ids):
        yield from _read_page(store, page, on_damage)


def _ids_by_time(connection: sa.Connection) -> Sequence[int]:
    query = sa.select(measurements.c.id).order_by(measurements.c.measured_at, measurements.c.digest)
    return [row.id for row in connection.execute(query)]


def _possible_ids(connection: sa.Connection) -> Sequence[int]:
    """Return every id up to the greatest that SQLite ever gave out; reads no page of records."""
    query = "SELECT seq FROM sqlite_sequence WHERE name = 'measurements'"
    return range(1, 1 + (connection.exec_driver_sql(query).scalar() or 0))


def _read_page(
    store: RecordStore, record_ids: Sequence[int], on_damage: Callable[[str], None] | None
) -> Iterator[Record]:
    query = select_records.where(measurements.c.id.in_(record_ids))
    try:
        rows = store.in_transaction(lambda connection: connection.execute(query).all())
        found = {row.id: decode_record(row, store.location) for row in rows}
    except RecordFileError as error:
        if on_damage is None:
            raise
        if len(record_ids) > 1:
            for record_id in record_ids:
                yield from _read_page(store, [record_id], on_damage)
        else:
            on_damage(str(error))
        return
    # One that was pruned meanwhile is missing.
    yield from (found[record_id] for record_id in record_ids if record_id in found)
