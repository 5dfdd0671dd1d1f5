"""Connections to the database of a store: URLs, opening, and translation of errors.

SQLite runs in write-ahead mode with `synchronous=FULL`: readers never wait for writers, and a commit that
returned is on the disk, so that it survives a killed process and a power cut. Writers take the write lock
when they begin (`BEGIN IMMEDIATE`), because a transaction that reads first and writes later can be refused
immediately, without waiting. A new file is created under another name and linked into place, so creation is
atomic, and eight processes that start together create one file; where there are no hard links, it is renamed
under a lock of the folder.

A read-only file, or one in a read-only folder, can still be read: without the auxiliary files that SQLite
otherwise creates, but including a write-ahead log left by a killed writer. A file of another application is
refused before anything in it is changed, its journal mode included. Checked in
tests/records/database/test_connection.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from records.database.schema import SCHEMA_VERSION, metadata, record_schema
from records.errors import RecordError, RecordFileError
from records.own_files import FileKind, other_files_named

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for others. A batch of a thousand appends holds the lock for under 0.2 s."""

_RETRY_S = 0.01
"""Pause before the next attempt where SQLite does not wait by itself."""

CONNECT_TIMEOUT_S = 10

_KEEP_ALIVE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A server whose machine vanished is given up after a minute; the system's own default is two hours."""

CACHE_KIB = 64 * 1024
"""Pages that a connection keeps, at most: most of what look-ups and appends touch among 10^6 records. With
SQLite's 2 MiB, every look-up reads a dozen pages from the file again."""

_SQLITE_HEADER = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_READ_VERSION_BYTE = 19
"""Of the header: 2 where the file is in write-ahead mode."""
_BESIDE = ("-wal", "-journal")
"""Files beside a database that hold what is not in it yet, or what must be undone."""
_MAX_REASON = 200
_DAMAGE = "restore it from a backup, or save what is readable with `tessel records export --skip-damaged`"


def parse_url(text: str) -> URL:
    """Return the database URL of `sqlite:///path`, `postgresql+psycopg://…` or a plain path.

    Raises:
        ValueError: the URL names another kind of database, or no file.
    """
    if "://" not in text:
        url = URL.create("sqlite", database=text)
    else:
        try:
            url = make_url(text)
        except (sa.exc.ArgumentError, ValueError) as error:
            raise ValueError(
                f"records URL {without_password(text)!r} cannot be read; write sqlite:///out/records.db or "
                "postgresql+psycopg://user@host/database"
            ) from error
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ValueError(
            f"records URL {without_password(text)!r} names the database {backend!r}; use sqlite or postgresql"
        )
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError(f"records URL {text!r} names no plain file; write sqlite:///out/records.db")
    return URL.create("sqlite", database=url.database)


def connect(url: URL) -> sa.Engine:
    """Return an engine on the database, making folder and file where they are missing.

    Where file or folder may not be written, the engine only reads; `is_read_only` tells.

    Raises:
        RecordFileError: the file is not a database, or cannot be read or written.
        RecordError: the server does not answer, or the PostgreSQL driver is missing.
    """
    if url.get_backend_name() == "postgresql":
        return _connect_postgresql(url)
    path = Path(str(url.database))
    if not path.exists():
        _make_sqlite_file(Path(os.path.realpath(path)))
    with other_files_named(path, "a database of records", RecordFileError, (FileKind.DATABASE,)):
        _check_sqlite_file(path)
    _check_tables(path)
    return _connect_sqlite(path) if _is_writable(path) else _connect_to_read(path)


def is_read_only(connection: sa.Connection) -> bool:
    """Tell whether the database can only be read."""
    return connection.dialect.name == "sqlite" and bool(
        connection.exec_driver_sql("PRAGMA query_only").scalar()
    )


def not_of_records(location: str) -> RecordFileError:
    """Return the error for a database of somebody else's."""
    return RecordFileError(
        f"{location} is a database, but does not have the tables of records; name another one"
    )


def location_of(url: URL) -> str:
    """Return the name of a database for messages: its path, or its URL without the password."""
    is_file = url.get_backend_name() == "sqlite"
    return str(url.database) if is_file else without_password(url.render_as_string())


def without_password(text: str) -> str:
    """Return a URL as a user wrote it, for messages: also where it is none, as with a `/` in the password."""
    text = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", text, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*password=)[^&]*", r"\1***", text)


def write_version(connection: sa.Connection) -> None:
    """Make the tables where they are missing, and say in the database which version they have."""
    metadata.create_all(connection)
    connection.execute(sa.delete(record_schema))
    connection.execute(sa.insert(record_schema).values(version=SCHEMA_VERSION))


