"""The tables that hold records, for SQLite and PostgreSQL alike.

```
workloads ◄──┐
environments ◄── measurements       record_schema: one row, the version of all this
targets ◄────┘
```
Data shared by many measurements is stored once, under the hash of its text, and referenced by them. Columns
of `measurements` repeat what its digest covers and add one derived figure, `latency_us`, which lets the
database order by it. The version is raised with every change of the tables; `records.database.migration`
then learns to read the version before.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

SCHEMA_VERSION = 2

metadata = sa.MetaData()

record_schema = sa.Table("record_schema", metadata, sa.Column("version", sa.Integer, primary_key=True))

workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("fingerprint", sa.String(32), primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
)

environments = sa.Table(
    "environments",
    metadata,
    sa.Column("fingerprint", sa.String(32), primary_key=True),
    sa.Column("device_kind", sa.Text, nullable=False),
    sa.Column("device_model", sa.Text, nullable=False),
    sa.Column("num_threads", sa.BigInteger, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
)

targets = sa.Table(
    "targets",
    metadata,
    sa.Column("fingerprint", sa.String(32), primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)

measurements = sa.Table(
    "measurements",
    metadata,
    # SQLite counts up only in a column whose type is exactly INTEGER.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("digest", sa.String(32), nullable=False),
    sa.Column("workload_fingerprint", sa.ForeignKey(workloads.c.fingerprint), nullable=False),
    sa.Column("environment_fingerprint", sa.ForeignKey(environments.c.fingerprint), nullable=False),
    sa.Column("target_fingerprint", sa.ForeignKey(targets.c.fingerprint), nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("latency_us", sa.Double),
    sa.Column("samples_us", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("peak_memory_bytes", sa.BigInteger),
    sa.Column("relative_error", sa.Double),
    sa.Column("measured_at", sa.Double, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    # A plan names its measurements by id: the id of a pruned one must not come to mean another.
    sqlite_autoincrement=True,
)

sa.Index("measurements_by_digest", measurements.c.digest, unique=True)
sa.Index(
    "measurements_by_key",
    measurements.c.workload_fingerprint,
    measurements.c.target_fingerprint,
    measurements.c.backend,
)
# Holds all that `stats` counts, so that it reads this index alone: 10^6 rows in well under a second.
sa.Index(
    "measurements_by_count", measurements.c.target_fingerprint, measurements.c.backend, measurements.c.status
)


def target_fingerprint(target: str) -> str:
    """Name a target's text by 32 hexadecimal digits."""
    return hashlib.blake2b(target.encode(), digest_size=16).hexdigest()
