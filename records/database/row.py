"""Conversion of records to and from table rows; what is read is checked against its hashes.

SQLite detects a truncated file and inconsistent pages, but not a changed byte inside a value. Workloads,
environments and targets are stored under the hash of their text, and each measurement beside its digest, so
such corruption is detected here.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TypedDict

import msgspec
import sqlalchemy as sa

from records.backend_names import current_name, kept_name
from records.database.schema import environments, measurements, target_fingerprint, targets, workloads
from records.environment import Environment
from records.errors import RecordFileError
from records.measurement import Measurement, Status
from records.record import Record, measurement_digest
from records.workload import Workload


class MeasurementRow(TypedDict):
    """Values of the columns of `measurements`, without the id."""

    digest: str
    workload_fingerprint: str
    environment_fingerprint: str
    target_fingerprint: str
    backend: str
    settings: str
    status: str
    latency_us: float | None
    samples_us: str
    message: str
    peak_memory_bytes: int | None
    relative_error: float | None
    measured_at: float
    seed: int


select_records = sa.select(
    measurements,
    workloads.c.description.label("workload_description"),
    environments.c.description.label("environment_description"),
    targets.c.text.label("target"),
).select_from(measurements.join(workloads).join(environments).join(targets))
"""Everything that `decode_record` needs, for all records; narrow it with `where`."""


def measurement_row(measurement: Measurement) -> MeasurementRow:
    """Return the row of a measurement that `records.record.storable` has passed."""
    return MeasurementRow(
        digest=measurement_digest(measurement),
        workload_fingerprint=measurement.workload_fingerprint,
        environment_fingerprint=measurement.environment.fingerprint,
        target_fingerprint=target_fingerprint(measurement.target),
        backend=kept_name(measurement.backend),
        settings=measurement.settings,
        status=measurement.status.value,
        latency_us=measurement.latency_us if measurement.samples_us else None,
        samples_us=msgspec.json.encode(measurement.samples_us).decode(),
        message=measurement.message,
        peak_memory_bytes=measurement.peak_memory_bytes,
        relative_error=measurement.relative_error,
        measured_at=measurement.measured_at,
        seed=measurement.seed,
    )


def workload_row(workload: Workload) -> dict[str, str]:
    """Return the row of a workload."""
    return {
        "fingerprint": workload.fingerprint,
        "role": workload.role,
        "description": workload.to_json().decode(),
    }


def environment_row(environment: Environment) -> dict[str, str | int]:
    """Return the row of an environment."""
    return {
        "fingerprint": environment.fingerprint,
        "device_kind": environment.device_kind,
        "device_model": environment.device_model,
        "num_threads": environment.num_threads,
        "description": environment.to_json().decode(),
    }


def decode_record(row: sa.Row[tuple[object, ...]], location: str) -> Record:
    """Return the record of a row of `select_records`.

    Args:
        location: the store's name for messages.

    Raises:
        RecordFileError: the row does not say what was once written.
    """
    try:
        record = Record(
            record_id=row.id,
            workload=_decode_workload(row.workload_fingerprint, row.workload_description),
            measurement=Measurement(
                workload_fingerprint=row.workload_fingerprint,
                backend=current_name(row.backend),
                target=row.target,
                environment=_decode_environment(row.environment_fingerprint, row.environment_description),
                status=Status(row.status),
                samples_us=msgspec.json.decode(row.samples_us, type=tuple[float, ...]),
                settings=row.settings,
                message=row.message,
                peak_memory_bytes=row.peak_memory_bytes,
                relative_error=row.relative_error,
                measured_at=row.measured_at,
                seed=row.seed,
            ),
        )
        same = (
            record.digest == row.digest
            and row.latency_us == _latency_us(record.measurement)
            and row.target_fingerprint == target_fingerprint(row.target)
        )
    # In SQLite a damaged column may hold a value of any type.
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(row.id, location, str(error)) from error
    if not same:
        raise _damaged(row.id, location, "it differs from its digest")
    return record


def decode_workload(fingerprint: str, description: str, location: str) -> Workload:
    """Return a stored workload.

    Raises:
        RecordFileError: the description is not the one that was once written.
    """
    try:
        return _decode_workload(fingerprint, description)
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordFileError(
            f"workload {fingerprint} in {location} is damaged ({error}); run `tessel records verify`, and "
            "restore the file from a backup"
        ) from error


# Many measurements share a workload and an environment: hashing and decoding each once makes reading them
# several times faster. The text is part of the key, so what is cached was checked.
@functools.lru_cache(maxsize=4096)
def _decode_workload(fingerprint: str, description: str) -> Workload:
    _check_hash(fingerprint, description, "workload")
    return Workload.from_json(description)


@functools.lru_cache(maxsize=256)
def _decode_environment(fingerprint: str, description: str) -> Environment:
    _check_hash(fingerprint, description, "environment")
    return msgspec.json.decode(description, type=Environment).as_current()


def _check_hash(fingerprint: str, description: str, subject: str) -> None:
    if hashlib.blake2b(description.encode(), digest_size=16).hexdigest() != fingerprint:
        raise ValueError(f"the {subject}'s text differs from its fingerprint")


def _latency_us(measurement: Measurement) -> float | None:
    return measurement.latency_us if measurement.samples_us else None


def _damaged(record_id: int, location: str, reason: str) -> RecordFileError:
    return RecordFileError(
        f"record {record_id} in {location} is damaged ({' '.join(reason.split())}); run `tessel records "
        "verify` for all that is, and restore the file from a backup"
    )
