"""Measurements: what was measured, where, and with which versions; nothing else.

The package defines three types: a `Workload` (what was run, without any compiler's types), an `Environment`
(on what it was run) and a `Measurement` (the outcome). A `RecordStore` keeps them as `Record`s; nothing here
depends on how a latency is produced or used.

All is imported when it is first asked for (PEP 562): plain data, such as a plan, imports types from here and
waits for no SQLAlchemy, a command's help not even for msgspec. Checked in tests/test_import_weight.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.lazy_names import names_on_demand

if TYPE_CHECKING:
    from records.database.counts import Stats
    from records.database.store import RecordStore, open_store
    from records.database.verification import Finding
    from records.environment import Environment
    from records.errors import RecordError, RecordFileError
    from records.measurement import Measurement, Status
    from records.record import Match, Record
    from records.workload import Operator, Tensor, Workload

__all__ = [
    "Environment",
    "Finding",
    "Match",
    "Measurement",
    "Operator",
    "Record",
    "RecordError",
    "RecordFileError",
    "RecordStore",
    "Stats",
    "Status",
    "Tensor",
    "Workload",
    "open_store",
]

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these
    __getattr__ = names_on_demand(
        __name__,
        {
            "records.database.counts": "Stats",
            "records.database.store": "RecordStore open_store",
            "records.database.verification": "Finding",
            "records.environment": "Environment",
            "records.errors": "RecordError RecordFileError",
            "records.measurement": "Measurement Status",
            "records.record": "Match Record",
            "records.workload": "Operator Tensor Workload",
        },
    )
