"""The process that tries model files, each in a child with limits; see `sandbox`.

It reads from one connection until that is closed, and never opens a file itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import signal
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from tuner.errors import TunerError
from tuner.frontend.sandbox import Outcome, Trial


def main() -> None:
    """Answer every trial that comes by the connection whose descriptor is the argument."""
    connection = Connection(int(sys.argv[1]))
    tempfile.gettempdir()  # is looked for by writing, which children may not
    while True:
        try:
            trial = msgspec.json.decode(connection.recv_bytes(), type=Trial)
            content = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(msgspec.json.encode(_answer(trial, content)))


def _answer(trial: Trial, content: bytes) -> Outcome:
    """Return what became of a child that loads the bytes."""
    module, _, function = trial.importer.partition(":")
    importer = _importer(module, function)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run(importer, trial, content, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        reply = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Outcome(signal=os.WTERMSIG(status))
    if not reply:
        return Outcome(error="MemoryError", message="the child ended without an answer")
    return msgspec.json.decode(reply, type=Outcome)


@functools.cache
def _importer(module: str, function: str) -> Any:
    """Return a function, with all that it needs imported, so that children need not."""
    imported = importlib.import_module(module)
    getattr(imported, "warm_up", lambda: None)()
    return getattr(imported, function)


def _run(importer: Any, trial: Trial, content: bytes, writing: int) -> None:
    """Load within the limits, write the outcome, and end the process."""
    try:
        limit(memory_bytes=trial.memory_bytes, time_s=trial.time_s)
        try:
            given = {"values": trial.values} if trial.values else {}
            importer(content, Path(trial.folder) / trial.name, shapes=trial.shapes, **given)
            outcome = Outcome()
        except (TunerError, ValueError) as error:
            kind = type(error).__name__ if isinstance(error, TunerError) else "ValueError"
            outcome = Outcome(error=kind, message=str(error))
        except BaseException as error:  # a fault of foreign code, which the parent names
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            outcome = Outcome(error=type(error).__name__, message=lines[0][:200] if lines else "")
        os.write(writing, msgspec.json.encode(outcome))
    finally:
        os._exit(0)


def limit(*, memory_bytes: int, time_s: int) -> None:
    """Let this process take so much more memory, so much processor time, and write no file.

    Args:
        memory_bytes: memory beside what it has already.
        time_s: of the processor, from its start.
    """
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sizes = _sizes()
    for kind, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        if name in sizes:
            most = sizes[name] + memory_bytes
            resource.setrlimit(kind, (most, most))


def _sizes() -> dict[str, int]:
    """Return this process's kinds of memory in bytes; empty where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith("Vm"))
    return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, *_ in fields}


if __name__ == "__main__":
    main()
