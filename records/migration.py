"""What happens to a database of records before its first use: made, taken as it is, upgraded or refused.

The version stands in the table `record_schema`. A database without it is made into one where it is an empty
PostgreSQL database, and refused where it is somebody else's SQLite file.
"""

from __future__ import annotations

import sqlalchemy as sa

from records.connection import write_version
from records.errors import RecordFileError
from records.schema import SCHEMA_VERSION, metadata, record_schema

_LOCK_KEY = 0x7E55E1
"""Any fixed number: PostgreSQL lets one client at a time hold it, so that two do not make tables at once."""


def prepare_schema(engine: sa.Engine, location: str) -> None:
    """Bring the database's tables to `SCHEMA_VERSION`.

    Raises:
        RecordFileError: the database is not one of records, or a newer version made it.
    """
    with engine.begin() as connection:
        version = _read_version(connection, location)
    if version is None:
        with engine.execution_options(writes=True).begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
            if _read_version(connection, location) is None:
                write_version(connection)
        return
    if version > SCHEMA_VERSION:
        raise RecordFileError(
            f"records in {location} have schema version {version}, and this installation knows versions up "
            f"to {SCHEMA_VERSION}; upgrade tessel-tuner, or name another file"
        )


def _read_version(connection: sa.Connection, location: str) -> int | None:
    """Return the version; None where an empty PostgreSQL database has none yet."""
    names = set(sa.inspect(connection).get_table_names())
    if record_schema.name in names:
        version: int | None = connection.scalar(sa.select(record_schema.c.version))
        if version is not None and (version != SCHEMA_VERSION or set(metadata.tables) <= names):
            return version
    elif connection.dialect.name == "postgresql":
        return None
    raise RecordFileError(
        f"records file {location} is a database, but does not have the tables of records; name another file"
    )
