from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records import Measurement, RecordFileError, Status, Workload, open_store
from records.database.schema import SCHEMA_VERSION
from tests.records.strategies import items, make_measurement, make_workload
from tests.records.version_1 import build_version_1


def old_items() -> list[tuple[int, Workload, Measurement]]:
    """Records with gaps between their ids, the last one equal to the first."""
    one, two = make_workload(8), make_workload(16)
    return [
        (3, one, make_measurement(one, [1.0, 2.0], settings="trials=8", measured_at=5.0)),
        (4, two, make_measurement(two, target="cuda")),
        (9, two, make_measurement(two, status=Status.ERROR, message="no rule")),
        (12, one, make_measurement(one, [1.0, 2.0], settings="trials=8", measured_at=5.0)),
    ]


@pytest.fixture
def old_url(url: str) -> str:
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir()
    build_version_1(url, old_items())
    return url


def test_an_older_database_is_upgraded_under_the_same_ids(old_url: str) -> None:
    with open_store(old_url) as store:
        kept = {record.record_id: (record.workload, record.measurement) for record in store.iterate()}
        assert kept == {record_id: (workload, item) for record_id, workload, item in old_items()[:3]}
        assert store.verify() == []
        workload = make_workload(32)
        assert store.append(workload, make_measurement(workload)) > 9
    with open_store(old_url) as store:
        assert store.stats().measurements == 4


def test_processes_that_open_an_older_database_at_once_upgrade_it_once(old_url: str, tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_count, [old_url] * 4) == [3] * 4
    assert len(list(tmp_path.rglob("*backup*"))) == old_url.startswith("sqlite")


@pytest.mark.slow
def test_processes_that_open_a_database_at_once_wait_while_one_turns_its_journal(tmp_path: Path) -> None:
    """SQLite itself does not wait where several change a file from a rollback journal to write-ahead mode."""
    path = tmp_path / "records.db"
    with open_store(str(path)) as store:
        workload = make_workload(8)
        store.append(workload, make_measurement(workload))
    num_processes = 8
    context = multiprocessing.get_context("fork")
    together = context.Barrier(num_processes)
    with context.Pool(num_processes, _meet_at, (together,)) as pool:
        for _ in range(40):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
            assert pool.map(_count_together, [str(path)] * num_processes, chunksize=1) == [1] * num_processes


_together: Barrier


def _meet_at(barrier: Barrier) -> None:
    global _together
    _together = barrier


def _count_together(url: str) -> int:
    _together.wait(600)
    return _count(url)


def _count(url: str) -> int:
    with open_store(url) as store:
        return store.stats().measurements


def test_the_old_file_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    build_version_1(f"sqlite:///{path}", old_items())
    open_store(str(path)).close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["records.db", "records.db.v1-backup"]
    backup = sqlite3.connect(tmp_path / "records.db.v1-backup")
    assert backup.execute("SELECT version FROM record_schema").fetchall() == [(1,)]
    assert backup.execute("SELECT id FROM measurements ORDER BY id").fetchall() == [(3,), (4,), (9,), (12,)]
    backup.close()


def test_another_backup_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    (tmp_path / "records.db.v1-backup").write_text("precious")
    build_version_1(f"sqlite:///{path}", old_items())
    open_store(str(path)).close()
    assert (tmp_path / "records.db.v1-backup").read_text() == "precious"
    with open_store(str(tmp_path / "records.db.v1-backup-2")) as store:
        assert store.stats().measurements == 3


@pytest.mark.postgres
def test_postgresql_keeps_the_old_tables_in_a_schema_of_their_own(postgres_url: str) -> None:
    build_version_1(postgres_url, old_items())
    open_store(postgres_url).close()
    engine = sa.create_engine(postgres_url)
    with engine.connect() as connection:
        query = "SELECT id FROM records_v1_backup.measurements ORDER BY id"
        assert connection.exec_driver_sql(query).scalars().all() == [3, 4, 9, 12]
    engine.dispose()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(items(), min_size=1, max_size=4))
def test_what_version_1_could_say_is_kept(tmp_path_factory: pytest.TempPathFactory, drawn: list) -> None:
    path = tmp_path_factory.mktemp("drawn") / "records.db"
    drawn = [(workload, msgspec.structs.replace(item, relative_error=None)) for workload, item in drawn]
    build_version_1(
        f"sqlite:///{path}", [(index + 1, workload, item) for index, (workload, item) in enumerate(drawn)]
    )
    with open_store(str(path)) as store:
        found = [(record.workload, record.measurement) for record in store.iterate()]
        assert all(item in found for item in drawn)
        assert all(item in drawn for item in found)


def test_a_newer_version_is_refused_and_left_alone(url: str) -> None:
    open_store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE record_schema SET version = {SCHEMA_VERSION + 1}")
    for _ in range(2):
        with pytest.raises(
            RecordFileError, match=f"schema version {SCHEMA_VERSION + 1}.*upgrade tessel-tuner"
        ):
            open_store(url)
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT version FROM record_schema").scalar() == SCHEMA_VERSION + 1
    engine.dispose()


@pytest.mark.parametrize("versions", ["(0)", "(-3)", "(1), (2)"])
def test_versions_that_never_were_are_refused(tmp_path: Path, versions: str) -> None:
    path = tmp_path / "records.db"
    open_store(str(path)).close()
    connection = sqlite3.connect(path)
    connection.executescript(f"DELETE FROM record_schema; INSERT INTO record_schema VALUES {versions}")
    connection.close()
    with pytest.raises(RecordFileError, match=r"never was|does not have the tables"):
        open_store(str(path))


def test_a_damaged_older_file_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    build_version_1(f"sqlite:///{path}", old_items())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE measurements SET samples_us = '[' WHERE id = 9")
    connection.commit()
    before = connection.execute("SELECT * FROM measurements").fetchall()
    connection.close()
    with pytest.raises(RecordFileError, match=r"record 9 .* was not upgraded"):
        open_store(str(path))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM measurements").fetchall() == before
    connection.close()
