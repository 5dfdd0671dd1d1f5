"""`tessel records`: what was measured so far, and tools to manage it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scripts.commands.records.opening import UrlOption, name_operators, open_existing
from scripts.options.tuning_options import JsonOption
from scripts.terminal import console
from tessel.jobs.shown.formatting import format_us
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from records import Record
    from scripts.documents.stored import PrintedRecord

# Spelled out here, because importing the records' own types would slow down every `--help`.
StatusName = Literal["ok", "unsupported", "error", "timeout"]
RoleName = Literal["kernel", "stage", "model", "transfer", "device", "task"]


def list_(
    records: UrlOption = DEFAULT_RECORDS,
    status: Annotated[StatusName | None, "Only records with this status."] = None,
    backend: Annotated[str | None, "Only records of this backend."] = None,
    role: Annotated[RoleName | None, "Only records with this role."] = None,
    after: Annotated[int, "Only records with a greater id."] = 0,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 50,
    json: JsonOption = False,
) -> None:
    """List records in the order they were stored.

    Example: `tessel records list --status error`.
    """
    from records import Status

    with open_existing(records) as store:
        found = store.iterate(
            status=None if status is None else Status(status),
            backend=backend,
            role=role,
            after_id=after,
        )
        shown = list(islice(found, limit + 1))
    more, shown = len(shown) > limit, shown[:limit]
    if json:
        from scripts.documents.stored import RecordsListed

        console.print_json(RecordsListed(records=tuple(map(_document, shown)), more=more))
        return
    columns = ["operators", "backend", "status", "id", "latency", "samples"]
    console.print_table("", columns, [_row(record) for record in shown], text_columns=3)
    if more:
        messages.note(f"more follow: --after {shown[-1].record_id}, or a greater --limit")


def show(
    record_id: Annotated[int, typer.Argument(metavar="ID", help="Number of the record.")],
    records: UrlOption = DEFAULT_RECORDS,
    json: JsonOption = False,
) -> None:
    """Show everything about one record: what was run, where, with which versions, and every sample.

    Example: `tessel records show 17`.
    """
    with open_existing(records) as store:
        record = store.get(record_id)
    if json:
        console.print_json(_document(record))
        return
    measurement, environment = record.measurement, record.measurement.environment
    lines = {
        "record": f"{record.record_id} ({record.digest})",
        "workload": f"{record.workload.role} {measurement.workload_fingerprint}",
        "operators": name_operators(record),
        "inputs": ", ".join(_tensor(tensor.shape, tensor.dtype) for tensor in record.workload.inputs),
        "work": f"{record.workload.flops:,} floating-point operations",
        "parameters": ", ".join(f"{name}={value}" for name, value in record.workload.parameters),
        "backend": f"{measurement.backend} {measurement.settings}".strip(),
        "target": measurement.target,
        "device": f"{environment.device_model}, {environment.num_threads} of {environment.num_cores} cores",
        "driver": environment.driver,
        "versions": ", ".join(f"{name} {version}" for name, version in environment.versions),
        "status": f"{measurement.status} {measurement.message}".strip(),
        "latency": _latency(record),
        "samples": ", ".join(f"{sample:.4g}" for sample in measurement.samples_us) + " us",
        "measured": _time(measurement.measured_at),
        "seed": str(measurement.seed),
    }
    for name, text in lines.items():
        if text and (name != "samples" or measurement.samples_us):
            console.print_line(f"{name:12}{text}")


def stats(records: UrlOption = DEFAULT_RECORDS, json: JsonOption = False) -> None:
    """Count the records by status, target and backend.

    Example: `tessel records stats --json`.
    """
    with open_existing(records) as store:
        counts = store.stats()
    if json:
        console.print_json(counts)
        return
    console.print_line(
        f"{counts.measurements} measurements of {counts.workloads} workloads in {counts.environments} "
        "environments"
    )
    groups = {"status": counts.by_status, "backend": counts.by_backend, "target": counts.by_target}
    rows = [[group, name, str(amount)] for group, names in groups.items() for name, amount in names.items()]
    console.print_table("", ["by", "name", "measurements"], rows, text_columns=2)


def verify(records: UrlOption = DEFAULT_RECORDS, json: JsonOption = False) -> None:
    """Read every record and report corrupted ones; exit status 1 if there are any.

    Example: `tessel records verify`.
    """
    with open_existing(records) as store, messages.bar("reading every record"):
        findings = store.verify()
    if json:
        from scripts.documents.stored import Verified

        console.print_json(Verified(findings=tuple(findings)))
    else:
        for finding in findings:
            console.print_line(f"{finding.subject}: {finding.problem}")
        console.print_line(f"{len(findings)} findings" if findings else "all records are intact")
    if findings:
        raise typer.Exit(1)


def _document(record: Record) -> PrintedRecord:
    from scripts.documents.stored import PrintedRecord

    return PrintedRecord(
        id=record.record_id,
        digest=record.digest,
        workload=record.workload,
        measurement=record.measurement,
        latency_us=record.measurement.latency_us if record.measurement.samples_us else None,
    )


def _row(record: Record) -> list[str]:
    measurement = record.measurement
    backend = f"{measurement.backend} {measurement.settings}".strip()
    samples = str(len(measurement.samples_us))
    return [
        name_operators(record, limit=3),
        backend,
        measurement.status,
        str(record.record_id),
        _latency(record),
        samples,
    ]


def _tensor(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _latency(record: Record) -> str:
    if not record.measurement.samples_us:
        return "-"
    first, third = record.measurement.quartiles_us
    median = format_us(record.measurement.latency_us)
    return f"{median} ±{(third - first) / 2 / record.measurement.latency_us:.0%}"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s after 1970"
