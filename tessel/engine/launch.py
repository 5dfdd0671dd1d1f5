"""Start the ranks of a job, watch over them, and end all of them when one fails.

A rank that dies, or a job that takes longer than its time-out, ends the run with the rank's name and the end
of its log. Ranks run in sessions of their own; none is left behind, however the run ends. Everything is on
this machine: gloo is bound to the loopback interface. Checked in tests/tessel/engine/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tessel.engine.errors import EngineError
from tessel.engine.rank import JobSpec, RankResult

_LOG_LINES = 8
_POLL_S = 0.05
_GRACE_S = 2.0
"""After one rank has failed, others often fail of it: the first to have failed is the one to name."""


def launch(
    job: JobSpec,
    *,
    timeout_s: float,
    read: Callable[[Path], None] = lambda folder: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[RankResult, ...]:
    """Run a job and return what every rank reports, in order of ranks.

    Args:
        job: what to run.
        timeout_s: longest the whole job may take.
        read: called with the job's folder before it is removed, to read gradients from.
        clock: seconds, monotonic.

    Raises:
        EngineError: a rank failed, or the time-out passed; names the rank and shows the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="tessel-run-") as name:
        folder = Path(name)
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        with _ranks(job, folder) as processes:
            _wait(processes, folder, deadline=clock() + timeout_s, timeout_s=timeout_s, clock=clock)
        results = tuple(
            msgspec.json.decode((folder / f"result-{rank}.json").read_bytes(), type=RankResult)
            for rank in range(job.num_ranks)
        )
        read(folder)
    return results


@contextmanager
def _ranks(job: JobSpec, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    threads = str(job.num_threads)
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TVM_NUM_THREADS": threads,
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(job.num_ranks):
            with (folder / f"rank-{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tessel.engine.rank", str(folder / "job.json"), str(rank)],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            _end(process)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    folder: Path,
    *,
    deadline: float,
    timeout_s: float,
    clock: Callable[[], float],
) -> None:
    while True:
        statuses = [process.poll() for process in processes]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed:
            status = statuses[failed[0]]
            reason = (
                f"was ended by signal {-status}" if status and status < 0 else f"ended with status {status}"
            )
            raise EngineError(
                f"rank {failed[0]} {reason}, and the others were ended too; the end of its log: "
                f"{_log_end(folder, failed[0])}"
            )
        if all(status == 0 for status in statuses):
            return
        if clock() > deadline:
            late = next(rank for rank, status in enumerate(statuses) if status is None)
            raise EngineError(
                f"the run took longer than its time-out of {timeout_s:.0f} s, rank {late} was still running, "
                f"and all ranks were ended; give more time with --timeout. The end of its log: "
                f"{_log_end(folder, late)}"
            )
        time.sleep(_POLL_S)


def _log_end(folder: Path, rank: int) -> str:
    lines = (folder / f"rank-{rank}.log").read_text(errors="replace").splitlines()
    shown = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
    return " | ".join(shown) or "(empty)"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
