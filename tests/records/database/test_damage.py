"""Files that are no records, are damaged, or may not be written are refused in words and left alone."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from records import RecordError, RecordFileError, open_store
from records.database.connection import parse_url
from tests.records.strategies import make_measurement, make_workload

NUM_RECORDS = 400


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "records.db"
    with open_store(str(path)) as store:
        for rows in range(1, 9):
            workload = make_workload(rows)
            store.append_many(
                (workload, make_measurement(workload, [1.5 + index], message=""))
                for index in range(NUM_RECORDS // 8)
            )
    return path


@pytest.fixture
def file(sound_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound_file, tmp_path / "records.db"))


def read_all(path: Path) -> list[str]:
    """Use a file in every way; return the digests that it gave back."""
    with open_store(str(path)) as store:
        store.stats()
        digests = [record.digest for record in store.iterate()]
        workload = make_workload()
        store.append(workload, make_measurement(workload, [123.0]))
        return digests


def open_files() -> list[str]:
    """Return what this process has open, as Linux tells it."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder itself, which is closed by now
            found.append(str(link.readlink()))
    return found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"{}", "is not an SQLite database"),
        (b"SQLite format 2\x00" + bytes(100), "is not an SQLite database"),
        (b"SQLite format 3\x00", "damaged|not have the tables"),
        (b"SQLite format 3\x00" + bytes(5000), "damaged"),
        (b"\x00" * 4096, "is not an SQLite database"),
        (os.urandom(8192), "is not an SQLite database"),
    ],
    ids=["empty", "json", "old-sqlite", "header-only", "header-and-zeros", "zeros", "noise"],
)
def test_what_is_not_a_records_file_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "records.db"
    path.write_bytes(content)
    with pytest.raises(RecordFileError, match=message):
        open_store(str(path))
    assert path.read_bytes() == content


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match="is a folder"):
        open_store(str(tmp_path))


def test_a_file_in_the_way_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(RecordFileError, match="give --records a folder"):
        open_store(f"sqlite:///{tmp_path}/out/records.db")


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    with pytest.raises(RecordFileError, match="does not have the tables of records"):
        open_store(str(path))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]
    connection.close()


def test_a_missing_table_is_refused(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("DROP TABLE measurements")
    connection.commit()
    connection.close()
    with pytest.raises(RecordFileError, match="does not have the tables of records") as refused:
        open_store(str(file))
    assert str(file) not in open_files(), f"left open by {refused.value!r}, which holds its frames"


@pytest.mark.parametrize(
    "url",
    ["mysql://host/db", "sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "://"],
)
def test_urls_of_other_databases_are_wrong_arguments(url: str) -> None:
    with pytest.raises(ValueError, match="records URL"):
        open_store(url)


@pytest.mark.parametrize("url", ["postgresql://u@h/d", "postgresql+psycopg://u@h/d"])
def test_postgresql_is_spoken_to_by_psycopg(url: str) -> None:
    assert parse_url(url).drivername == "postgresql+psycopg"


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(RecordError, match="start the server") as caught:
        open_store("postgresql://me:secret@127.0.0.1:1/records")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(RecordFileError, match=r"damaged|tables"):
        read_all(file)


@pytest.mark.parametrize("num_trials", [40, pytest.param(150, marks=pytest.mark.slow)], ids=["few", "many"])
def test_of_random_flipped_bits_none_changes_what_is_read(
    num_trials: int, sound_file: Path, tmp_path: Path
) -> None:
    sound = read_all(Path(shutil.copy(sound_file, tmp_path / "sound.db")))
    content = sound_file.read_bytes()
    rng = random.Random(5)
    refused = 0
    for trial in range(num_trials):
        path = tmp_path / f"{trial}.db"
        path.write_bytes(_flipped(content, rng.randrange(len(content)), 1 << rng.randrange(8)))
        digests = _read_or_refuse(path)
        refused += digests is None
        # Where no record is refused, all are as they were, or `verify` says that some are gone.
        assert digests is None or digests == sound or _findings(path), trial
    assert refused > num_trials / 15


def _flipped(content: bytes, position: int, bits: int) -> bytes:
    return content[:position] + bytes([content[position] ^ bits]) + content[position + 1 :]


def _read_or_refuse(path: Path) -> list[str] | None:
    try:
        return read_all(path)
    except RecordFileError as error:
        message = str(error)
    assert str(path) in message
    return None


def _findings(path: Path) -> list:
    with open_store(str(path)) as store:
        return store.verify()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE measurements SET samples_us = '[2.0]' WHERE id = 7",
        "UPDATE measurements SET samples_us = '[2.0' WHERE id = 7",
        "UPDATE measurements SET samples_us = x'ff' WHERE id = 7",
        "UPDATE measurements SET latency_us = 0.5 WHERE id = 7",
        "UPDATE measurements SET status = 'great' WHERE id = 7",
        "UPDATE measurements SET backend = 'blas' WHERE id = 7",
        "UPDATE measurements SET seed = 'x' WHERE id = 7",
        "UPDATE measurements SET digest = 'x' WHERE id = 7",
        "UPDATE workloads SET description = replace(description, 'matmul', 'matmuk')",
        "UPDATE environments SET description = replace(description, 'Testing', 'Tasting')",
        "UPDATE targets SET text = 'cuda'",
        "DELETE FROM targets",
    ],
)
def test_changed_values_are_found_by_reading_and_by_verify(file: Path, change: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute(change)
    connection.commit()
    connection.close()
    with open_store(str(file)) as store:
        findings = store.verify()
        assert findings
        if not change.startswith("DELETE"):
            with pytest.raises(RecordFileError, match=r"record \d+ in .* is damaged"):
                list(store.iterate())


@pytest.mark.skipif(os.geteuid() != 0 and not hasattr(os, "setuid"), reason="needs users")
@pytest.mark.parametrize("protected", ["file", "folder"])
def test_a_read_only_file_or_folder_is_read_and_not_written(file: Path, protected: str) -> None:
    program = textwrap.dedent(
        """
        import os, sys
        import msgspec
        from records import RecordFileError, open_store
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        with open_store(sys.argv[1]) as store:
            record = next(store.iterate())
            print(store.stats().measurements, os.listdir(os.path.dirname(sys.argv[1])))
            try:
                store.append(record.workload, msgspec.structs.replace(record.measurement, seed=99))
            except RecordFileError as error:
                print(error)
        """
    )
    folder = Path("/tmp") / f"read-only-{os.getpid()}-{protected}"
    folder.mkdir()
    try:
        path = Path(shutil.copy(file, folder / "records.db"))
        path.chmod(0o444 if protected == "file" else 0o666)
        folder.chmod(0o777 if protected == "file" else 0o555)
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        counted, refusal = done.stdout.splitlines()
        assert counted.endswith("['records.db']")
        assert int(counted.split()[0]) > 0
        assert "cannot be written" in refusal
        assert "copy it to a folder" in refusal
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


def test_a_folder_that_may_not_be_written_takes_no_new_file() -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs a folder in which nobody may make files")
    with pytest.raises(RecordFileError, match="give --records a folder"):
        open_store("/proc/self/records.db")
