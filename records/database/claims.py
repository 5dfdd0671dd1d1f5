"""Claims: which process is measuring what, so that several with one database share the work.

A claim is a lock that the system gives back when its holder dies: on PostgreSQL an advisory lock of a
connection, beside an SQLite file an flock on a file of its own in the folder `NAME-claims`, which is removed
when nobody holds a claim. A claim protects nothing but time: where there are no locks (a read-only folder, a
file system without them, a server that went away) every claim is granted, and whoever waits for a holder that
hangs gives up after a while and measures. Checked in tests/records/database/test_claims.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import sqlalchemy as sa

from records.environment import Environment

POLL_S = 0.05
"""Pause before a claim of somebody else's is asked for again; what is claimed takes seconds."""

PATIENCE_S = 180.0
"""Longer than what is measured in one go takes: an all-reduce of all sizes, probes, a race."""


class Claims(Protocol):
    """The claims of one store."""

    def take(self, key: str) -> bool:
        """Say whether the claim is granted: nobody holds it, this store included."""
        ...

    def give_back(self, key: str) -> None:
        """Let others have a claim that was granted."""
        ...

    def close(self) -> None:
        """Give back all."""
        ...


def claim_key(*subject: str, target: str, environment: Environment) -> str:
    """Name what is measured for a target in an environment by 32 hexadecimal digits."""
    text = msgspec.json.encode((subject, target, environment.fingerprint))
    return hashlib.blake2b(text, digest_size=16).hexdigest()


@contextlib.contextmanager
def claimed(claims: Claims, key: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold a claim for the body, having waited for whoever holds it.

    Look for the records within the body: the one who was waited for has written them.

    Args:
        key: of `claim_key`.
        patience_s: after which a holder is taken to hang, and the body runs without the claim.
    """
    give_up_at = time.monotonic() + patience_s
    while not (granted := claims.take(key)) and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
    try:
        yield
    finally:
        if granted:
            claims.give_back(key)


def claims_of(engine: sa.Engine) -> Claims:
    """Return the claims among all who have this database open."""
    if engine.dialect.name == "postgresql":
        return _ServerClaims(engine)
    return _FolderClaims(Path(f"{os.path.realpath(str(engine.url.database))}-claims"))


class _FolderClaims:
    """Claims as locked files, one a key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptors: dict[str, int | None] = {}
        self._lock = threading.Lock()

    def take(self, key: str) -> bool:
        with self._lock:
            if key in self._descriptors:
                return False
            try:
                self._descriptors[key] = self._locked(key)
            except BlockingIOError:
                return False
            except OSError:  # no locks here
                self._descriptors[key] = None
            return True

    def give_back(self, key: str) -> None:
        with self._lock:
            self._give_back(key)

    def close(self) -> None:
        with self._lock:
            for key in tuple(self._descriptors):
                self._give_back(key)

    def _give_back(self, key: str) -> None:
        descriptor = self._descriptors.pop(key)
        if descriptor is None:
            return
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()  # while it is locked: it is nobody else's yet
        os.close(descriptor)
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # of the last claim

    def _locked(self, key: str) -> int:
        """Return the descriptor of the key's locked file.

        Raises:
            BlockingIOError: somebody else holds it.
            OSError: files cannot be made or locked here.
        """
        while True:
            self._folder.mkdir(exist_ok=True)
            try:
                descriptor = os.open(self._folder / key, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # the folder was removed meanwhile
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(key, descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_there(self, key: str, descriptor: int) -> bool:
        """Say whether a file is still the one of the key, not one that its last holder has removed."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._folder / key))
        except FileNotFoundError:
            return False


class _ServerClaims:
    """Claims as advisory locks of a connection that is kept for them alone."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: sa.Connection | None = None
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def take(self, key: str) -> bool:
        with self._lock:
            if key in self._held:
                return False
            if self._ask("pg_try_advisory_lock", key) is False:
                return False
            self._held.add(key)
            return True

    def give_back(self, key: str) -> None:
        with self._lock:
            self._held.discard(key)
            self._ask("pg_advisory_unlock", key)

    def close(self) -> None:
        with self._lock:
            for key in self._held:  # the server may notice only later that a connection was closed
                self._ask("pg_advisory_unlock", key)
            self._held.clear()
            if self._connection is not None:
                self._connection.invalidate()  # given back to the pool, it would keep its locks
                self._connection.close()
                self._connection = None

    def _ask(self, function: str, key: str) -> object:
        """Return what the server says; None where it does not answer, whose locks are gone then."""
        number = int.from_bytes(bytes.fromhex(key)[:8], "big", signed=True)
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            return self._connection.scalar(sa.text(f"SELECT {function}(:number)"), {"number": number})
        except sa.exc.DBAPIError:
            if self._connection is not None:
                self._connection.invalidate()
                self._connection.close()
                self._connection = None
            return None
