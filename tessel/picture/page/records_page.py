"""A page of records: what was measured, when, on which machine, how widely it spreads, and the best of each.

Everything is in the page, which only reads: workloads are filtered and ordered in the browser. Checked in
tests/tessel/picture/page/test_records_page.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessel.picture.colors import color_by_backend
from tessel.picture.page.assembly import assembled
from tessel.picture.page.document import PageTable

_SCRIPTS = ("data.js", "text.js", "records.js")


class RecordedWay(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest measurement of a workload by one backend with the same settings in one environment.

    Attributes:
        latency_us: median of the samples.
        first_us: first quartile.
        third_us: third quartile.
        at: seconds since 1970-01-01 UTC; 0 where that is not known.
        environment: its number among the page's.
        record: its id in the store.
    """

    backend: str
    settings: str
    latency_us: float
    first_us: float
    third_us: float
    samples: int
    at: float
    environment: int
    record: int


class RecordedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one workload on one device.

    Attributes:
        inputs: shapes and data types, as text.
        device: the device's model.
        measurements: how many there are, failures included.
        failures: how many of them failed.
        last: when the last was made, in seconds since 1970-01-01 UTC.
        ways: the fastest first.
        more: ways beside these, all slower.
    """

    fingerprint: str
    operators: str
    inputs: str
    role: str
    device: str
    measurements: int
    failures: int
    last: float
    ways: tuple[RecordedWay, ...]
    more: int


class RecordedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its software: whose measurements these are."""

    device: str
    threads: str


class RecordedDay(msgspec.Struct, frozen=True, kw_only=True):
    """How much a backend was measured on a day, such as `2026-11-29`."""

    day: str
    backend: str
    measurements: int


class RecordedPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        title: its heading.
        summary: a sentence below it.
        note: a sentence at the foot.
        days: in order of time.
        workloads: in any order.
        left_out: workloads that the page does not list.
        environments: by their number.
        tables: below the workloads.
    """

    title: str
    summary: str
    note: str
    days: tuple[RecordedDay, ...]
    workloads: tuple[RecordedWorkload, ...]
    left_out: int
    environments: tuple[RecordedEnvironment, ...]
    tables: Sequence[PageTable]


def records_document(page: RecordedPage) -> bytes:
    """Return the page as HTML."""
    colors = color_by_backend(each.backend for each in page.days)
    data = {**msgspec.structs.asdict(page), "colors": colors}
    return assembled("records.html", _SCRIPTS, data, title=page.title)
