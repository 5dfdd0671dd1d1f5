"""Try a model file in a child process with limits, before this process opens it.

A file that is read without running code can still be made to exhaust the memory or the time, or to crash a
library written in C++. So the whole way from its bytes to a `Model` is gone once in a process that may take
only so much memory and processor time and may write no file. Only what passes there is loaded here, from the
same bytes, by the same functions, so it takes what it took there. What fails there fails here with the same
message; a child that was ended by a limit or a signal is a file that is refused.

```
this process ── the file's bytes ──► server (imports torch and TVM once) ── fork ──► child with limits
             ◄── "loaded", or an error and its message ──────────────────────────────┘
```

Forking here would be unsafe, since this process has threads. Starting the server takes some five seconds; it
is then kept. Nothing is pickled on the way. Checked in tests/tuner/frontend/test_sandbox.py.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tuner import errors
from tuner.errors import ModelFileError, TunerError

MEMORY_ROOM_BYTES = 384 * 2**20
"""Memory that loading even a small file may take beside what the libraries hold."""

MEMORY_RATIO = 8
"""Memory that loading may take for each byte of the file: the bytes, tensors made of them, TVM's copies."""

TIME_ROOM_S = 4
"""Processor time that loading even a small file may take."""

TIME_S_PER_MIB = 10
"""Processor time for each MiB: a program of as much text, without weights, takes 4 s."""

LONGEST_S = 1800

_START_TIMEOUT_S = 120.0
_WAIT_RATIO = 20
"""Seconds waited for a second of processor time: the machine may be busy with other work."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the server is asked; the bytes of the file follow.

    Attributes:
        importer: module and function that make a model of bytes, such as
            `tuner.frontend.torch.program:import_exported`.
        name: the file's, for messages.
        folder: where the file lies; files that it names are read from there.
        shapes: static shapes by name of input.
        values: of inputs that become constants, by name; only importers of ONNX take any.
        memory_bytes: memory that it may take beside what the server has.
        time_s: processor time that it may take.
    """

    importer: str
    name: str
    folder: str
    shapes: dict[str, tuple[int, ...]]
    values: dict[str, bool | int | float]
    memory_bytes: int
    time_s: int


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the server answers: nothing where the file was loaded.

    Attributes:
        error: name of the error's type.
        signal: the signal that ended the child.
    """

    error: str | None = None
    message: str = ""
    signal: int = 0


def try_import(
    importer: str,
    content: bytes,
    path: Path,
    *,
    shapes: dict[str, tuple[int, ...]],
    values: dict[str, bool | int | float] | None = None,
    more_bytes: int = 0,
) -> None:
    """Return if the importer makes a model of the bytes within the limits.

    Args:
        importer: see `Trial`.
        content: the file's bytes.
        path: where they were read from.
        shapes: static shapes by name of input.
        values: see `Trial`.
        more_bytes: size of further files that it names.

    Raises:
        TunerError: of the kind and with the message that the importer raised, or because it broke a limit.
        ValueError: likewise.
    """
    num_bytes = len(content) + more_bytes
    trial = Trial(
        importer=importer,
        name=path.name,
        folder=str(path.resolve().parent),
        shapes=shapes,
        values=values or {},
        memory_bytes=MEMORY_ROOM_BYTES + MEMORY_RATIO * num_bytes,
        time_s=min(LONGEST_S, TIME_ROOM_S + math.ceil(TIME_S_PER_MIB * num_bytes / 2**20)),
    )
    outcome = _SERVER.ask(trial, content)
    if outcome.signal:
        raise ModelFileError(f"{path} cannot be loaded: {_cause(outcome.signal, trial)}; check the file")
    if outcome.error == "MemoryError":
        raise ModelFileError(f"{path} cannot be loaded: {_short_of_memory(trial)}; check the file")
    if outcome.error is not None:
        known = _ERRORS.get(outcome.error)
        if known is None:  # a fault of a library, or of ours, that a strange file brought out
            raise ModelFileError(
                f"{path} cannot be loaded ({outcome.error}: {outcome.message}); export it again"
            )
        raise known(outcome.message)


_ERRORS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, TunerError)
} | {"ValueError": ValueError}


def _cause(number: int, trial: Trial) -> str:
    if number == signal.SIGXCPU:
        return f"it took more than {trial.time_s} s of processor time"
    if number == signal.SIGKILL:
        return _short_of_memory(trial)
    return f"a library crashed with {signal.Signals(number).name} while it was read"


def _short_of_memory(trial: Trial) -> str:
    return f"it took more than {trial.memory_bytes // 2**20} MiB of memory"


class _Server:
    """The server of this process; started when it is first asked, and again when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, trial: Trial, content: bytes) -> Outcome:
        """Return what became of the trial.

        Raises:
            TunerError: if the server ended while it tried.
        """
        with self._lock:
            connection = self._started()
            try:
                connection.send_bytes(msgspec.json.encode(trial))
                connection.send_bytes(content)
                wait_s = _START_TIMEOUT_S + _WAIT_RATIO * trial.time_s
                if not connection.poll(wait_s):
                    self._stop()
                    return Outcome(signal=signal.SIGXCPU)
                return msgspec.json.decode(connection.recv_bytes(), type=Outcome)
            except (EOFError, OSError) as error:
                self._stop()
                raise TunerError(
                    f"the process that tries {trial.name} ended ({error}); free some memory and try again"
                ) from error
            except BaseException:
                self._stop()  # the answer that is still to come would be taken for the next one's
                raise

    def stop(self) -> None:
        """End the server, if this process has one."""
        with self._lock:
            self._stop()

    def _started(self) -> Connection:
        """Return a connection to a server that runs; one that ended unasked is replaced."""
        process = self._process
        if self._connection is not None and process is not None and self._owner == os.getpid():
            if process.poll() is None:
                return self._connection
            self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.frontend.sandbox_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours to handle
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"},
            )
        self._connection, self._owner = Connection(ours.detach()), os.getpid()
        return self._connection

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None and self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._connection = self._process = None


_SERVER = _Server()
atexit.register(_SERVER.stop)
