"""Size limits of records, shared by appending, exporting, importing and both databases.

Whatever `append` accepts is exported as a line that is imported again, equal, from and into either database.
Each limit is therefore checked before a record is stored, by `records.record.storable`, and every reader of
lines accepts what those limits allow. Checked in tests/records/test_limits.py.
"""

from __future__ import annotations

import msgspec

from records.measurement import Measurement
from records.workload import Workload

MAX_INTEGER = 2**63 - 1
"""Largest whole number that both databases keep exactly."""

MAX_LINE_BYTES = 128 * 2**20
"""Longest line of a file of records. A whole model of thousands of operators has about 1 MiB; the longest
message takes up to 6 bytes a character as JSON. Both databases take longer texts."""

MAX_MESSAGE_CHARACTERS = 20 * 2**20
"""Longest message of a failure; a compiler that printed its intermediate code was the longest seen."""

MAX_BACKEND_BYTES = 1000
"""Longest name of a backend. PostgreSQL refuses index entries above 2704 bytes; two indexes hold the name."""

_LINE_OVERHEAD_BYTES = 200
"""What a line holds beside measurement and workload: its keys, the digest and a version."""


def cut_message(message: str) -> str:
    """Return a failure's message, without its end where it is longer than any reader needs."""
    return message[:MAX_MESSAGE_CHARACTERS]


def check_limits(workload: Workload, measurement: Measurement) -> None:
    """Refuse what one of the databases, or a file of records, could not hold.

    Raises:
        ValueError: the name of the backend or the whole is too long.
    """
    num_bytes = len(measurement.backend.encode())
    if num_bytes > MAX_BACKEND_BYTES:
        raise ValueError(
            f"the backend's name has {num_bytes} bytes, and an index holds {MAX_BACKEND_BYTES}; put what is "
            "long into settings"
        )
    num_bytes = len(msgspec.json.encode(measurement)) + len(workload.to_json()) + _LINE_OVERHEAD_BYTES
    if num_bytes > MAX_LINE_BYTES:
        raise ValueError(
            f"the record takes {num_bytes / 2**20:.0f} MiB as a line, and files of records are read up to "
            f"{MAX_LINE_BYTES // 2**20} MiB a line; keep fewer samples, or a shorter description"
        )
