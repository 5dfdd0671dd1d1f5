"""Start the ranks of a job, supervise them, and terminate all of them when one fails.

A rank that dies or is stopped, or a job that takes longer than its time-out, ends the run with the rank's
name and the end of its log; among hanging ranks, one is named that is not merely waiting for another. A rank
counts as stopped if its heartbeat has been silent for some seconds and the system lists its process as
stopped. Ranks run in their own process group (`tessel.engine.ranks.forkserver`), which is always terminated
with the run. Here everything is on this machine: gloo and NCCL are bound to the loopback interface; ranks on
several machines are started one by one (`tessel.engine.nodes.team`). Checked in
tests/tessel/engine/ranks/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tessel.engine.errors import EngineError
from tessel.engine.job import FOLDER_PREFIX, Failure, JobSpec, RankResult
from tessel.engine.ranks.progress import is_stopped, read_standing

_LOG_LINES = 12
_GRACE_S = 2.0
"""How long ranks have to end when asked, before they are killed."""

SILENCE_S = 5.0
"""How long a rank whose process is stopped may stay so: time enough for `kill -CONT`."""

_LOOK_PERIOD_S = 0.5
"""How often ranks are looked at."""


LOOPBACK = "lo"
"""The interface of ranks that are all on this machine."""


def launch(
    job: JobSpec,
    *,
    timeout_s: float,
    read: Callable[[Path], None] = lambda folder: None,
    silence_s: float = SILENCE_S,
) -> tuple[RankResult, ...]:
    """Run a job and return what every rank reports, in order of ranks.

    Args:
        timeout_s: longest the whole job may take.
        read: called with the job's folder before it is removed, to read gradients from.
        silence_s: how long a rank may be stopped.

    Raises:
        EngineError: a rank failed or was stopped, or the time-out passed; names the rank and shows the end of
            its log.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name:
        folder = Path(name)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        with start_ranks(job, folder) as ranks:
            status = _watch(job, folder, ranks, timeout_s=timeout_s, silence_s=silence_s)
        if status:
            raise EngineError(_what_failed(folder, status))
        results = read_results(folder, job.num_ranks)
        read(folder)
    return results


@contextmanager
def start_ranks(
    job: JobSpec, folder: Path, *, interface: str = LOOPBACK
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the ranks of a job that run here, and end them with the body.

    Args:
        folder: of this run; holds the job as `job.json`.
        interface: the network interface that ranks talk over.
    """
    threads = str(job.num_threads)
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TVM_NUM_THREADS": threads,
    }
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tessel.engine.ranks.forkserver", str(folder / "job.json")],
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


def _watch(
    job: JobSpec, folder: Path, ranks: subprocess.Popen[bytes], *, timeout_s: float, silence_s: float
) -> int:
    """Wait until the ranks have ended; return the status of the process that started them.

    Raises:
        EngineError: one of them is stopped, or they take longer than their time-out.
    """
    begin_s = running_s = time.monotonic()
    while True:
        left_s = begin_s + timeout_s - time.monotonic()
        try:
            return ranks.wait(max(0.0, min(left_s, _LOOK_PERIOD_S)))
        except subprocess.TimeoutExpired:
            now_s = time.monotonic()
            running_s = running_s if is_stopped(ranks.pid) else now_s
            if now_s - running_s >= silence_s:
                raise EngineError(
                    f"the process {ranks.pid} that started the ranks has been stopped for "
                    f"{now_s - running_s:.0f} s, and they were ended; let it run, and start again"
                ) from None
            for rank in range(job.num_ranks):
                _require_running(folder, rank, silence_s)
            if now_s >= begin_s + timeout_s:
                raise EngineError(_what_hangs(job, folder, timeout_s)) from None


def _require_running(folder: Path, rank: int, silence_s: float) -> None:
    """Raise an error that names the rank if it is stopped and its heartbeat has been silent for so long."""
    standing = read_standing(folder, rank)
    if standing.silent_s >= silence_s and standing.is_stopped:
        raise EngineError(
            f"rank {rank} has not answered for {standing.silent_s:.0f} s because its process was stopped "
            f"while {standing.what}, and all ranks were ended; let it run, and start again. The end of its "
            f"log: {log_end(folder / f'rank-{rank}.log')}"
        )


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


def read_results(folder: Path, num_ranks: int) -> tuple[RankResult, ...]:
    """Return what every rank reported."""
    return tuple(
        msgspec.msgpack.decode((folder / f"result-{rank}.msgpack").read_bytes(), type=RankResult)
        for rank in range(num_ranks)
    )


def read_failure(folder: Path) -> Failure | None:
    """Return which rank failed first and how; None where the ranks could not start."""
    path = folder / "failure.json"
    return msgspec.json.decode(path.read_bytes(), type=Failure) if path.exists() else None


def _what_failed(folder: Path, status: int) -> str:
    failure = read_failure(folder)
    if failure is None:
        return f"the ranks could not start (status {status}): {log_end(folder / 'start.log')}"
    reason = (
        f"was ended by signal {-failure.status}"
        if failure.status < 0
        else f"ended with status {failure.status}"
    )
    return (
        f"rank {failure.rank} {reason}, and the others were ended too; the end of its log: "
        f"{log_end(folder / f'rank-{failure.rank}.log')}"
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
        f"{log_end(folder / f'rank-{late}.log')}"
    )


def log_end(path: Path) -> str:
    """Return the last lines of a log as one."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    # Of a traceback, lines that only underline are left out.
    shown = [line.strip() for line in lines if line.strip(" ^~")][-_LOG_LINES:]
    return " | ".join(shown) or "(empty)"
