"""A fleet's throughput, and what it loses when its workers are killed.

    python -m benchmarks.fleet                       everything: about twenty minutes
    python -m benchmarks.fleet --only throughput

*Throughput*: candidates that sleep, on 1 to 8 workers of this machine. One that sleeps takes no processor,
so that workers of one machine are like as many machines, and what is missing is what the fleet costs.
*Kills*: real candidates, built and timed, while a worker is killed every second or so, and the scheduler and
the database are started anew now and then; each must end in exactly one record. *Partition*: a model is
partitioned through the fleet under the same kills; the decision must be the one that a tuner without a fleet
makes from those records, without measuring anything. *Tuners*: two tuners that
need the same candidates, in opposite orders, through one database.

The seconds between kills are those in which the fleet had a processor: on a machine that does other work too,
a worker would otherwise be killed before it had done anything, as no machine of a fleet is.

Records are kept in a PostgreSQL server of its own where one is installed, and in a SQLite file elsewhere.
Ended by SIGTERM, as a time limit does, it takes the server and the fleet with it. Checked in
tests/benchmarks/test_fleet.py.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tvm import relax

from records import open_store
from tests.harness.fleet_tasks import nap
from tests.harness.local_fleet import LocalFleet, wait_until
from tests.records.postgres_server import PostgresServer, find_binaries
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.registry import backends_for
from tuner.fleet.fleet_pool import FleetPool, find_machines
from tuner.fleet.task_queue import Sent, TaskQueue
from tuner.lowering.workload_of import workload_of
from tuner.measuring.measurer import Measurer
from tuner.measuring.messages import Timing
from tuner.measuring.request import Limits, MeasureRequest

LIMITS = Limits(timing=Timing(budget_s=0.005, max_samples=5))
BACKENDS = ("tvm",)
KERNELS_EVERY_S, PARTITION_EVERY_S = 1.0, 4.0
"""Seconds between kills. Each of three workers is killed every third time, and a partition's longest tasks
build and time whole models: with 1.5 s two of them took 19 minutes, at a tenth of a core for each process."""

_LOOK_S = 0.2
NAP_S = 0.5
"""What a candidate takes that sleeps: about as long as one that is built and timed."""


def throughputs(most: int, *, rounds: int) -> Iterator[tuple[int, list[float]]]:
    """Yield, by number of workers, how many candidates were run at a time, round by round."""
    for num_workers in (1, 2, 4, 8):
        if num_workers > most:
            return
        with LocalFleet() as fleet:
            for _ in range(num_workers):
                fleet.start_plain_worker()
            tasks = TaskQueue(fleet.address)
            await_workers(tasks, num_workers)
            shares = []
            for number in range(rounds + 1):
                with tempfile.TemporaryDirectory() as folder:
                    count = 20 * num_workers
                    arguments = folder.encode(), str(NAP_S).encode()
                    sent = [
                        Sent(each, f"{number}-{each}", (str(each).encode(), *arguments))
                        for each in range(count)
                    ]
                    started = time.monotonic()
                    found = list(
                        tasks.results(
                            nap, sent, resources=("device",), in_flight=partial(int, 2 * num_workers)
                        )
                    )
                    elapsed_s = time.monotonic() - started
                    assert len(found) == len(list(Path(folder).iterdir())) == count
                shares.append(count * NAP_S / elapsed_s)
            tasks.close()
            yield num_workers, shares[1:]  # the first round connects


def await_workers(tasks: TaskQueue, num_workers: int) -> None:
    """Return when so many workers are there."""
    wait_until(lambda: len(tasks.workers()) == num_workers)


def request(width: int) -> MeasureRequest:
    """Return a small program of its own width."""
    module = partition_module(
        "tvm", [(4, width), (width,)], lambda x, y: relax.op.nn.relu(relax.op.add(x, y))
    )
    return MeasureRequest(workload=workload_of(part_of(module)), module=module, backend="tvm")


def measure(fleet: LocalFleet, records: str, requests: Sequence[MeasureRequest]) -> int:
    """Measure programs through the fleet, and return how many this tuner measured itself."""
    tasks = TaskQueue(fleet.address)
    machines = find_machines(tasks, "cpu", num_threads=None, backends=BACKENDS)
    backends = backends_for(BACKENDS, machines.target)
    pool = FleetPool(tasks, machines, backends, limits=LIMITS, seed=0)
    with (
        open_store(records) as store,
        Measurer(store, machines.target, backends, limits=LIMITS, pool=pool) as measurer,
    ):
        found = measurer.measure_many(requests)
        assert [record.measurement.status.value for record in found] == ["ok"] * len(requests)
        return measurer.new_measurements


def check_records(records: str, expected: int) -> None:
    """Fail unless every candidate has exactly one record."""
    with open_store(records) as store:
        counts = Counter(record.workload.fingerprint for record in store.iterate())
    assert len(counts) == expected, f"{len(counts)} of {expected} candidates have a record"
    assert set(counts.values()) == {1}, f"{sum(each > 1 for each in counts.values())} have several"


class Database:
    """Where the records of one run are kept: a PostgreSQL server of its own, or a file."""

    def __init__(self, folder: str) -> None:
        binaries = find_binaries()
        self.server = None if binaries is None else PostgresServer(binaries)
        self.url = str(Path(folder) / "records.db") if self.server is None else self.server.url()
        self.name = "a SQLite file" if self.server is None else "PostgreSQL"

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        if self.server is not None:
            self.server.remove()

    def restart(self) -> bool:
        """Start the server anew, in the middle of whatever it does; say whether there is one."""
        if self.server is None:
            return False
        self.server.stop("immediate")
        self.server.start()
        return True


@contextmanager
def with_workers(num_workers: int, backends: Sequence[str] = BACKENDS) -> Iterator[LocalFleet]:
    """Have a fleet of workers that measure on this machine."""
    with LocalFleet() as fleet:
        for _ in range(num_workers):
            fleet.start_device_worker("--threads", "1", "--backends", ",".join(backends))
        tasks = TaskQueue(fleet.address)
        await_workers(tasks, num_workers)
        tasks.close()
        yield fleet


class Destroyer:
    """Kills a worker every so many seconds, and starts scheduler and database anew, until it is stopped.

    Seconds are those of the clock, or those that the fleet had a processor for, whichever are fewer.
    """

    def __init__(self, fleet: LocalFleet, database: Database, every_s: float) -> None:
        self._fleet, self._database, self._every_s = fleet, database, every_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._destroy)
        self.kills = self.schedulers = self.databases = 0

    def __enter__(self) -> Destroyer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _destroy(self) -> None:
        while not self._is_done_after(self._every_s):
            processes = self._fleet.worker_processes()
            if not processes:
                continue
            processes[self.kills % len(processes)].kill()
            self.kills += 1
            if self.kills % 50 == 25:
                self._fleet.kill_scheduler()
                self._fleet.start_scheduler()
                self.schedulers += 1
            if self.kills % 50 == 0:
                self.databases += self._database.restart()

    def _is_done_after(self, seconds: float) -> bool:
        """Wait for so long, and as long as the fleet takes for so much work; say whether all is done."""
        target_s = self._fleet.processor_s() + seconds
        if self._done.wait(seconds):
            return True
        while self._fleet.processor_s() < target_s:
            if self._done.wait(_LOOK_S):
                return True
        return False


def survive_kills(candidates: int, kills: int, every_s: float) -> str:
    """Measure candidates while workers are killed, until enough were, and describe it in a line."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database(folder) as database,
        with_workers(3) as fleet,
        Destroyer(fleet, database, every_s) as destroyed,
    ):
        started = time.monotonic()
        measured = 0
        while measured < candidates or destroyed.kills < kills:
            measure(fleet, database.url, [request(8 + measured + number) for number in range(100)])
            measured += 100
            print(f"{measured} candidates, {destroyed.kills} kills", file=sys.stderr, flush=True)
        elapsed_s = time.monotonic() - started
        check_records(database.url, measured)
    return (
        f"{measured} candidates in {database.name}, {destroyed.kills} workers killed, scheduler started anew "
        f"{destroyed.schedulers} times and the database {destroyed.databases} times, {elapsed_s:.0f} s: each "
        "candidate has exactly one record"
    )