@contextmanager
def explained_errors(location: str) -> Iterator[None]:
    """Turn the database's errors within the body into `RecordError`s that say what to do."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _explained(error, location) from error
    except sqlite3.Error as error:  # while a connection is set up, nothing wraps it
        raise _explained_sqlite(error, location) from error
    except UnicodeDecodeError as error:  # SQLite quotes a damaged schema in its own error
        raise RecordFileError(
            f"records file {location} is damaged (its schema is no text); {_DAMAGE}"
        ) from error


def _connect_postgresql(url: URL) -> sa.Engine:
    try:
        return sa.create_engine(
            url,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, **_KEEP_ALIVE},
            pool_size=2,
            use_native_hstore=False,  # spares opening three round trips, for a type that no table has
        )
    except ModuleNotFoundError as error:
        raise RecordError(
            f"records in {location_of(url)} need the package {error.name}, which is not installed; "
            "install the extra: pip install 'tessel-tuner[postgres]'"
        ) from error


def _connect_sqlite(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: sqlite3.Connection, _: object) -> None:
        # The driver's own transactions begin late and never with a lock; `_begin_locked` does it.
        connection.isolation_level = None
        _write_ahead(connection)
        _set(connection, "synchronous=FULL", "foreign_keys=ON", *_SETTINGS)

    _begin_locked(engine)
    return engine


# The file may come from a stranger: check pages as they are read, trust no code in its schema.
_SETTINGS = (f"cache_size=-{CACHE_KIB}", "cell_size_check=ON", "trusted_schema=OFF")


def _set(connection: sqlite3.Connection, *settings: str) -> None:
    for setting in settings:
        connection.execute(f"PRAGMA {setting}")


def _begin_locked(engine: sa.Engine) -> None:
    """Have transactions that write take the lock as they begin."""

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if not options.get("within_transaction", True):
            return
        writes = options.get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _connect_to_read(path: Path) -> sa.Engine:
    """Return an engine on a file that may not be written.

    What a killed writer left beside the file belongs to it. SQLite takes it up where it can without writing;
    else a copy is read.
    """
    folder: tempfile.TemporaryDirectory[str] | None = None
    uri = _uri_to_read(path)
    if _is_unfinished(path) and not _can_read(uri):
        folder = tempfile.TemporaryDirectory(prefix="tessel-records-")
        copy = Path(folder.name) / path.name
        for suffix in ("", *_BESIDE):
            if path.with_name(path.name + suffix).exists():
                shutil.copyfile(path.with_name(path.name + suffix), copy.with_name(copy.name + suffix))
        uri = f"file:{quote(str(copy))}"
    engine = sa.create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False),
    )

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        _set(connection, "query_only=ON", *_SETTINGS)

    @sa.event.listens_for(engine, "engine_disposed")
    def _clean_up(_: sa.Engine) -> None:
        if folder is not None:
            folder.cleanup()

    _begin_locked(engine)
    return engine


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _is_unfinished(path: Path) -> bool:
    """Tell whether a writer left, or has, something beside the file that belongs to it."""
    beside = [path.with_name(path.name + suffix) for suffix in _BESIDE]
    return any(each.exists() and each.stat().st_size > 0 for each in beside)


def _uri_to_read(path: Path) -> str:
    """Return the URI by which SQLite reads a file and makes no other beside it."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    # In write-ahead mode SQLite makes two files even to read, unless it is told that nobody writes.
    is_ahead = header[_READ_VERSION_BYTE : _READ_VERSION_BYTE + 1] == b"\x02"
    nobody_writes = is_ahead and not _is_unfinished(path)
    return f"file:{quote(str(path.absolute()))}?mode=ro" + ("&immutable=1" if nobody_writes else "")


def _can_read(uri: str) -> bool:
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False
    return True


def _check_tables(path: Path) -> None:
    """Refuse a file of somebody else's, and leave it as it is; what cannot be read is refused later on.

    Raises:
        RecordFileError: it has tables, and not those of records.
    """
    try:
        with closing(sqlite3.connect(_uri_to_read(path), uri=True)) as connection:
            query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
            (number,) = connection.execute(query, (record_schema.name,)).fetchone()
    except (sqlite3.Error, UnicodeDecodeError, OSError):
        return
    if not number:
        raise not_of_records(str(path))


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Put the file into write-ahead mode, where it is not yet, waiting for others that do the same.

    SQLite's own waiting does not reach here: of several connections that change the mode of one file at once,
    all but one are refused without delay.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # The driver's own errors have no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
        time.sleep(_RETRY_S)


