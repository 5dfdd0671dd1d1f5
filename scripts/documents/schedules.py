"""What `tessel compare` and `draw` print."""

from __future__ import annotations

import msgspec

from tessel.comparison import ComparisonRow


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel compare` prints: rows, fastest first, and why other schedules do not apply."""

    schedules: tuple[ComparisonRow, ...]
    not_applicable: dict[str, str]


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel draw` drew: the file and its bytes (null on the terminal), runs of blocks, makespan."""

    out: str | None
    bytes: int | None
    blocks: int
    makespan: int
