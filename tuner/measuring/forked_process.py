"""The client's side of a server that forks measuring workers: a worker starts in a tenth of a second.

Starting a worker from nothing imports TVM, and torch where a backend calls it: seconds of a core each time. A
machine of a fleet, whose workers may be killed at any time, starts `worker.fork_server` once and has each
worker forked from it. Checked in tests/tuner/measuring/test_forked_process.py.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

STATUS = struct.Struct("<i")
"""How an exit status is sent."""

_KILL = b"k"

_START_S = 120.0
"""As long as a worker may take to start: importing TVM has been seen to take 40 s on a busy machine."""


class ForkServer:
    """The process that workers are forked from; ended with this object, or with this process.

    Args:
        environment: of the workers, such as the threads that libraries read once, when they load.
        with_torch: whether torch is imported too.
    """

    def __init__(self, environment: Mapping[str, str], *, with_torch: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tessel-fork-")
        self.path = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen()
            number = listener.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tuner.measuring.worker.fork_server",
                    str(number),
                    str(int(with_torch)),
                ],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=dict(environment),
            )

    def close(self) -> None:
        """End the server and its workers."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class ForkedProcess:
    """A worker that a server has forked, to be killed and waited for as a `subprocess.Popen` is.

    Args:
        path: of the server's socket.

    Raises:
        OSError: no server answers there.
    """

    def __init__(self, path: str) -> None:
        self._control = socket.socket(socket.AF_UNIX)
        self._status: int | None = None
        try:
            self._control.settimeout(_START_S)
            self._control.connect(path)
            _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except BaseException:
            self._control.close()
            raise
        if not descriptors:
            self._control.close()
            raise ConnectionError("the fork server has ended")
        self.connection = Connection(descriptors[0])

    def kill(self) -> None:
        """Kill the worker, if it has not ended yet."""
        with contextlib.suppress(OSError):
            self._control.send(_KILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal, when the worker has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if self._status is None:
            self._control.settimeout(timeout)
            try:
                answer = self._control.recv(STATUS.size)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0) from error
            except OSError:
                answer = b""
            # A server that was killed takes its workers with it.
            self._status = STATUS.unpack(answer)[0] if len(answer) == STATUS.size else -signal.SIGKILL
            self._control.close()
        return self._status
