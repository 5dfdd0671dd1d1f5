"""A stored measurement, its identity, and which stored ones a caller accepts for reuse.

A record is identified by its *digest*: a hash of the entire measurement. Two records with the same digest are
equal, so appending, importing and merging are idempotent, and an append whose acknowledgement was lost can be
retried. The digest also detects corruption: it is checked whenever a record is read. Checked in
tests/records/test_record.py.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import numbers

import msgspec

from records.environment import Environment
from records.limits import MAX_INTEGER, check_limits, cut_message
from records.measurement import Measurement
from records.workload import Workload

_LOST_CHARACTERS = dict.fromkeys((0, *range(0xD800, 0xE000)), "\N{REPLACEMENT CHARACTER}")
"""Characters that databases refuse in text: NUL, and halves of surrogate pairs."""

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Measurement)}


class Match(enum.StrEnum):
    """Which environments a look-up accepts beside the one it names; never another target or device model.

    What is accepted is not all alike: an exact record comes before a compatible one, that before any other.
    """

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
    """

    record_id: int
    workload: Workload
    measurement: Measurement

    @property
    def digest(self) -> str:
        """Name what the measurement says by 32 hexadecimal digits; equal in every store."""
        return measurement_digest(self.measurement)


def preference(record: Record, environment: Environment, *, now: float) -> tuple[int, bool, float, int]:
    """Return a key by which the record that a look-up prefers is the largest.

    How close its environment is counts first (see `Match`), then the date. A date in the future is wrong, and
    would win for ever: such a record comes after all others of its level, and those among themselves by id.

    Args:
        record: one that the look-up accepts.
        environment: the one that was asked for.
        now: seconds since 1970-01-01 UTC.
    """
    found = record.measurement.environment
    level = 2 if found == environment else int(found.num_threads == environment.num_threads)
    is_past = record.measurement.measured_at <= now
    return level, is_past, record.measurement.measured_at if is_past else 0.0, record.record_id


def measurement_digest(measurement: Measurement) -> str:
    """Return the hash of what a measurement says, as 32 hexadecimal digits.

    It covers canonical JSON of the fields that differ from their defaults, so that a field which a later
    version adds leaves the digests of earlier records as they are; nor does a new name of a backend change
    them.
    """
    kept = measurement.as_kept()
    said = {
        name: value
        for name in kept.__struct_fields__
        if (value := getattr(kept, name)) != _DEFAULTS.get(name, msgspec.NODEFAULT)
    }
    text = msgspec.json.encode(said, order="sorted")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def storable(workload: Workload, measurement: Measurement) -> Measurement:
    """Return the measurement as every database gives it back: what this accepts is read back equal.

    Numbers of other types (a sample that is an `int`, NumPy's scalars) become plain ones, since a digest
    names what is written. A failure's message comes from foreign programs: characters in it that no database
    keeps are replaced, so that no measurement is lost over its message.

    Raises:
        ValueError: the measurement is of another workload, or holds text or numbers that cannot be kept.
    """
    fingerprint = _kept_fingerprint(workload)
    if measurement.workload_fingerprint != fingerprint:
        raise ValueError(
            f"measurement is of workload {measurement.workload_fingerprint}, but was given with workload "
            f"{fingerprint}; append each measurement with the workload that it measured"
        )
    _check_texts(measurement)
    kept = _with_plain_types(measurement)
    _check_numbers(kept)
    error = kept.relative_error
    kept = msgspec.structs.replace(
        kept,
        # SQLite keeps no negative zero, and PostgreSQL does.
        measured_at=kept.measured_at + 0.0,
        relative_error=None if error is None else error + 0.0,
    )
    check_limits(workload, kept)
    return kept


def _kept_fingerprint(workload: Workload) -> str:
    """Return the workload's fingerprint.

    Raises:
        ValueError: it would be read back as another workload.
    """
    try:
        text = workload.to_json()
        if _read_workload(text) != workload:
            raise ValueError("it is read back as another one")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the workload cannot be kept ({_one_line(error)}); describe it by plain numbers and texts, with "
            "`records.workload.describe`"
        ) from error
    return hashlib.blake2b(text, digest_size=16).hexdigest()


@functools.lru_cache(maxsize=4096)
def _read_workload(text: bytes) -> Workload:
    workload = Workload.from_json(text)
    if workload.to_json() != text:
        raise ValueError("it is read back as another one")
    return workload


def _check_texts(measurement: Measurement) -> None:
    environment = measurement.environment
    texts = {name: getattr(measurement, name) for name in ("backend", "settings", "target", "message")}
    texts |= {name: getattr(environment, name) for name in ("device_kind", "device_model", "driver")}
    for name, text in texts.items():
        # JSON would write bytes and decimals as texts too, which say something else.
        if not isinstance(text, str):
            raise ValueError(f"{name} is {text!r}, a {type(text).__name__}; give a text")
        if name != "message" and text != text.translate(_LOST_CHARACTERS):
            raise ValueError(
                f"{name} {text!r} holds a NUL or half a surrogate pair; databases refuse it, so leave it out"
            )
    versions = environment.versions if isinstance(environment.versions, tuple | list) else (None,)
    for pair in versions:
        if not isinstance(pair, tuple | list) or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"versions has {pair!r}; give pairs of texts, a distribution and its version")


def _with_plain_types(measurement: Measurement) -> Measurement:
    """Return the measurement with every value of its field's own type.

    Raises:
        ValueError: a value has none that says the same.
    """
    message = cut_message(measurement.message).translate(_LOST_CHARACTERS)
    measurement = msgspec.structs.replace(measurement, message=message)
    try:
        text = msgspec.json.encode(measurement, enc_hook=_plain)
        kept = msgspec.json.decode(text, type=Measurement)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the measurement cannot be kept ({_one_line(error)}); give texts, finite numbers and tuples of "
            "them"
        ) from error
    # JSON has no NaN: it would become a null, which says that nothing was measured.
    for name in ("peak_memory_bytes", "relative_error"):
        if getattr(kept, name) is None and getattr(measurement, name) is not None:
            raise ValueError(f"{name} is {getattr(measurement, name)}; give a number, or None for unknown")
    return kept


def _plain(value: object) -> object:
    """Return a foreign scalar as Python's own, for msgspec, which knows no others."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is neither a text nor a number")


def _check_numbers(measurement: Measurement) -> None:
    environment = measurement.environment
    whole = {name: getattr(measurement, name) for name in ("seed", "peak_memory_bytes")}
    whole |= {name: getattr(environment, name) for name in ("num_cores", "num_threads")}
    for name, number in whole.items():
        if number is not None and abs(number) > MAX_INTEGER:
            raise ValueError(f"{name} is {number}, which needs more than 64 bits; give a smaller one")
    if not abs(measurement.measured_at) < math.inf:
        raise ValueError(f"measured_at is {measurement.measured_at}; give seconds since 1970 as a number")
    if measurement.samples_us and not measurement.latency_us < math.inf:
        raise ValueError("the median of samples_us is beyond all numbers; give microseconds")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
