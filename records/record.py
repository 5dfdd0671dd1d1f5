"""A stored measurement, what names it, and which stored ones a caller is willing to reuse.

A record is named by its *digest*: a hash of everything the measurement says. Two records with one digest are
the same fact, so that appending, importing and merging twice changes nothing, and an append whose answer was
lost may be sent again. The digest is also what shows damage: it is checked whenever a record is read.
Checked in tests/records/test_record.py.
"""

from __future__ import annotations

import enum
import hashlib
import re

import msgspec

from records.limits import MAX_INTEGER, check_limits, cut_message
from records.measurement import Measurement
from records.workload import Workload

_LOST_CHARACTERS = re.compile("[\0\ud800-\udfff]")
"""Characters that databases refuse in text: NUL, and halves of surrogate pairs."""


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Measurement)}


class Match(enum.StrEnum):
    """Which environments a look-up accepts beside the one it names; never another target or device model."""

    EXACT = "exact"
    """Every field of the environment is equal."""
    COMPATIBLE = "compatible"
    """Same device kind and model and number of threads; other drivers and library versions are accepted."""
    ANY = "any"
    """Same device kind and model; other numbers of threads are accepted too."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One stored measurement.

    Attributes:
        record_id: number of the record within its store; never given to another record.
        workload: what was run.
        measurement: what came out.
    """

    record_id: int
    workload: Workload
    measurement: Measurement

    @property
    def digest(self) -> str:
        """Name what the measurement says by 32 hexadecimal digits; equal in every store."""
        return measurement_digest(self.measurement)


def measurement_digest(measurement: Measurement) -> str:
    """Return the hash of what a measurement says, as 32 hexadecimal digits.

    It covers canonical JSON of the fields that differ from their defaults, so that a field which a later
    version adds leaves the digests of earlier records as they are.
    """
    said = {
        name: value
        for name in measurement.__struct_fields__
        if (value := getattr(measurement, name)) != _DEFAULTS.get(name, msgspec.NODEFAULT)
    }
    text = msgspec.json.encode(said, order="sorted")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def storable(workload: Workload, measurement: Measurement) -> Measurement:
    """Return the measurement as every database gives it back.

    A failure's message comes from foreign programs: characters in it that no database keeps are replaced, so
    that no measurement is lost over its message.

    Raises:
        ValueError: the measurement is of another workload, or holds text or numbers that cannot be kept.
    """
    if measurement.workload_fingerprint != workload.fingerprint:
        raise ValueError(
            f"measurement is of workload {measurement.workload_fingerprint}, but was given with workload "
            f"{workload.fingerprint}; append each measurement with the workload that it measured"
        )
    for name in ("backend", "settings", "target"):
        text = getattr(measurement, name)
        if _LOST_CHARACTERS.search(text):
            raise ValueError(
                f"{name} {text!r} holds a NUL or half a surrogate pair; databases refuse it, so leave it out"
            )
    for name in ("seed", "peak_memory_bytes"):
        number = getattr(measurement, name)
        if number is not None and abs(number) > MAX_INTEGER:
            raise ValueError(f"{name} is {number}, which needs more than 64 bits; give a smaller one")
    if not abs(measurement.measured_at) < float("inf"):
        raise ValueError(f"measured_at is {measurement.measured_at}; give seconds since 1970 as a number")
    error = measurement.relative_error
    kept = msgspec.structs.replace(
        measurement,
        message=_LOST_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", cut_message(measurement.message)),
        # SQLite keeps no negative zero, and PostgreSQL does.
        measured_at=measurement.measured_at + 0.0,
        relative_error=None if error is None else error + 0.0,
    )
    check_limits(workload, kept)
    return kept
