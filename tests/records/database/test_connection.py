"""Databases of somebody else's are left alone; files that may not be written can be read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from records import RecordError, RecordFileError, RecordStore, open_store
from tests.records.strategies import make_measurement, make_workload
from tests.records.version_1 import build_version_1

ROOT = Path(__file__).parents[3]
NOBODY = 65534


def fill(path: Path, num_records: int = 3) -> None:
    workload = make_workload()
    with open_store(str(path)) as store:
        store.append_many((workload, make_measurement(workload, [1.0 + i])) for i in range(num_records))


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_file_of_somebody_else_s_is_not_changed(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.commit()
    connection.close()
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(RecordFileError, match="does not have the tables of records"):
        open_store(str(path))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(tmp_path) == ["shop.db"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://somebody:s3cret/of@mine@127.0.0.1:1/records",  # a password that is not quoted
        "postgresql://somebody:s3cret@127.0.0.1:port/records",
        "mysql://somebody:s3cret@127.0.0.1:1/records",
        "postgresql://somebody:s3cret@127.0.0.1:1/records",
        "postgresql://somebody@127.0.0.1:1/records?password=s3cret&sslpassword=s3cret",
    ],
)
def test_no_message_says_the_password(url: str) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with pytest.raises((RecordError, ValueError)) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)
    assert "***" in str(caught.value)
    assert "somebody" in str(caught.value)


@pytest.mark.postgres
def test_encryption_that_is_asked_for_reaches_the_driver_and_its_lack_is_named(postgres_url: str) -> None:
    """The tests' server has no certificate."""
    url = postgres_url.replace("@", ":s3cret@")
    with pytest.raises(RecordError, match=r"was required.*; check sslmode and sslrootcert") as caught:
        open_store(f"{url}?sslmode=require")
    assert "s3cret" not in str(caught.value)
    open_store(f"{url}?sslmode=disable").close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\x7f\xff\xff\xff" + bytes(10_000),  # a message of two gigabytes
        b"N" + b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I" + b"T\0\0\x10\0" + b"\xff" * 5000,  # accepts, then garbage
    ],
)
def test_a_server_that_talks_nonsense_is_one_line(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    monkeypatch.setattr("records.database.connection.CONNECT_TIMEOUT_S", 2)

    def talk(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)
                    connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, args=(listener,), daemon=True).start()
        url = f"postgresql://somebody@127.0.0.1:{listener.getsockname()[1]}/records?gssencmode=disable"
        with pytest.raises(RecordError) as caught:
            open_store(url)
    assert "\n" not in str(caught.value)


def test_two_first_starts_without_hard_links_make_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.db"
    first: list[RecordStore] = []

    def refuse(*_: object) -> None:
        if not first:  # another process is there first, and appends
            first.append(None)  # type: ignore[arg-type]
            first[0] = open_store(str(path))
            first[0].append(make_workload(), make_measurement(make_workload()))
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with open_store(str(path)) as second, first[0]:
        assert len(list(second.iterate())) == 1
        second.append(make_workload(), make_measurement(make_workload(), [2.0]))
        assert len(list(first[0].iterate())) == 2
    assert os.listdir(tmp_path) == ["records.db"]


def test_without_hard_links_and_locks_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RecordFileError, match="name a file on another file system"):
        open_store(str(tmp_path / "records.db"))
    assert os.listdir(tmp_path) == []


def test_a_device_is_no_records_file() -> None:
    with pytest.raises(RecordFileError, match="is a device or a pipe"):
        open_store("/dev/null")


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.db").symlink_to("folder/records.db")
    fill(tmp_path / "link.db")
    assert os.listdir(tmp_path / "folder") == ["records.db"]
    assert (tmp_path / "link.db").is_symlink()


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE TABLE orders (id integer)", "orders"),
        ("CREATE TABLE measurements (id integer)", "measurements"),
        ("CREATE VIEW targets AS SELECT 1 AS one", "targets"),
        ("CREATE SEQUENCE measurements_by_key", "measurements_by_key"),
    ],
)
def test_a_server_s_database_of_somebody_else_s_gets_no_tables(
    postgres_url: str, statement: str, named: str
) -> None:
    engine = sa.create_engine(postgres_url)
    query = (
        "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'public'"
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
        before = sorted(connection.exec_driver_sql(query).scalars())
    with pytest.raises(RecordFileError, match=f"something else: it has {named}.*createdb"):
        open_store(postgres_url)
    with engine.begin() as connection:
        assert sorted(connection.exec_driver_sql(query).scalars()) == before
    engine.dispose()


@pytest.mark.postgres
def test_other_schemas_of_a_server_s_database_are_nobody_s_business(postgres_url: str) -> None:
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA shop; CREATE TABLE shop.orders (id integer)")
    engine.dispose()
    with open_store(postgres_url) as store:
        assert store.stats().measurements == 0


# Ways to make a folder read-only. Root is not bound by permission bits, and not everybody may mount.

READ = """
import sys
from pathlib import Path
from records import RecordError, open_store
from tests.records.strategies import make_measurement, make_workload

path = Path(sys.argv[1])
with open_store(str(path)) as store:
    print(store.stats().measurements, len(list(store.iterate())), len(store.best()), len(store.verify()))
    known = store.get(1)
    workload = make_workload()
    try:
        print("written", store.append(workload, make_measurement(workload, [99.0])))
    except RecordError as error:
        print(error)
print(sorted(each.name for each in path.parent.iterdir()))
"""


def read_as(path: Path, user: int | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ), str(path)],
        capture_output=True,
        text=True,
        user=user,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=["permissions", "mount", "immutable"])
