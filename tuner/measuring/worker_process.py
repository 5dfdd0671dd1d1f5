"""The parent's side of the measuring worker: requests, time-outs, and restarts after crashes.

Starting a worker takes some three seconds, so the first request starts it and later ones reuse it. Whatever
ends it (a crash, a hang, the kernel short of memory) becomes a failed reply that says so, and the next
request starts a fresh one. It may take the machine's memory, or less where a container or batch job is
limited. Checked in tests/tuner/measuring/test_worker_process.py and test_memory_limit.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path, PurePosixPath

import numpy as np
import psutil

from records import Status
from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.measuring.forked_process import ForkedProcess
from tuner.measuring.messages import (
    Done,
    Failed,
    Ran,
    Reply,
    Request,
    Run,
    Start,
    not_by_program,
    receive_arrays,
    receive_reply,
    send,
    send_arrays,
    widen,
)
from tuner.targets.remote import RemoteDevice
from tuner.targets.target import Target

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Importing TVM takes 3 s on an idle machine, and has been seen to take 40 s on a busy one."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TVM_NUM_THREADS",
)
"""What the libraries that a program may call read their number of threads from, once, when they load."""


_SENT_BY_OTHERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU})
"""Signals that end a process, beside the one that kills it, and that tell nothing of what it ran."""


_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of OpenMP sleep while they wait. By default they spin, which keeps the processor from another
library's threads: beside other work, a layer norm of torch took 24 ms instead of 40 us."""


_MEMORY_SHARE = 0.9
"""Share of the memory that there is that a program may take. Not of what is free at the moment: a record that
says there was too little memory ought to be true tomorrow."""


class WorkerProcess:
    """One worker process for one target.

    Args:
        target: what it builds for and measures on.
        backends: who lowers partitions.
        forked_from: path of the socket of a server that forks workers with this target's threads
            (`tuner.measuring.forked_process`); a worker is started from nothing where there is none.
        remote: the device behind a tracker that programs run on; this machine's if None.
    """

    def __init__(
        self,
        target: Target,
        backends: Sequence[Backend],
        *,
        forked_from: str | None = None,
        remote: RemoteDevice | None = None,
    ) -> None:
        self._target = target
        self._backends = tuple(backend.reference for backend in backends)
        self._forked_from = forked_from
        self._remote = remote
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._connection: Connection | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.num_starts = 0

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether a worker is there, with what it holds."""
        return self._connection is not None

    def ask(self, request: Request, timeout_s: float) -> Reply:
        """Return the worker's reply, or how it failed to give one; a failed worker is gone afterwards.

        Raises:
            TunerError: a worker cannot be started at all.
        """
        return self._guarded(request, timeout_s, ())[0]

    def run(
        self, request: Run, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> tuple[np.ndarray, ...] | Failed:
        """Return the results of running a module on the arrays, or how that failed."""
        reply, results = self._guarded(request, timeout_s, arrays)
        return reply if isinstance(reply, Failed) else results

    def interrupt(self) -> None:
        """Kill the worker from another thread: the thread that waits for its reply gets a failure."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._connection = self._process = self._folder = None

    def _guarded(
        self, request: Request, timeout_s: float, arrays: Sequence[np.ndarray]
    ) -> tuple[Reply, tuple[np.ndarray, ...]]:
        connection = self._started()
        what = type(request).__name__.lower()
        deadline = _Deadline(timeout_s, self.interrupt)
        try:
            with deadline:
                send(connection, request)
                send_arrays(connection, arrays)
                reply = receive_reply(connection)
                results = receive_arrays(connection, reply.arrays if isinstance(reply, Ran) else ())
        except (EOFError, OSError):
            if not deadline.is_over:
                return self._reap(what), ()
        except BaseException:
            # Interrupted between question and answer: the next answer would be taken for this one's.
            self.close()
            raise
        if not deadline.is_over:
            if isinstance(reply, Failed) and reply.has_lost_device:
                self.close()
            return reply, results
        self.close()
        return Failed(Status.TIMEOUT, f"{what} did not end within {timeout_s:g} s, so it was killed"), ()

    def _started(self) -> Connection:
        if self._connection is not None:
            return self._connection
        self._connection = self._forked() or self._spawned()
        self._folder = tempfile.TemporaryDirectory(prefix="tessel-worker-", ignore_cleanup_errors=True)
        self.num_starts += 1
        start = Start(
            target=self._target,
            backends=self._backends,
            memory_limit_bytes=int(_MEMORY_SHARE * memory_limit_bytes()),
            folder=self._folder.name,
            remote=self._remote,
        )
        reply, _ = self._guarded(start, START_TIMEOUT_S, ())
        if not isinstance(reply, Done):
            message = reply.message if isinstance(reply, Failed) else repr(reply)
            self.close()
            raise TunerError(f"the measuring process did not start ({message}); see `tessel doctor`")
        return self._connection

    def _forked(self) -> Connection | None:
        """Have a worker forked; None where there is no server for it, or none any more."""
        if self._forked_from is None:
            return None
        try:
            self._process = forked = ForkedProcess(self._forked_from)
        except OSError as error:
            logger.info("no worker was forked: %r", error)
            return None
        return forked.connection

    def _spawned(self) -> Connection:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            widen(end)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.measuring.worker.server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None
                if logger.isEnabledFor(logging.DEBUG)
                else subprocess.DEVNULL,  # compilers' chatter
                start_new_session=True,  # Ctrl-C is ours to handle
                env=worker_environment(self._target.num_threads),
            )
        return Connection(ours.detach())

    def _reap(self, what: str) -> Failed:
        """Reap the worker and say how it exited; no program ends it by a signal that others send."""
        assert self._process is not None, "only a started worker dies"
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        self.close()
        if status == -signal.SIGKILL:
            return not_by_program(
                f"the process was killed during {what}, most likely because the machine was short of memory"
            )
        if -status in _SENT_BY_OTHERS:
            return not_by_program(
                f"somebody ended the process by {signal.Signals(-status).name} during {what}"
            )
        if status < 0:
            reason = f"the process crashed with {signal.Signals(-status).name} during {what}"
        else:
            reason = f"the process ended with status {status} during {what}"
        return Failed(Status.ERROR, reason)


