"""Supervisors hear of each other through a store, and notice who is silent and that the store is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tessel.engine.nodes.heartbeat import Heartbeat, RankFailure
from tessel.engine.nodes.identity import Identity


class MemoryStore:
    """A store among threads; it answers nothing while it is `gone`."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.count = 0
        self.gone = False
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        if self.gone:
            raise RuntimeError("Connection reset by peer\nframe #0")
        self.known[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.known[key].encode() for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.known for key in keys)

    def add(self, key: str, value: int) -> int:
        with self.lock:
            self.count += value
            return self.count


def start(store: MemoryStore, rank: int) -> Heartbeat:
    identity = Identity(rank=rank, node=rank, address="192.0.2.1", local_rank=0, versions={})
    heartbeat = Heartbeat(store, identity, 2)
    heartbeat.start()
    return heartbeat


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ranks_hear_of_each_other_of_failures_in_order_and_of_farewells() -> None:
    store = MemoryStore()
    first = start(store, 0)
    time.sleep(0.1)
    assert first.see().beats[1].number == 0
    assert first.see().silent_s[1] == 0
    second = start(store, 1)
    second.tell("running 1F0", is_waiting=False)
    wait_until(lambda: first.see().beats[1].what == "running 1F0")
    second.fail(RankFailure(kind="killed", what="was killed", log_end="words"))
    second.fail(RankFailure(kind="raised", what="is too late", log_end=""))
    first.fail(RankFailure(kind="lost a peer", what="lost it", log_end=""))
    wait_until(lambda: all(beat.failure is not None for beat in first.see().beats))
    assert [beat.failure.what for beat in first.see().beats if beat.failure] == ["lost it", "was killed"]
    assert {beat.failure.order for beat in first.see().beats if beat.failure} == {1, 2}
    second.leave(5)
    wait_until(lambda: first.see().beats[1].has_left)
    wait_until(lambda: first.see().silent_s[1] > 0.6)  # more than a beat
    wait_until(lambda: (seen := first.see()).silent_s[0] < seen.silent_s[1])
    store.gone = True
    wait_until(lambda: first.see().store_error == "Connection reset by peer")
    wait_until(lambda: first.see().store_silent_s > 0.6)
    first.leave(5)
