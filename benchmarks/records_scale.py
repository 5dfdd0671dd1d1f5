"""How records behave at a million: opening, looking up, appending, counting, exporting.

    python -m benchmarks.records_scale [--records 1000000] [--url URL]… [--fill-only] [--report FILE]

Without `--url`, an SQLite file in a temporary folder is filled. A URL names an empty database, or one that
`--fill-only` filled before: filling and measuring each take minutes.
Records are synthetic and seeded: workloads of one to three operators of random shapes, five backends, two
environments, five repeats of a key, eight samples each. Look-ups go to keys drawn at random. Figures are
printed as they become known, then all of them as a table, which is also written to a dated report with
command, versions and machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path

import numpy as np
import sqlalchemy

from records import (
    Environment,
    Match,
    Measurement,
    Operator,
    Record,
    RecordStore,
    Status,
    Tensor,
    Workload,
    open_store,
)
from records.database.connection import parse_url
from records.files.exchange import export_records
from records.workload import describe

BATCH = 1000
REPEATS_A_KEY = 5
BACKENDS = ("tvm", "metaschedule", "blas", "torch", "example")
OPERATORS = ("matmul", "nn.softmax", "nn.conv2d", "add", "nn.layer_norm", "nn.gelu", "transpose", "sum")
TARGET = '{"keys":["cpu"],"kind":"llvm","mcpu":"example","num-cores":8,"tag":""}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    subject: str
    figure: str
    wanted: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many to fill a store with")
    parser.add_argument("--url", action="append", help="a store to fill; may be repeated")
    parser.add_argument("--fill-only", action="store_true", help="fill; measure by a second run")
    parser.add_argument("--report", type=Path, help="the report's file; left out: benchmarks/reports/…")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = arguments.url or [f"sqlite:///{folder}/records.db"]
        tables = {
            url: _shown(measure_store(url, arguments.records, fill_only=arguments.fill_only)) for url in urls
        }
    if arguments.fill_only:
        return
    text = report(tables, arguments.records)
    print(text)
    path = arguments.report or _report_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def measure_store(url: str, num_records: int, *, fill_only: bool = False) -> Iterator[Line]:
    """Fill a store, unless it has been filled, and yield what is measured."""
    rng = np.random.default_rng(0)
    known = make_workloads(rng, max(1, num_records // (len(BACKENDS) * 2 * REPEATS_A_KEY)))
    with open_store(url) as store:
        yield from fill(store, islice(make_items(rng, known), num_records))
        yield Line(subject="records", figure=f"{store.stats().measurements:,}")
        if fill_only:
            return
        yield Line(
            subject="open", figure=_spread(_times(lambda: open_store(url).close(), 30)), wanted="50 ms"
        )
        yield from measure_look_ups(store, known, rng)
        yield from measure_appends(store, rng)
        yield Line(subject="stats", figure=_spread(_times(store.stats, 5)), wanted="2 s")
        yield Line(subject="best of every workload", figure=_spread(_times(store.best, 1)))
        yield Line(subject="export of everything", figure=_spread(_times(lambda: _export(store), 1)))
        yield Line(subject="verify", figure=_spread(_times(lambda: _verify(store), 1)))
    if (path := _sqlite_path(url)) is not None:
        yield Line(subject="size of the file", figure=f"{path.stat().st_size / num_records:,.0f} B a record")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield Line(subject="peak memory of this process", figure=f"{peak_bytes / 2**20:,.0f} MiB")


def fill(store: RecordStore, items: Iterator[tuple[Workload, Measurement]]) -> Iterator[Line]:
    """Append what an empty store lacks, and yield how fast that went."""
    if store.stats().measurements:
        return
    started = time.perf_counter()
    num_records = sum(len(store.append_many(batch)) for batch in _batches(items))
    yield Line(
        subject=f"fill, batches of {BATCH}, with making the records",
        figure=f"{num_records / (time.perf_counter() - started):,.0f} a second",
    )


def measure_look_ups(
    store: RecordStore, known: Sequence[Workload], rng: np.random.Generator
) -> Iterator[Line]:
    """Measure look-ups of keys drawn at random."""
    environment = make_environment(0)

    def look_up(match: Match) -> Record | None:
        return store.find_latest(
            known[rng.integers(len(known))].fingerprint,
            backend=BACKENDS[rng.integers(len(BACKENDS))],
            target=TARGET,
            environment=environment,
            match=match,
        )

    def look_up_many() -> dict[str, list[Record]]:
        drawn = rng.integers(len(known), size=100)
        wanted = [known[index].fingerprint for index in drawn]
        return store.find_many(wanted, target=TARGET, environment=environment)

    exact_s = _times(lambda: look_up(Match.EXACT), 2000)
    yield Line(subject="look-up, exact", figure=_spread(exact_s), wanted="2 ms")
    yield Line(subject="look-up, compatible", figure=_spread(_times(lambda: look_up(Match.COMPATIBLE), 2000)))
    yield Line(subject="look-up of 100 workloads on all backends", figure=_spread(_times(look_up_many, 20)))


def measure_appends(store: RecordStore, rng: np.random.Generator) -> Iterator[Line]:
    """Measure appends of workloads that the store does not know."""
    fresh = make_items(rng, make_workloads(rng, 1000), first_time=2e9)
    batches = [list(islice(fresh, BATCH)) for _ in range(10)]
    singles = list(islice(fresh, 200))
    batch_s = _times(lambda: store.append_many(batches.pop()), 10)
    yield Line(
        subject=f"append, a batch of {BATCH}",
        figure=f"{BATCH / float(np.median(batch_s)):,.0f} a second (slowest {BATCH / max(batch_s):,.0f})",
        wanted="2,000 a second",
    )
    single_s = _times(lambda: store.append(*singles.pop()), 200)
    yield Line(subject="append, one at a time", figure=_spread(single_s))


def make_workloads(rng: np.random.Generator, amount: int) -> list[Workload]:
    """Return distinct workloads of one to three operators."""
    found: dict[str, Workload] = {}
    while len(found) < amount:
        rows, columns = (int(extent) for extent in rng.integers(1, 4096, 2))
        tensor = Tensor((rows, columns), "float32")
        operators = [
            Operator(
                name=OPERATORS[rng.integers(len(OPERATORS))],
                kind=int(rng.integers(0, 5)),
                inputs=(0, index),
                outputs=(tensor,),
                attributes=(("axis", "-1"), ("out_dtype", "float32")),
                flops=2 * rows * columns,
            )
            for index in range(int(rng.integers(1, 4)))
        ]
        workload = describe("kernel", [tensor], operators, [len(operators)])
        found[workload.fingerprint] = workload
    return list(found.values())


def make_items(
    rng: np.random.Generator, known: Sequence[Workload], *, first_time: float = 1.7e9
) -> Iterator[tuple[Workload, Measurement]]:
    """Yield measurements of every workload on every backend in two environments, over and over."""
    environments = [make_environment(0), make_environment(1)]
    measured_at = first_time
    while True:
        for workload in known:
            fingerprint = workload.fingerprint
            for backend in BACKENDS:
                for environment in environments:
                    measured_at += 1.0
                    samples = rng.lognormal(4.0, 0.05, 8)
                    yield (
                        workload,
                        Measurement(
                            workload_fingerprint=fingerprint,
                            backend=backend,
                            target=TARGET,
                            environment=environment,
                            status=Status.OK,
                            samples_us=tuple(samples.tolist()),
                            measured_at=measured_at,
                        ),
                    )


def make_environment(number: int) -> Environment:
    """Return one of the environments; they differ in the version of a library."""
    return Environment(
        device_kind="cpu",
        device_model="Example CPU",
        num_cores=8,
        num_threads=8,
        driver="6.1",
        versions=(("apache-tvm", f"0.{27 + number}"), ("numpy", "2.1")),
    )


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


def _shown(lines: Iterable[Line]) -> list[Line]:
    """Return the lines, each printed on stderr as soon as it is known."""
    known = []
    for line in lines:
        print(f"{line.subject}: {line.figure}", file=sys.stderr, flush=True)
        known.append(line)
    return known


def _times(work: Callable[[], object], repeats: int) -> list[float]:
    work_s = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        work_s.append(time.perf_counter() - started)
    return work_s


def _spread(work_s: Sequence[float]) -> str:
    median, high = float(np.median(work_s)), float(np.percentile(work_s, 99 if len(work_s) >= 100 else 100))
    return _duration(median) if len(work_s) == 1 else f"{_duration(median)} ({_duration(high)})"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _export(store: RecordStore) -> None:
    with open("/dev/null", "wb") as nowhere:
        export_records(store, nowhere)


def _verify(store: RecordStore) -> None:
    findings = store.verify()
    if findings:
        raise RuntimeError(f"the store is damaged: {findings[0]}")


def _batches(items: Iterator[tuple[Workload, Measurement]]) -> Iterator[list[tuple[Workload, Measurement]]]:
    while batch := list(islice(items, BATCH)):
        yield batch


def _sqlite_path(url: str) -> Path | None:
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


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


def _report_path() -> Path:
    hardware = "-".join(_processor().split(",")[0].replace("(", " ").replace(")", " ").split()).lower()
    return Path(__file__).parent / "reports" / f"records_scale_{hardware}_{date.today():%Y-%m}.md"


if __name__ == "__main__":
    main()