def partition_under_kills(model: str, every_s: float) -> str:
    """Partition a model through a fleet while workers are killed, then without one, and compare.

    Raises:
        AssertionError: the two decisions differ, the second measured, or no worker was killed.
    """
    backends = ("tvm", "blas")
    with tempfile.TemporaryDirectory() as folder, Database(folder) as database:
        arguments = ["partition", model, "--infer", "--threads", "1", "--backends", ",".join(backends)]
        arguments += ["--records", database.url, "--json"]
        with with_workers(3, backends) as fleet, Destroyer(fleet, database, every_s) as destroyed:
            started = time.monotonic()
            there = tessel_document(*arguments, "--fleet", fleet.address)
            elapsed_s = time.monotonic() - started
        here = tessel_document(*arguments)
    measured = there["new_measurements"]
    assert destroyed.kills, "no worker was killed; kill sooner"
    assert measured > 0 == here["new_measurements"], f"{here['new_measurements']} measured again"
    for document in (there, here):
        del document["new_measurements"], document["reused_measurements"]
    assert there == here, "the fleet's decision is another"
    return (
        f"{model}: {measured} measurements in {database.name}, {destroyed.kills} workers killed, scheduler "
        f"started anew {destroyed.schedulers} times and the database {destroyed.databases} times, "
        f"{elapsed_s:.0f} s: the partition is the local one"
    )


