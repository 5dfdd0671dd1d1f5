from __future__ import annotations

import gzip
import io
import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import RecordError, RecordFileError, RecordStore, open_store
from records.database.merging import ImportSummary, import_items
from records.files.exchange import check_records, export_records, read_records, save_records
from tests.records.strategies import items, make_environment, make_measurement, make_workload


def load_records(store: RecordStore, path: Path) -> ImportSummary:
    """Import a file as the command does it: checked completely first."""
    check_records(path)
    return import_items(store, read_records(path))


def exported(store: RecordStore) -> bytes:
    file = io.BytesIO()
    export_records(store, file)
    return file.getvalue()


@pytest.fixture
def filled(store: RecordStore) -> RecordStore:
    """Records whose times go down as their ids go up, in two environments."""
    for rows in (8, 16):
        workload = make_workload(rows)
        store.append_many(
            (
                workload,
                make_measurement(
                    workload,
                    [1.0 + index],
                    measured_at=100.0 - index // 2,
                    environment=make_environment(num_threads=1 + index % 2),
                ),
            )
            for index in range(20)
        )
    return store


def test_export_import_export_is_equal_byte_for_byte(filled: RecordStore, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert save_records(filled, first).written == 40
    with open_store(str(tmp_path / "copy.db")) as copy:
        summary = load_records(copy, first)
        assert (summary.read, summary.new, summary.known) == (40, 40, 0)
        save_records(copy, second)
        assert copy.verify() == []
    assert first.read_bytes() == second.read_bytes()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(items(), min_size=1, max_size=5), seed=st.randoms())
def test_order_of_an_export_depends_on_the_records_alone(
    tmp_path_factory: pytest.TempPathFactory, drawn: list, seed: object
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    shuffled = list(drawn)
    seed.shuffle(shuffled)
    with open_store(str(folder / "one.db")) as one, open_store(str(folder / "two.db")) as two:
        one.append_many(drawn)
        for item in shuffled:
            two.append(*item)
        assert exported(one) == exported(two)
        (folder / "file").write_bytes(exported(one))
        assert load_records(two, folder / "file").new == 0


def test_importing_twice_adds_nothing(filled: RecordStore, tmp_path: Path) -> None:
    save_records(filled, tmp_path / "file.jsonl")
    summary = load_records(filled, tmp_path / "file.jsonl")
    assert (summary.read, summary.new, summary.known) == (40, 0, 40)


def test_a_line_is_sorted_json_that_stands_alone(store: RecordStore) -> None:
    workload = make_workload()
    store.append(workload, make_measurement(workload))
    (line,) = exported(store).splitlines()
    document = msgspec.json.decode(line)
    assert list(document) == ["digest", "measurement", "schema_version", "workload"]
    assert document["schema_version"] == 1
    assert msgspec.json.encode(document, order="sorted") == line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.replace(b'"seed":0', b'"seed":1'), "differs from its digest"),
        (lambda line: line.replace(b'"name":"matmul"', b'"name":"matmuk"'), "measured"),
        (
            lambda line: line.replace(b'"schema_version":1,"workload"', b'"schema_version":9,"workload"'),
            "upgrade",
        ),
        (lambda line: line.replace(b'"seed":0', b'"sead":0'), "sead"),
        (lambda line: line.replace(b'"samples_us":[10.0]', b'"samples_us":[-1.0]'), "positive"),
        (lambda line: line[:-2], "not a record"),
        (lambda line: b"[]", "not a record"),
        (lambda line: b"", "not a record"),
        (lambda line: b"[" * 100_000, "not a record"),
        (lambda line: b"\xff" + line, "not a record"),
    ],
    ids=["value", "workload", "newer", "key", "sample", "cut", "list", "empty", "deep", "text"],
)
def test_a_bad_line_is_named_and_nothing_is_imported(tmp_path: Path, change: object, message: str) -> None:
    workload = make_workload()
    good = tmp_path / "good.jsonl"
    with open_store(str(tmp_path / "one.db")) as store:
        store.append(workload, make_measurement(workload))
        save_records(store, good)
    line = good.read_bytes().rstrip(b"\n")
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(line + b"\n" + change(line) + b"\n")
    with open_store(str(tmp_path / "two.db")) as store:
        with pytest.raises(RecordFileError, match="line 2.*" + message):
            load_records(store, bad)
        assert store.stats().measurements == 0


def test_a_file_that_was_cut_short_is_refused(filled: RecordStore, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    save_records(filled, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordFileError, match="cut short"):
        load_records(filled, path)


def test_an_endless_line_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file of a terabyte of zeros
    with open_store(str(tmp_path / "records.db")) as store, pytest.raises(RecordFileError, match="128 MiB"):
        load_records(store, path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "records.db")) as store:
        for path in (tmp_path / "no.jsonl", tmp_path):
            with pytest.raises(RecordFileError, match="cannot be read"):
                load_records(store, path)
        with pytest.raises(RecordError, match="cannot be written"):
            save_records(store, tmp_path / "no" / "file.jsonl")


def test_an_export_that_fails_leaves_the_earlier_file(filled: RecordStore, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "damaged.db")) as store:
        workload = make_workload()
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(5))
    _change(tmp_path / "damaged.db", "UPDATE measurements SET seed = 9 WHERE id = 3")
    path = tmp_path / "file.jsonl"
    path.write_text("earlier")
    with open_store(str(tmp_path / "damaged.db")) as store:
        with pytest.raises(RecordFileError, match="record 3"):
            save_records(store, path)
        assert path.read_text() == "earlier"
        summary = save_records(store, path, skip_damaged=True)
    assert summary.written == 4
    assert ["record 3" in problem for problem in summary.damaged] == [True]


def test_records_on_sound_pages_are_saved_from_a_file_with_bad_pages(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        workload = make_workload()
        store.append_many((workload, make_measurement(workload, [1.0 + index])) for index in range(2000))
    _spoil_a_leaf(path)
    with open_store(str(path)) as store:
        with pytest.raises(RecordFileError):
            save_records(store, tmp_path / "all.jsonl")
        summary = save_records(store, tmp_path / "some.jsonl", skip_damaged=True)
    assert 1900 < summary.written < 2000
    with open_store(str(tmp_path / "new.db")) as store:
        assert load_records(store, tmp_path / "some.jsonl").new == summary.written
        assert store.verify() == []


def _spoil_a_leaf(path: Path) -> None:
    """Overwrite one page that holds rows of `measurements`."""
    content = path.read_bytes()
    page = content.rindex(b'"digest"') if b'"digest"' in content else content.index(b"[1000.0]")
    start = page // 4096 * 4096
    assert content[start] == 0x0D  # a leaf of a table
    path.write_bytes(content[:start] + b"\xff" * 4096 + content[start + 4096 :])


def _change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_gzipped_file_is_read_and_a_damaged_one_refused(filled: RecordStore, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.gz"
    packed = gzip.compress(exported(filled))
    path.write_bytes(packed)
    assert check_records(path) == filled.stats().measurements
    for damaged in (packed[:-20], packed[:60] + bytes(8) + packed[68:], packed[:2] + b"\xff" + packed[3:]):
        path.write_bytes(damaged)
        with pytest.raises(RecordFileError, match=r"gzipped and damaged|not a record|ends within a line"):
            check_records(path)
