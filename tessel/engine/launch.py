"""Start the ranks of a job, watch over them, and end all of them when one fails.

A rank that dies, or a job that takes longer than its time-out, ends the run with the rank's name and the end
of its log; of ranks that hang, one that is stopped is named, else one that does not merely wait for another.
Ranks run in a process group of their own (`tessel.engine.ranks`); none is left behind, however the run ends.
Everything is on this machine: gloo and NCCL are bound to the loopback interface. Checked in
tests/tessel/engine/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tessel.engine.errors import EngineError
from tessel.engine.job import FOLDER_PREFIX, JobSpec, RankResult
from tessel.engine.progress import read_standing

_LOG_LINES = 12
_GRACE_S = 2.0
"""How long ranks have to end when asked, before they are killed."""


class _Failure(msgspec.Struct, frozen=True):
    """What `tessel.engine.ranks` writes, which is not imported here because it imports torch."""

    rank: int
    status: int


def launch(
    job: JobSpec, *, timeout_s: float, read: Callable[[Path], None] = lambda folder: None
) -> tuple[RankResult, ...]:
    """Run a job and return what every rank reports, in order of ranks.

    Args:
        job: what to run.
        timeout_s: longest the whole job may take.
        read: called with the job's folder before it is removed, to read gradients from.

    Raises:
        EngineError: a rank failed, or the time-out passed; names the rank and shows the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name:
        folder = Path(name)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        with _ranks(job, folder) as ranks:
            try:
                status = ranks.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                raise EngineError(_what_hangs(job, folder, timeout_s)) from error
        if status:
            raise EngineError(_what_failed(folder, status))
        results = tuple(
            msgspec.msgpack.decode((folder / f"result-{rank}.msgpack").read_bytes(), type=RankResult)
            for rank in range(job.num_ranks)
        )
        read(folder)
    return results


@contextmanager
def _ranks(job: JobSpec, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    threads = str(job.num_threads)
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TVM_NUM_THREADS": threads,
    }
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tessel.engine.ranks", str(folder / "job.json")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: its leader may have ended before its ranks."""
    with suppress(subprocess.TimeoutExpired, ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def _what_failed(folder: Path, status: int) -> str:
    path = folder / "failure.json"
    if not path.exists():
        return f"the ranks could not start (status {status}): {_log_end(folder / 'start.log')}"
    failure = msgspec.json.decode(path.read_bytes(), type=_Failure)
    reason = (
        f"was ended by signal {-failure.status}"
        if failure.status < 0
        else f"ended with status {failure.status}"
    )
    return (
        f"rank {failure.rank} {reason}, and the others were ended too; the end of its log: "
        f"{_log_end(folder / f'rank-{failure.rank}.log')}"
    )


def _what_hangs(job: JobSpec, folder: Path, timeout_s: float) -> str:
    standings = [read_standing(folder, rank) for rank in range(job.num_ranks)]
    # One that is stopped is at fault, whatever it did; else one that does not merely wait for another.
    late = min(
        range(job.num_ranks), key=lambda rank: (not standings[rank].is_stopped, standings[rank].is_waiting)
    )
    what = f"stopped while {standings[late].what}" if standings[late].is_stopped else standings[late].what
    return (
        f"the run took longer than its time-out of {timeout_s:.0f} s when rank {late} was {what}, and all "
        "ranks were ended; give more time with --timeout. The end of its log: "
        f"{_log_end(folder / f'rank-{late}.log')}"
    )


def _log_end(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    # Of a traceback, lines that only underline are left out.
    shown = [line.strip() for line in lines if line.strip(" ^~")][-_LOG_LINES:]
    return " | ".join(shown) or "(empty)"