def worker_environment(num_threads: int) -> dict[str, str]:
    """Return the environment of a process in which programs run with so many threads."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(num_threads))
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, **threads, **_WAITING, "PYTHONPATH": path}


_SLICE_S = 0.5
"""What a stop of any length counts as, at most."""


class _Deadline:
    """Calls a function, from a thread of its own, unless the block that it guards ends in time.

    It covers all of an exchange: sending, waiting and receiving, whatever the other side does or leaves. Time
    in which this process is stopped (Ctrl-Z, a frozen container) does not count: the clock goes on then, but
    nobody could have taken the reply.
    """

    def __init__(self, timeout_s: float, on_expiry: Callable[[], None]) -> None:
        self.is_over = False
        self._on_expiry = on_expiry
        self._timeout_s = timeout_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        left_s = self._timeout_s
        while left_s > 0:
            slice_s = min(left_s, _SLICE_S)
            if self._ended.wait(slice_s):
                return
            left_s -= slice_s  # however long it took
        self.is_over = True
        self._on_expiry()


_MOUNT_AND_FILE = {
    "": ("", "memory.max"),
    "memory": ("memory", "memory.limit_in_bytes"),
}
"""By what a line of `/proc/self/cgroup` names between its colons: of control groups version 2, and 1."""


def memory_limit_bytes(
    *, own_groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes of the machine, or of the smallest control group that this process is in.

    Args:
        own_groups: where the system says which groups these are.
        mounted: where they are.
    """
    limits = [psutil.virtual_memory().total]
    for path in _limit_files(own_groups, mounted):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says `max`
            limits.append(int(path.read_text()))
    return min(limits)


def _limit_files(own_groups: Path, mounted: Path) -> Iterator[Path]:
    """Yield the files of the groups of this process and of those around them; some may not exist."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controller, group = line.split(":", 2)
        if controller in _MOUNT_AND_FILE:
            mount, name = _MOUNT_AND_FILE[controller]
            path = PurePosixPath(group)
            for each in (path, *path.parents):
                yield mounted / mount / str(each).lstrip("/") / name
