"""What a page of records shows, gathered from a store in one pass.

Of each workload on each device, the fastest measurement of every way (backend, settings, environment) is
kept; who measured is a machine with its software, since records hold no names. Checked in
tests/scripts/commands/test_records.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tessel.picture.page.document import PageTable
from tessel.picture.page.records_page import (
    RecordedDay,
    RecordedEnvironment,
    RecordedPage,
    RecordedWay,
    RecordedWorkload,
)

if TYPE_CHECKING:
    from records import Environment, Record

MAX_WORKLOADS = 10_000
"""Workloads of a page, the last measured ones: some five megabytes, which a browser filters at once."""

MAX_WAYS = 12
"""Ways of a workload: schedules of a tuned kernel are thousands."""

MAX_FAILURES = 50
"""Kinds of failures that are listed, the most frequent first."""

_MAX_MESSAGE = 160


@dataclass(slots=True)
class _Known:
    """What was read of one workload on one device."""

    newest: Record
    measurements: int = 0
    failures: int = 0
    ways: dict[tuple[str, str, int], Record] = field(default_factory=dict)


def recorded_page(records: Iterable[Record], *, title: str) -> RecordedPage:
    """Return what the page shows of some records.

    Args:
        records: of one store, in any order; read once, O(workloads) of them are kept.
    """
    known: dict[tuple[str, str, str], _Known] = {}
    environments: dict[Environment, int] = {}
    measured: dict[Environment, list[float]] = {}
    days: Counter[tuple[str, str]] = Counter()
    failures: Counter[tuple[str, str, str]] = Counter()
    for record in records:
        measurement = record.measurement
        environment = measurement.environment
        number = environments.setdefault(environment, len(environments))
        measured.setdefault(environment, []).append(measurement.measured_at)
        days[day_of(measurement.measured_at), measurement.backend] += 1
        key = (measurement.workload_fingerprint, measurement.target, environment.device_model)
        found = known.setdefault(key, _Known(record))
        found.measurements += 1
        if measurement.measured_at > found.newest.measurement.measured_at:
            found.newest = record
        if not measurement.samples_us:
            found.failures += 1
            failures[measurement.backend, measurement.status, measurement.message[:_MAX_MESSAGE]] += 1
            continue
        way = (measurement.backend, measurement.settings, number)
        fastest = found.ways.get(way)
        if fastest is None or measurement.latency_us < fastest.measurement.latency_us:
            found.ways[way] = record
    newest_first = sorted(known.values(), key=lambda each: -each.newest.measurement.measured_at)
    count = sum(days.values())
    return RecordedPage(
        title=title,
        summary=f"{count} measurements of {len({key[0] for key in known})} workloads in {len(environments)} "
        f"environments; {sum(failures.values())} failed.",
        note="Latencies are medians of the samples, ± half the range between their quartiles. Records hold "
        "no names: who measured is a machine with its software. This page was written once.",
        days=tuple(
            RecordedDay(day=day, backend=backend, measurements=number)
            for (day, backend), number in sorted(days.items())
        ),
        workloads=tuple(map(_workload, newest_first[:MAX_WORKLOADS])),
        left_out=len(newest_first[MAX_WORKLOADS:]),
        environments=tuple(
            RecordedEnvironment(device=each.device_model, threads=_threads(each)) for each in environments
        ),
        tables=(_machine_table(measured), *_failure_tables(failures)),
    )


def day_of(seconds: float) -> str:
    """Return the day in UTC of a time since 1970; a record may hold any number, 0 where none was told."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}" if seconds > 0 else "not known"
    except (ValueError, OverflowError, OSError):
        return "not known"


def _workload(known: _Known) -> RecordedWorkload:
    workload = known.newest.workload
    ways = sorted(
        (
            RecordedWay(
                backend=backend,
                settings=settings,
                latency_us=record.measurement.latency_us,
                first_us=record.measurement.quartiles_us[0],
                third_us=record.measurement.quartiles_us[1],
                samples=len(record.measurement.samples_us),
                at=record.measurement.measured_at,
                environment=number,
                record=record.record_id,
            )
            for (backend, settings, number), record in known.ways.items()
        ),
        key=lambda way: (way.latency_us, way.record),
    )
    names = [operator.name for operator in workload.operators]
    inputs = [f"{each.dtype}[{','.join(map(str, each.shape))}]" for each in workload.inputs]
    return RecordedWorkload(
        fingerprint=known.newest.measurement.workload_fingerprint,
        operators=_first(names, 3) or workload.role,
        inputs=_first(inputs, 2),
        role=workload.role,
        device=known.newest.measurement.environment.device_model,
        measurements=known.measurements,
        failures=known.failures,
        last=known.newest.measurement.measured_at,
        ways=tuple(ways[:MAX_WAYS]),
        more=len(ways[MAX_WAYS:]),
    )


def _first(names: Sequence[str], limit: int) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _threads(environment: Environment) -> str:
    if environment.device_kind != "cpu":
        return "-"
    return f"{environment.num_threads} of {environment.num_cores} cores"


def _machine_table(measured: Mapping[Environment, Sequence[float]]) -> PageTable:
    """Return a row a machine; its environments differ in the versions that backends bring along."""
    machines: dict[tuple[str, str, str], tuple[list[float], set[str]]] = {}
    for environment, times in measured.items():
        key = (environment.device_model, _threads(environment), environment.driver)
        all_times, versions = machines.setdefault(key, ([], set()))
        all_times += times
        versions.update(f"{name} {version}" for name, version in environment.versions)
    rows = [
        (*key, f"{len(times)}", day_of(min(times)), day_of(max(times)), ", ".join(sorted(versions)))
        for key, (times, versions) in sorted(machines.items(), key=lambda each: -len(each[1][0]))
    ]
    columns = ("machine", "threads", "driver", "measurements", "first", "last", "versions")
    return PageTable(title="By whom: machines and their software", columns=columns, rows=tuple(rows))


def _failure_tables(failures: Counter[tuple[str, str, str]]) -> tuple[PageTable, ...]:
    if not failures:
        return ()
    rows = tuple(
        (message or status, status, backend, f"{count}")
        for (backend, status, message), count in failures.most_common(MAX_FAILURES)
    )
    return (PageTable(title="What failed", columns=("message", "status", "backend", "times"), rows=rows),)
