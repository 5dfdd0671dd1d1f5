"""Documents of `tessel compare`, `draw` and `export`."""

from __future__ import annotations

import msgspec

from tessel.comparison import ComparisonRow
from tessel.planning.saved_plan import SavedBaseline


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel compare` prints.

    Attributes:
        schedules: on the same placement, stages and limits, fastest first.
        not_applicable: by name, why other schedules do not apply.
        devices: of a plan of layers, the devices of the cluster behind each row of the placement.
        baselines: of a plan of layers, what its whole training step was compared with, each with its own best
            degrees and cut.
    """

    schedules: tuple[ComparisonRow, ...]
    not_applicable: dict[str, str]
    devices: tuple[tuple[int, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    baselines: tuple[SavedBaseline, ...] | msgspec.UnsetType = msgspec.UNSET


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel draw` drew: the file and its bytes (null on the terminal), runs of blocks, makespan."""

    out: str | None
    bytes: int | None
    blocks: int
    makespan: int


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as another framework loads it.

    Attributes:
        to: the framework.
        files: what was written; empty without --out.
        text: of the first file.
    """

    to: str
    files: tuple[str, ...]
    text: str
