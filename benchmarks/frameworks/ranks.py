"""Ranks of a job of another framework, each a process of its own, and how far they end from one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parents[2]
"""Where jobs find each other."""

TIMEOUT_S = 1200
STEPS = 3


class Trained(NamedTuple):
    """What a job ended with.

    Attributes:
        difference: furthest that a loss or a weight of any rank is from those of one process; None if it
            failed.
        moved: furthest that training moved a weight, which says that the difference means something.
        error: last line of a rank that failed; empty if none did.
        orders: what each rank ran in a step, where the job says it.
        names: of the framework's options and its model's modules, where the job says them.
    """

    difference: float | None
    moved: float = 0.0
    error: str = ""
    orders: tuple[tuple[str, ...], ...] = ()
    names: Mapping[str, Sequence[str]] = MappingProxyType({})


def train(
    job: str, files: Sequence[Path], ranks: int, *, python: str = sys.executable, path: str = ""
) -> list[Trained]:
    """Return how each exported file trained for three steps, all in one start, and one more after a failure.

    Args:
        job: module of `benchmarks.frameworks.jobs`.
        files: what was exported, each for so many ranks.
        ranks: processes.
        python: interpreter that has the framework.
        path: folders of a release that is in none of its own.
    """
    found: list[Trained] = []
    while len(found) < len(files):
        outputs = outputs_of(job, files[len(found) :], ranks, python=python, path=path)
        results = [
            [json.loads(line[7:]) for line in output.splitlines() if line.startswith("RESULT ")]
            for output in outputs
        ]
        found += [
            Trained(
                max(each["difference"] for each in same),
                max(each["moved"] for each in same),
                orders=tuple(tuple(each.get("order", ())) for each in same),
                names=same[0].get("names", {}),
            )
            for same in zip(*results, strict=False)
        ]
        if len(found) < len(files):
            last = min(range(ranks), key=lambda rank: len(results[rank]))
            found.append(Trained(None, error=_error(outputs[last])))
    return found


def outputs_of(
    job: str,
    files: Sequence[Path],
    ranks: int,
    *,
    python: str,
    path: str,
    sizes: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return what each rank of one start printed.

    Args:
        job: see `train`.
        files: see `train`.
        ranks: see `train`.
        python: see `train`.
        path: see `train`.
        sizes: of the model and its batch, where they are not those of the job.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": os.pathsep.join((str(ROOT), path)),
            **sizes,
        }
        command = [python, str(JOBS / f"{job}.py"), f"{folder}/store", str(STEPS), *map(str, files)]
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
            return [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        except subprocess.TimeoutExpired:
            return [f"RuntimeError: no end within {TIMEOUT_S} s"] * ranks
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _error(output: str) -> str:
    """Return the last line that names an exception."""
    lines = [line for line in output.splitlines() if "Error: " in line] or output.splitlines() or ["nothing"]
    return lines[-1].split("]: ")[-1][:200]
