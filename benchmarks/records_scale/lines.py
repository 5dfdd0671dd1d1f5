"""Lines of the report, and how they name times and the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import sqlalchemy

from records.database.connection import parse_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    subject: str
    figure: str
    wanted: str = ""


def report(tables: dict[str, list[Line]], num_records: int) -> str:
    """Return the report as Markdown."""
    parts = [
        f"# Records at scale, {date.today():%Y-%m}",
        "",
        f"Command: `python -m benchmarks.records_scale --records {num_records}`, commit `{_commit()}`, "
        f"{date.today().isoformat()}.  ",
        f"Machine: {_processor()}, {platform.system()} {platform.release()}; Python "
        f"{platform.python_version()}, SQLAlchemy {sqlalchemy.__version__}, SQLite {sqlite3.sqlite_version}.",
        "",
        f"Other work kept {os.getloadavg()[2]:.1f} processes busy meanwhile (load average of 15 minutes).",
        "",
        "Times are medians, with the 99th percentile (the slowest where there are under 100 repeats) in "
        "brackets. Synthetic records: random shapes, five backends, two environments, five repeats of a key, "
        "eight samples each. Every commit is flushed to the disk (`synchronous=FULL`, write-ahead log).",
    ]
    for url, lines in tables.items():
        name = parse_url(url).get_backend_name()
        parts += ["", f"## {name}", "", "| | measured | wanted |", "|---|---|---|"]
        parts += [f"| {line.subject} | {line.figure} | {line.wanted} |" for line in lines]
    return "\n".join(parts) + "\n"


def shown(lines: Iterable[Line]) -> list[Line]:
    """Return the lines, each printed on stderr as soon as it is known."""
    known = []
    for line in lines:
        print(f"{line.subject}: {line.figure}", file=sys.stderr, flush=True)
        known.append(line)
    return known


def times(work: Callable[[], object], repeats: int) -> list[float]:
    work_s = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        work_s.append(time.perf_counter() - started)
    return work_s


def spread(work_s: Sequence[float]) -> str:
    median, high = float(np.median(work_s)), float(np.percentile(work_s, 99 if len(work_s) >= 100 else 100))
    return duration(median) if len(work_s) == 1 else f"{duration(median)} ({duration(high)})"


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads" if names else platform.machine()


def report_path() -> Path:
    hardware = "-".join(_processor().split(",")[0].replace("(", " ").replace(")", " ").split()).lower()
    return Path(__file__).parents[1] / "reports" / f"records_scale_{hardware}_{date.today():%Y-%m}.md"
