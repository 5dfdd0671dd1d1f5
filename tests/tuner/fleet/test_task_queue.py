"""Every task ends with its result, whatever is killed; equal tasks run once, whoever asks for them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import KilledWorker

from tests.harness.fleet_tasks import fail, nap, stall
from tests.harness.local_fleet import LocalFleet, wait_until
from tuner.errors import TunerError
from tuner.fleet.task_queue import MAX_DEATHS, Sent, TaskQueue, _again

NUM_WORKERS, NUM_KILLS = 2, 1


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with LocalFleet() as started:
        for _ in range(NUM_WORKERS):
            started.start_plain_worker()
        tasks = TaskQueue(started.address)
        wait_until(lambda: len(tasks.workers()) == NUM_WORKERS)
        tasks.close()
        yield started


def naps(names: range, folder: Path, seconds: float) -> list[Sent[int]]:
    arguments = str(folder).encode(), str(seconds).encode()
    return [Sent(number, f"{folder.name}-{number}", (str(number).encode(), *arguments)) for number in names]


def results(tasks: TaskQueue, sent: list[Sent[int]]) -> dict[int, bytes]:
    found = tasks.results(nap, sent, resources=("device",), in_flight=lambda: 2 * NUM_WORKERS)
    answers = Counter[int]()
    by_number = {}
    for number, (name,) in found:
        answers[number] += 1
        by_number[number] = name
    assert set(answers.values()) == {1}
    return by_number


def test_each_result_comes_once(fleet: LocalFleet, tmp_path: Path) -> None:
    tasks = TaskQueue(fleet.address)
    assert results(tasks, naps(range(40), tmp_path, 0.0)) == {
        number: str(number).encode() for number in range(40)
    }
    assert len(list(tmp_path.iterdir())) == 40
    tasks.close()


def test_two_that_ask_for_the_same_have_it_done_once(fleet: LocalFleet, tmp_path: Path) -> None:
    sent = naps(range(6), tmp_path, 0.4)
    answers = []

    def ask() -> None:
        tasks = TaskQueue(fleet.address)
        answers.append(results(tasks, sent))
        tasks.close()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(answer) for answer in answers] == [6, 6]
    assert len(list(tmp_path.iterdir())) == 6


def test_killed_workers_and_a_killed_scheduler_lose_nothing(fleet: LocalFleet, tmp_path: Path) -> None:
    """A worker dies for every few tasks that were run, and the scheduler forgets everything once."""
    tasks = TaskQueue(fleet.address)
    ended = threading.Event()

    def destroy() -> None:
        for number in range(NUM_KILLS):
            while len(list(tmp_path.iterdir())) <= 3 * number:
                if ended.wait(0.05):
                    return
            if number == NUM_KILLS // 2:
                fleet.kill_scheduler()
                fleet.start_scheduler()
            processes = fleet.worker_processes()
            if processes:
                processes[number % len(processes)].kill()

    destroyer = threading.Thread(target=destroy)
    destroyer.start()
    try:
        found = results(tasks, naps(range(4 * NUM_KILLS), tmp_path, 0.2))
    finally:
        ended.set()
        destroyer.join()
    assert found == {number: str(number).encode() for number in range(4 * NUM_KILLS)}
    tasks.close()


def test_a_task_whose_workers_died_is_sent_again_under_a_name_of_its_own() -> None:
    worker = SimpleNamespace(address="tcp://127.0.0.1:1")
    task, death = Sent(0, "key", ()), KilledWorker("key", worker, 3)
    again = _again(task, death)
    assert (again.num_deaths, again.dask_key) == (1, "key-1")
    assert _again(task, ConnectionError()) == task
    with pytest.raises(TunerError, match="die again and again"):
        _again(dataclasses.replace(task, num_deaths=MAX_DEATHS), death)


def test_a_connection_that_dask_gives_up_has_no_workers(
    fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be given up between asking whether it is open and asking it for workers."""
    tasks = TaskQueue(fleet.address)
    given_up = tasks.client
    given_up.close()
    with monkeypatch.context() as patch:
        patch.setattr(TaskQueue, "client", given_up)
        assert tasks.workers() == {}
    tasks.close()


def test_a_task_that_fails_says_why(fleet: LocalFleet) -> None:
    tasks = TaskQueue(fleet.address)
    sent = [Sent(0, "failing", (b"this",))]
    with pytest.raises(TunerError, match="RuntimeError: this cannot be done"):
        list(tasks.results(fail, sent, resources=("device",), in_flight=lambda: 1))
    tasks.close()


class StalledQueue(TaskQueue):
    """A connection whose clock goes on while some machine has begun to stall and is not known to."""

    def __init__(self, address: str, folder: Path) -> None:
        self.ticks = itertools.count(0, 60)
        super().__init__(address, clock=lambda: self.tick(folder))

    def tick(self, folder: Path) -> float:
        if len(list(folder.glob("stalled-*"))) > len(self._late):
            self.now = float(next(self.ticks))
        return self.now

    now = 0.0


def ask_where_some_stall(
    fleet: LocalFleet, folder: Path, num_stalled: int
) -> list[tuple[int, tuple[bytes, ...]]]:
    tasks = StalledQueue(fleet.address, folder)
    arguments = str(folder).encode(), str(num_stalled).encode()
    sent = [Sent(number, f"{folder.name}-{number}", arguments, limit_s=100.0) for number in range(4)]
    try:
        return list(tasks.results(stall, sent, resources=("device",), in_flight=lambda: 4))
    finally:
        (folder / "end").touch()
        tasks.close()


def test_what_a_machine_does_not_end_goes_to_another(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.fleet.task_queue._POLL_S", 0.1)
    found = ask_where_some_stall(fleet, tmp_path, 1)
    assert sorted(found) == [(number, (b"done",)) for number in range(4)]


def test_what_no_machine_ends_is_given_up(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.fleet.task_queue._POLL_S", 0.1)
    with pytest.raises(TunerError, match="did not end what they were asked within its own limits"):
        ask_where_some_stall(fleet, tmp_path, NUM_WORKERS)


def test_a_task_without_a_worker_is_given_up(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.fleet.task_queue.NO_WORKER_S", 1.0)
    tasks = TaskQueue(fleet.address)
    with pytest.raises(TunerError, match="no worker for this target"):
        list(tasks.results(nap, naps(range(1), tmp_path, 0), resources=("quantum",), in_flight=lambda: 1))
    tasks.close()


@pytest.mark.parametrize("address", ["nonsense", "http://localhost:1", "tcp://localhost", "tcp://:8786"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="no scheduler's address"):
        TaskQueue(address)


def test_an_address_at_which_nobody_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.fleet.task_queue.CONNECT_S", 1.0)
    with pytest.raises(TunerError, match="no scheduler of a fleet answers"):
        TaskQueue("tcp://127.0.0.1:9")
