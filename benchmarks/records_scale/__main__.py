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
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.records_scale.items import (
    BACKENDS,
    REPEATS_A_KEY,
    TARGET,
    make_environment,
    make_items,
    make_workloads,
)
from benchmarks.records_scale.lines import Line, report, report_path, shown, spread, times
from records import (
    Match,
    Measurement,
    Record,
    RecordStore,
    Workload,
    open_store,
)
from records.database.connection import parse_url
from records.files.exchange import export_records

BATCH = 1000


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
            url: shown(measure_store(url, arguments.records, fill_only=arguments.fill_only)) for url in urls
        }
    if arguments.fill_only:
        return
    text = report(tables, arguments.records)
    print(text)
    path = arguments.report or report_path()
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
        yield Line(subject="open", figure=spread(times(lambda: open_store(url).close(), 30)), wanted="50 ms")
        yield from measure_look_ups(store, known, rng)
        yield from measure_appends(store, rng)
        yield Line(subject="stats", figure=spread(times(store.stats, 5)), wanted="2 s")
        yield Line(subject="best of every workload", figure=spread(times(store.best, 1)))
        yield Line(subject="export of everything", figure=spread(times(lambda: _export(store), 1)))
        yield Line(subject="verify", figure=spread(times(lambda: _verify(store), 1)))
    if (path := sqlite_path(url)) is not None:
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
            known[int(rng.integers(len(known)))].fingerprint,
            backend=BACKENDS[int(rng.integers(len(BACKENDS)))],
            target=TARGET,
            environment=environment,
            match=match,
        )

    def look_up_many() -> dict[str, list[Record]]:
        drawn = rng.integers(len(known), size=100)
        wanted = [known[index].fingerprint for index in drawn]
        return store.find_many(wanted, target=TARGET, environment=environment)

    exact_s = times(lambda: look_up(Match.EXACT), 2000)
    yield Line(subject="look-up, exact", figure=spread(exact_s), wanted="2 ms")
    yield Line(subject="look-up, compatible", figure=spread(times(lambda: look_up(Match.COMPATIBLE), 2000)))
    yield Line(subject="look-up of 100 workloads on all backends", figure=spread(times(look_up_many, 20)))


def measure_appends(store: RecordStore, rng: np.random.Generator) -> Iterator[Line]:
    """Measure appends of workloads that the store does not know."""
    fresh = make_items(rng, make_workloads(rng, 1000), first_time=2e9)
    batches = [list(islice(fresh, BATCH)) for _ in range(10)]
    singles = list(islice(fresh, 200))
    batch_s = times(lambda: store.append_many(batches.pop()), 10)
    yield Line(
        subject=f"append, a batch of {BATCH}",
        figure=f"{BATCH / float(np.median(batch_s)):,.0f} a second (slowest {BATCH / max(batch_s):,.0f})",
        wanted="2,000 a second",
    )
    single_s = times(lambda: store.append(*singles.pop()), 200)
    yield Line(subject="append, one at a time", figure=spread(single_s))


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


def sqlite_path(url: str) -> Path | None:
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


if __name__ == "__main__":
    main()
