"""A fleet on this machine: a scheduler and workers in processes of their own, which tests may kill."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).parents[2]

_SCHEDULER = "from distributed.cli import dask_scheduler; dask_scheduler.main()"

_FORKS = "multiprocessing.forkserver"

_PLAIN = """import sys
from tuner.fleet.device_worker import serve_tasks
if __name__ == "__main__":
    serve_tasks(sys.argv[1], {"host": "127.0.0.1", "resources": {"device": 1}}, tell=lambda text: None)
"""


class LocalFleet:
    """A scheduler at a port of its own, and what was started beside it."""

    def __init__(self) -> None:
        self.address = f"tcp://127.0.0.1:{_free_port()}"
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._processor_s: dict[tuple[int, float], float] = {}
        try:
            self.start_scheduler()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in (*self._workers, self._scheduler):
            if process is not None:
                _kill_all(process)

    def start_scheduler(self) -> None:
        """Start the scheduler, again where it was killed, and wait until it listens."""
        port = self.address.rpartition(":")[2]
        options = ["--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-show"]
        self._scheduler = _start([sys.executable, "-c", _SCHEDULER, *options])
        wait_until(lambda: _listens(int(port)))

    def kill_scheduler(self) -> None:
        """Kill the scheduler, as a machine that fails would."""
        assert self._scheduler is not None
        _kill_all(self._scheduler)

    def start_plain_worker(self) -> None:
        """Start a worker that runs any task, one at a time, and measures for no target."""
        self._workers.append(_start([sys.executable, "-c", _PLAIN, self.address]))

    def start_device_worker(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start `tessel fleet worker`, with environment variables of its own."""
        command = [sys.executable, "-m", "scripts", "--quiet", "fleet", "worker", self.address, *arguments]
        self._workers.append(_start(command, **variables))
        return self._workers[-1]

    def end_with_it(self, worker: subprocess.Popen[bytes]) -> None:
        """End a worker that was started otherwise with the fleet."""
        self._workers.append(worker)

    def processor_s(self) -> float:
        """Return the seconds that workers, and what they started, had a processor for, as far as was seen.

        What a process did between the last call and its end is left out.
        """
        for nanny in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(nanny.pid)
                for process in (parent, *parent.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        self._processor_s[process.pid, process.create_time()] = times.user + times.system
        return sum(self._processor_s.values())

    def worker_processes(self) -> list[psutil.Process]:
        """Return the processes in which tasks run, which their nannies start again."""
        found = []
        for nanny in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [
                    child
                    for child in psutil.Process(nanny.pid).children(recursive=True)
                    if _is_dask_worker(child)
                ]
        return found


def _is_dask_worker(process: psutil.Process) -> bool:
    """Say whether a process was forked from a nanny's fork server, whose command line it has."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        parent = process.parent()
        return parent is not None and all(_FORKS in " ".join(each.cmdline()) for each in (process, parent))
    return False


def _start(command: list[str], **variables: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",  # which would sample a hundred times a second
        **variables,
        "PYTHONPATH": os.pathsep.join([variables.get("PYTHONPATH", str(ROOT)), str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, so that none starts another again."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
    process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], object], *, timeout_s: float = 400.0) -> None:
    """Return when a condition holds; fail where it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)
