"""The files that keep runs: the trials of one kernel by one proposer with one seed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tuner.language.evaluation import Run


def path_of(folder: Path, kernel: str, proposer: str, seed: int) -> Path:
    """Return the file of a run."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in kernel)
    return folder / f"{plain}-{proposer}-{seed}.json"


def save_run(path: Path, run: Run) -> None:
    """Write a run; the file appears whole."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(asdict(run)))
    whole.rename(path)


def load_runs(folder: Path) -> list[Run]:
    """Read every run of a folder."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))]
    return [Run(**{**each, "latencies_us": tuple(each["latencies_us"])}) for each in found]
