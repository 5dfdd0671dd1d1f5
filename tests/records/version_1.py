"""Databases as schema version 1 left them, for tests of the upgrade; nothing writes these any more."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from records import Measurement, Workload

_TABLES = """
CREATE TABLE record_schema (version INTEGER PRIMARY KEY);
INSERT INTO record_schema VALUES (1);
CREATE TABLE workloads (fingerprint VARCHAR(32) PRIMARY KEY, description TEXT NOT NULL);
CREATE TABLE environments (fingerprint VARCHAR(32) PRIMARY KEY, description TEXT NOT NULL);
CREATE TABLE measurements (
    id {serial},
    workload_fingerprint VARCHAR(32) NOT NULL REFERENCES workloads (fingerprint),
    environment_fingerprint VARCHAR(32) NOT NULL REFERENCES environments (fingerprint),
    backend TEXT NOT NULL,
    settings TEXT NOT NULL,
    target TEXT NOT NULL,
    status TEXT NOT NULL,
    samples_us TEXT NOT NULL,
    message TEXT NOT NULL,
    peak_memory_bytes BIGINT,
    measured_at DOUBLE PRECISION NOT NULL,
    seed BIGINT NOT NULL
);
CREATE INDEX measurements_by_key ON measurements (workload_fingerprint, backend);
"""
_SERIAL = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}


def build_version_1(url: str, items: list[tuple[int, Workload, Measurement]]) -> None:
    """Make a version 1 database with these records under these ids."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in _TABLES.format(serial=_SERIAL[engine.dialect.name]).split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        for record_id, workload, measurement in items:
            _insert(connection, record_id, workload, measurement)
    engine.dispose()


def _insert(connection: sa.Connection, record_id: int, workload: Workload, measurement: Measurement) -> None:
    environment = measurement.environment
    for table, fingerprint, description in (
        ("workloads", workload.fingerprint, workload.to_json().decode()),
        ("environments", environment.fingerprint, msgspec.json.encode(environment, order="sorted").decode()),
    ):
        connection.execute(
            sa.text(f"INSERT INTO {table} VALUES (:fingerprint, :description) ON CONFLICT DO NOTHING"),
            {"fingerprint": fingerprint, "description": description},
        )
    values = {
        "id": record_id,
        "workload_fingerprint": workload.fingerprint,
        "environment_fingerprint": environment.fingerprint,
        "samples_us": msgspec.json.encode(measurement.samples_us).decode(),
        "status": measurement.status.value,
    } | {
        name: getattr(measurement, name)
        for name in ("backend", "settings", "target", "message", "peak_memory_bytes", "measured_at", "seed")
    }
    names = ", ".join(values)
    slots = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO measurements ({names}) VALUES ({slots})"), values)
