"""The ranks of a job that run here, in one process group: import once, fork, watch which rank ends first.

Started by `tessel.engine.ranks.launch` with the job's file. Importing torch and TVM takes seconds of a core,
so it is done once and every rank is forked from there: eight ranks start as fast as one. Nothing may start
threads or touch a device before the fork; the imports do not. The first rank to fail is recorded, since its
failure often causes others: one that was killed, or else the first to raise.

Ranks end with their launcher: standard input is a pipe without data, which is closed when the launcher ends.
Checked in tests/tessel/engine/ranks/test_launch.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import msgspec

from tessel.engine.import_function import find_function
from tessel.engine.job import FOLDER_PREFIX, Failure, JobSpec
from tessel.engine.ranks.worker import Provider, run_rank

_SETTLE_S = 0.2
"""How long the ranks that fail of another's failure are waited for, to choose the first."""


def _main(job_path: Path) -> int:
    folder = job_path.parent
    job = msgspec.json.decode(job_path.read_bytes(), type=JobSpec)
    provider: Provider = find_function(job.provider)
    rank_by_pid: dict[int, int] = {}
    for rank in job.own_ranks:
        pid = os.fork()
        if pid == 0:
            _become_rank(job, rank, provider, folder)
        rank_by_pid[pid] = rank
    statuses = _wait(rank_by_pid)
    failed = {rank: status for rank, status in statuses.items() if status}
    if not failed:
        return 0
    first = min(failed, key=lambda rank: _raised_at(folder, rank))
    (folder / "failure.json").write_bytes(msgspec.json.encode(Failure(first, failed[first])))
    return 1


def _wait(rank_by_pid: dict[int, int]) -> dict[int, int]:
    """Return the exit status of each rank that has ended, when all have or one has failed."""
    statuses: dict[int, int] = {}
    settle_until = float("inf")
    while len(statuses) < len(rank_by_pid) and time.monotonic() < settle_until:
        has_failed = any(statuses.values())
        pid, status = os.waitpid(-1, os.WNOHANG if has_failed else 0)
        if pid == 0:
            time.sleep(_SETTLE_S / 10)
            continue
        statuses[rank_by_pid[pid]] = os.waitstatus_to_exitcode(status)
        if statuses[rank_by_pid[pid]] and not has_failed:
            settle_until = time.monotonic() + _SETTLE_S
    return statuses


def _become_rank(job: JobSpec, rank: int, provider: Provider, folder: Path) -> None:
    """Run the rank in this process, which ends here."""
    status = 1
    try:
        with (folder / f"rank-{rank}.log").open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        _end_with_launcher(folder)
        run_rank(job, rank, provider, folder)
        status = 0
    except BaseException:  # foreign code: the stages. Whatever it raised, the log says it.
        _raised_path(folder, rank).write_text(str(time.monotonic()))
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with_launcher(folder: Path) -> None:
    """End this process and all of its group when the launcher's end of the pipe on standard input closes.

    A launcher that was killed has not removed the job's folder either.
    """

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        if folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _raised_at(folder: Path, rank: int) -> float:
    """Return when a rank raised; one that was killed did not, and comes first."""
    path = _raised_path(folder, rank)
    return float(path.read_text()) if path.exists() else 0.0


def _raised_path(folder: Path, rank: int) -> Path:
    return folder / f"raised-{rank}"


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
