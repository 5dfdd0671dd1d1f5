"""Ranks of a job of another framework, each a process of its own, and how far they end from one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

JOBS = Path(__file__).parent / "jobs"
TIMEOUT_S = 240
STEPS = 3


class Trained(NamedTuple):
    """What a job ended with.

    Attributes:
        difference: furthest that a loss or a weight of any rank is from those of one process; None if it
            failed.
        moved: furthest that training moved a weight, which says that the difference means something.
        error: last line of a rank that failed; empty if none did.
    """

    difference: float | None
    moved: float = 0.0
    error: str = ""


def train(job: str, file: Path, ranks: int, *, python: str = sys.executable, path: str = "") -> Trained:
    """Return how an exported file trained for three steps.

    Args:
        job: module of `benchmarks.frameworks.jobs`.
        file: what was exported.
        ranks: processes.
        python: interpreter that has the framework.
        path: folders of a release that is in none of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": path,
        }
        command = [python, str(JOBS / f"{job}.py"), str(file), f"{folder}/store", str(STEPS)]
        processes = [
            subprocess.Popen(
                command,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            return Trained(None, error=f"no end within {TIMEOUT_S} s")
        finally:
            for process in processes:
                process.kill()
                process.wait()
    found = []
    for output in outputs:
        results = [line for line in output.splitlines() if line.startswith("RESULT ")]
        if not results:
            return Trained(None, error=_error(output))
        found.append(json.loads(results[-1].removeprefix("RESULT ")))
    return Trained(max(each["difference"] for each in found), max(each["moved"] for each in found))


def _error(output: str) -> str:
    """Return the last line that names an exception."""
    lines = [line for line in output.splitlines() if "Error: " in line] or output.splitlines() or ["nothing"]
    return lines[-1].split("]: ")[-1][:200]