def made_read_only(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Path], tuple[Path, int | None]]]:
    """Make a folder read-only; return where it is then, and as which user to look at it."""
    undo: list[list[str]] = []

    def attempt(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")

    def by_permissions(folder: Path) -> tuple[Path, int | None]:
        folder.chmod(0o555)
        for each in folder.iterdir():
            each.chmod(0o444)
        undo.append(["chmod", "-R", "u+w", str(folder)])
        if os.geteuid() != 0:
            return folder, None
        for parent in folder.parents:
            if not parent.stat().st_mode & stat.S_IXOTH and tmp_path.is_relative_to(parent):
                parent.chmod(parent.stat().st_mode | 0o005)
        readable = [
            *Path(sys.executable).resolve().parents,
            *ROOT.parents,
            ROOT,
            *Path(sys.executable).parents,
        ]
        if not all(each.stat().st_mode & stat.S_IXOTH for each in readable):
            pytest.skip("root is not bound by permissions, and Python may be run by nobody else here")
        return folder, NOBODY

    def by_mount(folder: Path) -> tuple[Path, int | None]:
        place = tmp_path / "mounted"
        place.mkdir()
        attempt("mount", "--bind", str(folder), str(place))
        undo.append(["umount", str(place)])
        attempt("mount", "-o", "remount,bind,ro", str(place))
        return place, None

    def by_attribute(folder: Path) -> tuple[Path, int | None]:
        attempt("chattr", "-R", "+i", str(folder))
        undo.append(["chattr", "-R", "-i", str(folder)])
        return folder, None

    yield {"permissions": by_permissions, "mount": by_mount, "immutable": by_attribute}[request.param]
    for command in reversed(undo):
        subprocess.run(command, check=True)


def test_a_file_that_may_not_be_written_is_read(
    tmp_path: Path, made_read_only: Callable[[Path], tuple[Path, int | None]]
) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    fill(folder / "records.db")
    place, user = made_read_only(folder)
    counts, refusal, beside = read_as(place / "records.db", user)
    assert counts == "3 3 1 0"
    assert "cannot be written" in refusal
    assert "copy it to a folder that you may write in" in refusal
    assert beside == "['records.db']"


@pytest.mark.parametrize("with_index", [True, False], ids=["with-shm", "without-shm"])
def test_what_a_killed_writer_left_beside_the_file_is_read_too(
    tmp_path: Path, made_read_only: Callable[[Path], tuple[Path, int | None]], with_index: bool
) -> None:
    folder, source = tmp_path / "media", tmp_path / "source"
    folder.mkdir()
    source.mkdir()
    fill(source / "records.db")
    workload = make_workload()
    with open_store(str(source / "records.db")) as store:
        store.append(workload, make_measurement(workload, [50.0]))
        for each in source.iterdir():  # as a kill leaves them: the newest record is in the -wal file alone
            if with_index or not each.name.endswith("-shm"):
                shutil.copyfile(each, folder / each.name)
    before = sorted(each.name for each in folder.iterdir())
    assert (folder / "records.db-wal").stat().st_size > 0
    place, user = made_read_only(folder)
    counts, refusal, beside = read_as(place / "records.db", user)
    assert counts == "4 4 1 0"
    assert "cannot be written" in refusal
    assert beside == str(before)


def test_an_older_file_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.db"
    workload = make_workload()
    build_version_1(f"sqlite:///{path}", [(1, workload, make_measurement(workload))])
    before = path.read_bytes()
    monkeypatch.setattr("records.database.connection._is_writable", lambda path: False)
    with pytest.raises(RecordFileError, match=r"must be upgraded, but .* read-only; copy it"):
        open_store(str(path))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["records.db"]
