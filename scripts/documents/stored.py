"""Documents of `tessel records` beside the summaries that the package returns."""

from __future__ import annotations

import msgspec

from records.database.merging import MergeSummary
from records.database.verification import Finding
from records.measurement import Measurement
from records.workload import Workload


class PrintedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record: its number in this store, its digest, what was run, what was measured, and the median."""

    id: int
    digest: str
    workload: Workload
    measurement: Measurement
    latency_us: float | None


class RecordsListed(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records list` shows, and whether more follow."""

    records: tuple[PrintedRecord, ...]
    more: bool


class FastestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest way that is known to run one workload."""

    operators: tuple[str, ...]
    role: str
    workload: str
    backend: str
    settings: str
    latency_us: float
    record: int


class BestFound(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records best` found, and how many parts of the model have no record."""

    best: tuple[FastestRecord, ...]
    not_measured: int


class RecordsPage(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records page` wrote: the file, its bytes, and how much of the records is on it."""

    out: str
    bytes: int
    workloads: int
    left_out: int
    measurements: int


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records verify` found; nothing where every record is as it was written."""

    findings: tuple[Finding, ...]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records import` read: new records, and those that were known already."""

    read: int
    new: int
    known: int


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel records merge` did, by source."""

    sources: dict[str, MergeSummary]
