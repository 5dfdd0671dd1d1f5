"""The parent's side of the measuring worker: requests, time-outs, and restarts after crashes.

A worker costs some three seconds to start, so it starts with the first question and then stays. Whatever
ends it (a crash, a hang, the kernel short of memory) becomes a failed reply that says so, and the next
question starts a fresh one. Checked in tests/tuner/measuring/test_worker_process.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import psutil

from records import Status
from tuner.backends.protocol import Backend
from tuner.errors import TunerError
from tuner.measuring.messages import (
    ArrayInfo,
    Done,
    Failed,
    Ran,
    Reply,
    Request,
    Run,
    Start,
    receive_bytes,
    receive_reply,
    send,
    send_bytes,
)
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


_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of OpenMP sleep while they wait. By default they spin, which keeps the processor from another
library's threads: beside other work, a layer norm of torch took 24 ms instead of 40 us."""


_MEMORY_SHARE = 0.9
"""Share of the machine's memory that a program may take. Not of what is free at the moment: a record that
says there was too little memory ought to be true tomorrow."""


class WorkerProcess:
    """One worker process for one target."""

    def __init__(self, target: Target, backends: Sequence[Backend]) -> None:
        self._target = target
        self._backends = tuple(backend.reference for backend in backends)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self.num_starts = 0

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Kill the worker from another thread: whoever waits for its answer is told that it died."""
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
        self._connection = self._process = None

    def _guarded(
        self, request: Request, timeout_s: float, arrays: Sequence[np.ndarray]
    ) -> tuple[Reply, tuple[np.ndarray, ...]]:
        connection = self._started()
        try:
            connection.settimeout(timeout_s)
            send(connection, request)
            for array in arrays:
                send_bytes(connection, np.ascontiguousarray(array).tobytes())
            reply = receive_reply(connection)
            infos = reply.arrays if isinstance(reply, Ran) else ()
            return reply, tuple(_receive_array(connection, info) for info in infos)
        except TimeoutError:
            self.close()
            what = type(request).__name__.lower()
            return Failed(Status.TIMEOUT, f"{what} did not end within {timeout_s:g} s, so it was killed"), ()
        except (EOFError, OSError):
            return Failed(Status.ERROR, self._epitaph(type(request).__name__.lower())), ()
        except BaseException:
            # Interrupted between question and answer: the next answer would be taken for this one's.
            self.close()
            raise

    def _started(self) -> socket.socket:
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.measuring.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None
                if logger.isEnabledFor(logging.DEBUG)
                else subprocess.DEVNULL,  # compilers' chatter
                start_new_session=True,  # Ctrl-C is ours to handle
                env=self._worker_environment(),
            )
        self._connection = ours
        self.num_starts += 1
        start = Start(
            target=self._target,
            backends=self._backends,
            memory_limit_bytes=int(_MEMORY_SHARE * psutil.virtual_memory().total),
        )
        reply, _ = self._guarded(start, START_TIMEOUT_S, ())
        if not isinstance(reply, Done):
            message = reply.message if isinstance(reply, Failed) else repr(reply)
            self.close()
            raise TunerError(f"the measuring process did not start ({message}); see `tessel doctor`")
        return ours

    def _worker_environment(self) -> dict[str, str]:
        threads = dict.fromkeys(THREAD_VARIABLES, str(self._target.num_threads))
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return {**os.environ, **threads, **_WAITING, "PYTHONPATH": path}

    def _epitaph(self, what: str) -> str:
        """Bury the worker and say what it died of."""
        assert self._process is not None, "only a started worker dies"
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        self.close()
        if status == -signal.SIGKILL:
            return (
                f"the process was killed during {what}, most likely because the machine was short of memory"
            )
        if status < 0:
            return f"the process crashed with {signal.Signals(-status).name} during {what}"
        return f"the process ended with status {status} during {what}"


def _receive_array(connection: socket.socket, info: ArrayInfo) -> np.ndarray:
    return np.frombuffer(receive_bytes(connection), dtype=info.dtype).reshape(info.shape)