def tessel_document(*arguments: str) -> dict[str, Any]:
    """Return the document that a command of this project prints.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    command = [sys.executable, "-m", "scripts", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`tessel {arguments[0]}` failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def share_work(candidates: int) -> str:
    """Have two tuners measure the same candidates in opposite orders, and describe it in a line."""
    requests = [
        request(8 + number) for number in range(candidates)
    ]  # by one thread: TVM's builder has but one
    with (
        tempfile.TemporaryDirectory() as folder,
        Database(folder) as database,
        with_workers(2) as fleet,
    ):
        with ThreadPoolExecutor(2) as tuners:
            new = list(tuners.map(partial(measure, fleet, database.url), (requests, requests[::-1])))
        check_records(database.url, candidates)
    shares = " + ".join(map(str, sorted(new)))
    return f"{candidates} candidates in {database.name}, measured by the two tuners {shares}, one record each"


def end_on_sigterm(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that servers and workers are taken down on the way; do so once.

    The server is no child of this process: nothing else would end it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, end_on_sigterm)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("throughput", "kills", "partition", "tuners"), help="one of them")
    parser.add_argument("--workers", type=int, default=8, help="most workers of the throughput")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each throughput")
    parser.add_argument("--candidates", type=int, default=1000, help="candidates of the kills, at least")
    parser.add_argument("--kills", type=int, default=200, help="workers killed, at least")
    parser.add_argument("--every", type=float, help="seconds of processor between two kills")
    parser.add_argument("--model", default="gpt2:tiny", help="model of the partition")
    arguments = parser.parse_args()
    if arguments.only in (None, "throughput"):
        print("| workers | candidates at a time, median | quartiles | share |\n|---|---|---|---|")
        for num_workers, shares in throughputs(arguments.workers, rounds=arguments.rounds):
            median = statistics.median(shares)
            low, _, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else (median,) * 3
            print(
                f"| {num_workers} | {median:.2f} | {low:.2f} to {high:.2f} | {median / num_workers:.2f} |",
                flush=True,
            )
    if arguments.only in (None, "tuners"):
        print(share_work(100), flush=True)
    if arguments.only in (None, "partition"):
        print(partition_under_kills(arguments.model, arguments.every or PARTITION_EVERY_S), flush=True)
    if arguments.only in (None, "kills"):
        print(
            survive_kills(arguments.candidates, arguments.kills, arguments.every or KERNELS_EVERY_S),
            flush=True,
        )


if __name__ == "__main__":
    main()