def _make_sqlite_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tessel-", suffix=".new")
        os.close(descriptor)
    except OSError as error:
        raise RecordFileError(
            f"records file {path} cannot be made ({error.strerror}); give --records a folder that you may "
            "write in"
        ) from error
    fresh = Path(name)
    try:
        with explained_errors(str(path)):
            engine = _connect_sqlite(fresh)
            with engine.execution_options(writes=True).begin() as connection:
                write_version(connection)
            engine.dispose()
        fresh.chmod(0o666 & ~_umask())
        _give_name(fresh, path)
    finally:
        for leftover in fresh.parent.glob(f"{fresh.name}*"):
            leftover.unlink(missing_ok=True)


def _give_name(fresh: Path, path: Path) -> None:
    """Give the finished file its name, unless another process was first."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        try:
            os.link(fresh, path)
        except FileExistsError:
            return
        except OSError:  # file systems without hard links, such as exFAT
            _lock_folder(folder, path)
            if not path.exists():
                os.rename(fresh, path)
        os.fsync(folder)
    finally:
        os.close(folder)  # and unlock it


def _lock_folder(folder: int, path: Path) -> None:
    """Lock a folder against others that make a file in it; the system unlocks it for a process that dies.

    Raises:
        RecordFileError: the file system has no locks, or somebody keeps this one.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK or time.monotonic() > give_up_at:
                raise RecordFileError(
                    f"records file {path} cannot be made ({error.strerror}): without hard links and locks, "
                    "two programs could make it at once; name a file on another file system"
                ) from error
        time.sleep(_RETRY_S)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_sqlite_file(path: Path) -> None:
    if path.is_dir():
        raise RecordFileError(
            f"records file {path} is a folder; name a file in it, such as {path}/records.db"
        )
    if not path.is_file() and path.exists():
        raise RecordFileError(f"records file {path} is a device or a pipe, not a database; name a file")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            num_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise RecordFileError(
            f"records file {path} cannot be read ({error.strerror}); give yourself the right to read it"
        ) from error
    if not header:
        raise RecordFileError(f"records file {path} is empty, so it holds no tables; delete it, or {_DAMAGE}")
    if not header.startswith(_SQLITE_HEADER):
        raise RecordFileError(
            f"records file {path} begins with {header[:8]!r}, so it is not an SQLite database; name another "
            "file, or move this one away"
        )
    if _ends_within_page(header, num_bytes) and not path.with_name(f"{path.name}-wal").exists():
        raise RecordFileError(
            f"records file {path} is damaged (its {num_bytes} bytes end within a page, so it was cut short); "
            f"{_DAMAGE}"
        )


def _ends_within_page(header: bytes, num_bytes: int) -> bool:
    """Tell a file that was cut within its last page, which SQLite itself would fill up with zeros."""
    page_bytes = int.from_bytes(header[16:18], "big")
    return num_bytes % (2**16 if page_bytes == 1 else max(page_bytes, 1)) != 0


def _explained(error: sa.exc.DBAPIError, location: str) -> RecordError:
    if isinstance(error.orig, sqlite3.Error):
        return _explained_sqlite(error.orig, location)
    reason = " ".join(str(error.orig).split())
    if isinstance(error, sa.exc.OperationalError):
        is_about_trust = re.search(r"\bSSL\b|certificate", reason) is not None
        advice = "check sslmode and sslrootcert in --records, and the server's certificate"
        if not is_about_trust:
            advice = "start the server, or check host, port and user in --records"
        return RecordError(f"records in {location} could not be reached ({reason}); {advice}")
    return RecordError(
        f"records in {location} were refused by the server ({reason}); nothing was changed; check that the "
        "database belongs to this program and that you may write to it"
    )


def _explained_sqlite(error: sqlite3.Error, location: str) -> RecordError:
    # The driver itself raises an error without a code where a text is not UTF-8.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF in _DAMAGE_CODES:
        return RecordFileError(f"records file {location} is damaged ({_one_line(error)}); {_DAMAGE}")
    if code & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return RecordFileError(
            f"records file {location} cannot be written ({error}); copy it to a folder that you may write in"
        )
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return RecordError(
            f"records file {location} was locked by another process for {BUSY_TIMEOUT_S:.0f} s; end the one "
            "that hangs, and run again"
        )
    if code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return RecordError(
            f"records file {location} could not be written ({error}); earlier records are kept: free some "
            "disk space and run again"
        )
    return RecordFileError(
        f"records file {location} does not have the tables of one ({_one_line(error)}); {_DAMAGE}"
    )


def _one_line(error: sqlite3.Error) -> str:
    """Return what SQLite says without the unprintable characters that it quotes from a damaged file."""
    text = " ".join(str(error).split())
    return "".join(character if character.isprintable() else "?" for character in text)[:_MAX_REASON]


_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
