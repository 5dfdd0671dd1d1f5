"""What was measured, where, and with which versions; nothing else.

The package defines three types: a `Workload` (what was run, without any compiler's types), an `Environment`
(on what it was run) and a `Measurement` (the outcome). A `RecordStore` keeps them as `Record`s; nothing here
depends on how a latency is produced or used.
"""

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
