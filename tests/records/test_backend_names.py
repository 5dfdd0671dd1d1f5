"""A backend's new name changes neither what is stored nor its hashes, and is the only one that is shown."""

from __future__ import annotations

import hashlib
import io
import sqlite3
from pathlib import Path

import msgspec
import pytest

from records import Environment, Measurement, RecordStore, open_store
from records.backend_names import CURRENT_NAMES, current_label, current_name, kept_name
from records.database.merging import import_items, merge_items
from records.files.exchange import decode_line, export_records, read_records
from records.record import measurement_digest
from tests.records.strategies import make_environment, make_measurement, make_workload

RENAMED = sorted(CURRENT_NAMES.items())


def environment_with(*kernels: str) -> Environment:
    versions = (*make_environment().versions, *((f"{name}-kernels", "1") for name in kernels))
    return msgspec.structs.replace(make_environment(), versions=tuple(sorted(versions)))


def measured_by(backend: str) -> Measurement:
    return make_measurement(make_workload(), backend=backend, environment=environment_with(backend))


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_digests_and_fingerprints_are_those_of_the_old_name(old: str, new: str) -> None:
    workload = make_workload()
    mine = make_measurement(workload, backend=new, environment=environment_with(new))
    theirs = make_measurement(workload, backend=old, environment=environment_with(old))
    said = {  # what version 0.1 hashed, written down here
        name: value
        for name, value in msgspec.structs.asdict(theirs).items()
        if name in ("workload_fingerprint", "backend", "target", "environment", "status", "samples_us")
    }
    digest = hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=16).hexdigest()
    text = msgspec.json.encode(theirs.environment, order="sorted")
    fingerprint = hashlib.blake2b(text, digest_size=16).hexdigest()
    assert measurement_digest(mine) == measurement_digest(theirs) == digest
    assert mine.environment.fingerprint == theirs.environment.fingerprint == fingerprint


@pytest.mark.parametrize(("old", "new"), RENAMED)
def test_what_was_stored_by_either_name_is_found_by_both(store: RecordStore, old: str, new: str) -> None:
    workload = make_workload()
    record_id = store.append(
        workload, make_measurement(workload, backend=old, environment=environment_with(old))
    )
    again = store.append(workload, make_measurement(workload, backend=new, environment=environment_with(new)))
    assert again == record_id
    for name in (old, new):
        found = store.find(
            workload.fingerprint, backend=name, target="llvm", environment=environment_with(name)
        )
        assert [(each.record_id, each.measurement.backend) for each in found] == [(record_id, new)]
        assert found[0].measurement.environment == environment_with(new)
        assert [each.record_id for each in store.iterate(backend=name)] == [record_id]
    assert store.stats().by_backend == {new: 1}
    assert store.verify() == []


def test_versions_of_several_kernels_are_sorted_by_the_names_of_their_time(store: RecordStore) -> None:
    new = environment_with("attention", "nhwc", "packed_matmul")
    old = environment_with("attention", "channels_last", "products")
    assert new.fingerprint == old.fingerprint
    workload = make_workload()
    store.append(workload, make_measurement(workload, backend="mix", environment=new))
    [record] = store.iterate()
    assert record.measurement.environment == new


def test_tables_hold_the_kept_name(tmp_path: Path) -> None:
    """Versions before read this file too."""
    workload = make_workload()
    with open_store(str(tmp_path / "records.db")) as store:
        store.append(workload, measured_by("nhwc"))
    with sqlite3.connect(tmp_path / "records.db") as tables:
        assert tables.execute("SELECT backend FROM measurements").fetchall() == [("channels_last",)]
        [(description,)] = tables.execute("SELECT description FROM environments").fetchall()
    assert "channels_last-kernels" in description


def test_files_hold_the_kept_name_and_are_read_by_both(store: RecordStore, tmp_path: Path) -> None:
    store.append(make_workload(), measured_by("nhwc"))
    file = io.BytesIO()
    export_records(store, file)
    line = file.getvalue()
    assert b'"backend":"channels_last"' in line
    _, measurement = decode_line(line.strip(), "here")
    _, renamed = decode_line(line.strip().replace(b"channels_last", b"nhwc"), "here")
    assert measurement == renamed
    assert measurement.backend == "nhwc"
    path = tmp_path / "records.jsonl"
    path.write_bytes(line)
    assert import_items(store, read_records(path)).new == 0
    summary = merge_items(store, read_records(path))
    assert (summary.new, summary.conflicts) == (0, ())


def test_names_and_labels_are_translated_whole() -> None:
    assert [current_name(name) for name in ("products", "nhwc", "tvm")] == ["packed_matmul", "nhwc", "tvm"]
    assert [kept_name(name) for name in ("products", "nhwc", "tvm")] == ["products", "channels_last", "tvm"]
    assert current_name("products-alone") == "packed_matmul-alone"
    assert kept_name("packed_matmul-alone") == "products-alone"
    assert [current_name(name) for name in ("my-products", "alone")] == ["my-products", "alone"]
    assert current_label("without products,blas") == "without packed_matmul,blas"
    assert current_label("byproducts") == "byproducts"
    assert not set(CURRENT_NAMES) & set(CURRENT_NAMES.values())
