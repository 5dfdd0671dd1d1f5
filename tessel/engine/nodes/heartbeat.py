"""Heartbeat: what every rank's supervisor says of its rank twice a second, and hears of the others.

Each supervisor writes one small record to the store in which ranks meet, and reads those of all others. It is
a process of its own, so a computation that holds Python's interpreter, or a rank that is stopped, does not
silence it: a supervisor that is silent has been killed, or its node or network is gone. How long each one has
been silent is counted on this machine's own clock from when something new was last read; clocks of different
machines are never compared. Checked in tests/tessel/engine/nodes/test_heartbeat.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from tessel.engine.nodes.identity import Identity

PERIOD_S = 0.5
"""How often a supervisor writes and reads."""

FailureKind = Literal["killed", "stopped", "raised", "timed out", "ended", "lost a peer"]


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank's part ended before its end.

    Attributes:
        kind: what became of it; `lost a peer` where another rank's end was the cause, and `ended` where the
            supervisor was told to end.
        what: the same in words, after the rank's name.
        log_end: the last lines that the rank wrote; empty where it was not started.
        order: which failure of the run it is, in the order in which the store heard of them.
    """

    kind: FailureKind
    what: str
    log_end: str = ""
    order: int = 0


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor writes.

    Attributes:
        number: counts them, so that a new one can be told from an old; 0 where none was written yet.
        identity: whose it is; None where none was written yet.
        what: what the rank was last seen doing.
        is_waiting: whether that is to wait for others.
        failure: why it ended before its end.
        has_run: whether its rank has run all that it was told to.
        is_right: what rank 0 found when it checked the results; None before, and of other ranks.
        has_left: whether nothing more will be heard of it.
    """

    number: int = 0
    identity: Identity | None = None
    what: str = "starting"
    is_waiting: bool = False
    failure: RankFailure | None = None
    has_run: bool = False
    is_right: bool | None = None
    has_left: bool = False


class PeerState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all ranks at one moment.

    Attributes:
        beats: the last of each rank.
        silent_s: seconds since that was new; 0 where nothing was heard yet.
        store_silent_s: seconds since the store last answered.
        store_error: what it last answered instead; empty text where it answered.
    """

    beats: tuple[Beat, ...]
    silent_s: tuple[float, ...]
    store_silent_s: float
    store_error: str = ""


class Store(Protocol):
    """What is asked of the store in which ranks meet; torch's has it."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values, all of which are there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all of these are there."""
        ...

    def add(self, key: str, value: int) -> int:
        """Add to a number, and return it."""
        ...


class Heartbeat:
    """Writes this rank's beats and reads the others', in a thread.

    Args:
        store: where; used by this object's thread alone once it has begun.
        clock: seconds.
    """

    def __init__(
        self, store: Store, identity: Identity, num_ranks: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._rank = identity.rank
        self._keys = [f"beat/{rank}" for rank in range(num_ranks)]
        self._are_there = [False] * num_ranks
        self._clock = clock
        self._own = Beat(identity=identity)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._beats = [Beat()] * num_ranks
        self._heard_at = [clock()] * num_ranks
        self._answered_at = clock()
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to write and read, until `leave`."""
        self._thread.start()

    def tell(self, what: str, *, is_waiting: bool) -> None:
        """Say what the rank is doing."""
        with self._lock:
            self._own = msgspec.structs.replace(self._own, what=what, is_waiting=is_waiting)

    def introduce(self, identity: Identity) -> None:
        """Say what this rank was told to run."""
        with self._lock:
            self._own = msgspec.structs.replace(self._own, identity=identity)
        self._wake.set()

    def fail(self, failure: RankFailure) -> None:
        """Say that the rank's part has failed; the first failure counts."""
        with self._lock:
            if self._own.failure is None:
                self._own = msgspec.structs.replace(self._own, failure=failure)
        self._wake.set()

    def finish(self, *, is_right: bool | None = None) -> None:
        """Say that the rank has run, and what was found if it is the one that checks."""
        with self._lock:
            self._own = msgspec.structs.replace(self._own, has_run=True, is_right=is_right)
        self._wake.set()

    def leave(self, patience_s: float) -> None:
        """Say farewell, and stop; waits for the thread no longer than this."""
        with self._lock:
            self._own = msgspec.structs.replace(self._own, has_left=True)
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def see(self) -> PeerState:
        """Return what is known now."""
        with self._lock:
            now = self._clock()
            return PeerState(
                beats=tuple(self._beats),
                silent_s=tuple(
                    now - heard if beat.number else 0.0
                    for beat, heard in zip(self._beats, self._heard_at, strict=True)
                ),
                store_silent_s=now - self._answered_at,
                store_error=self._error,
            )

    def _run(self) -> None:
        while True:
            self._wake.clear()
            own = self._next()
            try:
                beats = self._exchange(own)
            except Exception as error:  # whatever torch's store raises: it is gone, or does not answer
                with self._lock:
                    self._error = str(error).strip().partition("\n")[0] or type(error).__name__
            else:
                self._note(beats)
            if own.has_left:
                return
            self._wake.wait(PERIOD_S)

    def _next(self) -> Beat:
        with self._lock:
            self._own = msgspec.structs.replace(self._own, number=self._own.number + 1)
            return self._own

    def _exchange(self, own: Beat) -> dict[int, Beat]:
        if own.failure is not None and not own.failure.order:
            order = self._store.add("failures", 1)
            own = msgspec.structs.replace(own, failure=msgspec.structs.replace(own.failure, order=order))
            with self._lock:
                self._own = msgspec.structs.replace(self._own, failure=own.failure)
        self._store.set(self._keys[self._rank], msgspec.json.encode(own).decode())
        for rank, key in enumerate(self._keys):
            # What is not there would be waited for.
            self._are_there[rank] = self._are_there[rank] or self._store.check([key])
        there = [rank for rank, is_there in enumerate(self._are_there) if is_there]
        contents = self._store.multi_get([self._keys[rank] for rank in there])
        return {
            rank: msgspec.json.decode(content, type=Beat)
            for rank, content in zip(there, contents, strict=True)
        }

    def _note(self, beats: dict[int, Beat]) -> None:
        with self._lock:
            now = self._clock()
            self._answered_at, self._error = now, ""
            for rank, beat in beats.items():
                if beat.number != self._beats[rank].number:
                    self._heard_at[rank] = now
                self._beats[rank] = beat
