"""Train a cost model with one thread, with several, and with those that are idle, beside other work.

    python -m benchmarks.training_threads --busy 2 --records sqlite:///out/records.db

Each way of training runs in a process of its own, since OpenMP decides once how its threads wait; they run in
turn, several times. `spinning` is how OpenMP waits by default.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cost_model.dataset import load_dataset
from cost_model.kernel_training import train_kernel_model
from records import open_store
from records.cores import num_usable_cores

WAYS = {
    "one thread": ("1", {}),
    "all cores, spinning": ("all", {"OMP_WAIT_POLICY": "active"}),
    "all cores, sleeping": ("all", {}),
    "idle cores, sleeping": ("idle", {}),
}
"""Of each way, how many threads, and what is set for OpenMP."""


def main() -> None:
    """Print the seconds of each way, median and extremes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", default="sqlite:///out/records.db", help="records to train on")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0, help="longest training, in seconds")
    parser.add_argument("--train", choices=("1", "all", "idle"), help="train once, print seconds, and end")
    arguments = parser.parse_args()
    if arguments.train:
        print(_train(arguments.records, arguments.train))
        return
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with _other_work(arguments.busy):
        for _ in range(arguments.repeats):
            for name, (threads, variables) in WAYS.items():
                seconds[name].append(_measure(arguments.records, threads, variables, arguments.limit))
    for name, found in seconds.items():
        print(f"{name:22} {statistics.median(found):8.1f} s  ({min(found):.1f} to {max(found):.1f})")


def _measure(records: str, threads: str, variables: dict[str, str], limit_s: float) -> float:
    command = [sys.executable, "-m", "benchmarks.training_threads", "--records", records, "--train", threads]
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return float("inf")
    return float(done.stdout)


def _train(url: str, threads: str) -> float:
    with open_store(url) as store:
        dataset = load_dataset(store.iterate())
    start = time.perf_counter()
    numbers = {"1": 1, "all": num_usable_cores(), "idle": None}
    train_kernel_model(dataset, num_threads=numbers[threads])
    return time.perf_counter() - start


@contextmanager
def _other_work(num_processes: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(num_processes)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        sum(range(100_000))


if __name__ == "__main__":
    main()
