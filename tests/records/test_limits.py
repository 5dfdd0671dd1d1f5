"""What `append` accepts is exported, and imported again, equal, from and into either database."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import Measurement, RecordFileError, RecordStore, Status, Workload, open_store
from records.database.merging import import_items
from records.files.exchange import check_records, decode_line, encode_line, read_records, save_records
from records.files.lines import read_lines
from records.limits import MAX_BACKEND_BYTES, MAX_INTEGER, MAX_LINE_BYTES, MAX_MESSAGE_CHARACTERS
from tests.records.strategies import items, make_environment, make_measurement, make_workload

MIB = 2**20

_integers = st.sampled_from([0, 1, MAX_INTEGER, MAX_INTEGER + 1, 2**64 - 1, -MAX_INTEGER, -MAX_INTEGER - 1])
_texts = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["", "\0", "\x1b[2J", "\ud800", "\udc80x", "\N{PILE OF POO}", "\\u0000", "\u2028", "é" * 499, "é" * 501]
)
_floats = st.sampled_from([5e-324, 1e-300, 0.1, 1.7976931348623157e308, 4.2]) | st.floats(1e-9, 1e15)
_changes = st.fixed_dictionaries(
    {},
    optional={
        "backend": _texts,
        "settings": _texts,
        "target": _texts,
        "message": _texts,
        "seed": _integers,
        "peak_memory_bytes": _integers,
        "measured_at": st.sampled_from([-0.0, 1e300, float("inf"), float("nan")]),
        "relative_error": st.sampled_from([-0.0, 5e-324]),
        "samples_us": st.lists(_floats, min_size=1, max_size=200).map(tuple),
    },
)
_environments = st.fixed_dictionaries(
    {},
    optional={
        "device_kind": _texts,
        "device_model": _texts,
        "driver": _texts,
        "num_threads": _integers,
        "num_cores": _integers,
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=items(), changes=_changes, place=_environments)
def test_what_is_kept_comes_back_from_a_line_equal(
    store: RecordStore,
    drawn: tuple[Workload, Measurement],
    changes: dict[str, Any],
    place: dict[str, Any],
) -> None:
    workload, measurement = drawn
    environment = msgspec.structs.replace(measurement.environment, **place)
    if "samples_us" in changes and measurement.status is not Status.OK:
        del changes["samples_us"]
    try:
        extreme = msgspec.structs.replace(measurement, environment=environment, **changes)
        record_id = store.append(workload, extreme)
    except ValueError:
        return  # refused before anything was written, in one line
    record = store.get(record_id)
    line = encode_line(record)
    assert decode_line(line, "line") == (record.workload, record.measurement)
    assert len(line) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("place", "changes", "reason"),
    [
        ({"num_threads": MAX_INTEGER + 1}, {}, "64 bits"),
        ({"device_model": "a\0b"}, {}, "NUL"),
        ({"device_kind": "\0"}, {}, "NUL"),
        ({}, {"backend": "é" * (MAX_BACKEND_BYTES // 2 + 1)}, "settings"),
    ],
)
def test_both_databases_refuse_the_same(
    store: RecordStore, place: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    workload = make_workload()
    environment = msgspec.structs.replace(make_environment(), **place)
    measurement = msgspec.structs.replace(make_measurement(workload, environment=environment), **changes)
    with pytest.raises(ValueError, match=reason):
        store.append(workload, measurement)
    assert store.stats().measurements == 0


def test_the_longest_name_of_a_backend_fits_every_index(store: RecordStore) -> None:
    workload = make_workload()
    # Not compressible, or PostgreSQL would make room for a longer one.
    name = "".join(chr(0x4E00 + index * 7919 % 20000) for index in range(MAX_BACKEND_BYTES // 3))
    record_id = store.append(workload, make_measurement(workload, backend=name))
    assert store.get(record_id).measurement.backend == name


def test_a_long_message_goes_out_and_in_again(store: RecordStore, tmp_path: Path) -> None:
    workload, path = make_workload(), tmp_path / "file.jsonl"
    message = "x" * MAX_MESSAGE_CHARACTERS
    store.append(workload, make_measurement(workload, status=Status.ERROR, message=message))
    save_records(store, path)
    with open_store(str(tmp_path / "other.db")) as other:
        assert import_items(other, read_records(path)).new == 1
        assert other.get(1).measurement.message == message


def test_a_longer_message_loses_its_end_not_the_measurement(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six bytes are the most that JSON takes for a character.
    assert 20 * MIB <= MAX_MESSAGE_CHARACTERS < MAX_LINE_BYTES / 6
    monkeypatch.setattr("records.limits.MAX_MESSAGE_CHARACTERS", 5)
    workload = make_workload()
    record_id = store.append(workload, make_measurement(workload, status=Status.ERROR, message="beginning"))
    record = store.get(record_id)
    assert record.measurement.message == "begin"
    assert decode_line(encode_line(record), "line") == (record.workload, record.measurement)


def test_a_record_whose_line_nobody_would_read_is_not_kept(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("records.limits.MAX_LINE_BYTES", 4000)
    monkeypatch.setattr("records.files.lines.MAX_LINE_BYTES", 4000)
    workload = make_workload()

    def is_kept(number: int) -> bool:
        measurement = make_measurement(workload, [1.0 + index / 7 for index in range(number)])
        try:
            record = store.get(store.append(workload, measurement))
        except ValueError:
            return False
        file = io.BytesIO(encode_line(record) + b"\n")
        assert [decode_line(line, "line") for _, line in read_lines(file, "file")]
        return True

    kept = [is_kept(number) for number in range(100, 250, 5)]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 2  # both sides of the bound were seen


def test_a_longer_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("records.files.lines.MAX_LINE_BYTES", 1 * MIB)
    (tmp_path / "file").write_bytes(b"x" * (MIB + 1) + b"\n")
    with pytest.raises(RecordFileError, match="more than 1 MiB"):
        check_records(tmp_path / "file")
