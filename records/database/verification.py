"""Integrity check of an entire store.

Three things are checked: the database's own structure (SQLite's pages and indexes), references between the
tables, and every hash. Reading continues past damage as far as the database permits.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from records.database.row import decode_record, select_records
from records.database.schema import measurements
from records.database.writer import PAGE
from records.errors import RecordFileError


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a store that is not as it was written.

    Attributes:
        subject: what is damaged, such as `record 17`.
        problem: in what way, and what to do.
    """

    subject: str
    problem: str


def collect_damage(connection: sa.Connection, *, location: str, findings: list[Finding]) -> None:
    """Put what is damaged into a list, which holds what was found even where reading cannot go on.

    Args:
        connection: in a transaction.
        location: the store's name for messages.
        findings: emptied first.

    Raises:
        sqlalchemy.exc.DBAPIError: the database itself can read no further.
    """
    findings.clear()
    if connection.dialect.name == "sqlite":
        _check_structure(connection, findings)
    query = select_records.order_by(measurements.c.id).limit(PAGE)
    after_id = 0
    while rows := connection.execute(query.where(measurements.c.id > after_id)).all():
        for row in rows:
            try:
                decode_record(row, location)
            except RecordFileError as error:
                findings.append(Finding(subject=f"record {row.id}", problem=str(error)))
        after_id = rows[-1].id


def _check_structure(connection: sa.Connection, findings: list[Finding]) -> None:
    for text in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
        if text != "ok":
            findings.append(Finding(subject="file", problem=f"{text}; restore it from a backup"))
    for table, row_id, referred, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        problem = f"refers to a row of {referred} that is missing; restore the file from a backup"
        findings.append(Finding(subject=f"{table} row {row_id}", problem=problem))
