"""What `tessel schedule`, `compare`, `draw` and `run` print."""

from __future__ import annotations

import msgspec

from tessel.comparison import ComparisonRow


class PrintedRepetend(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --period-only` found.

    Attributes:
        period: steps after which the pattern repeats.
        micro_batches: micro-batches that enter in one period.
        lower_bound: no pattern of as many micro-batches has a shorter period.
        optimal: the period is proven least for that number of micro-batches.
        steps_per_micro_batch: period over micro-batches.
        rate_lower_bound: steps that a micro-batch takes at least, whatever their number in a period.
        rate_optimal: `steps_per_micro_batch` is that bound.
        starts: start of each block that runs, in the placement's order, by micro-batch of the period.
        search_seconds: wall-clock time.
        found_by: the method that found it.
    """

    period: int
    micro_batches: int
    lower_bound: int
    optimal: bool
    steps_per_micro_batch: float
    rate_lower_bound: float
    rate_optimal: bool
    starts: tuple[tuple[int, ...], ...]
    search_seconds: float
    found_by: str


class PrintedPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A memory limit, one a device, and the least period found under it, of `copies` micro-batches."""

    memory: tuple[int, ...]
    period: int
    copies: int
    lower_bound: int
    optimal: bool


class PeriodFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --frontier` found: limits in ascending order, each with a better rate."""

    frontier: tuple[PrintedPeriod, ...]


class PrintedMakespan(msgspec.Struct, frozen=True, kw_only=True):
    """A memory limit, one a device, and the least makespan found under it."""

    memory: tuple[int, ...]
    makespan: int
    lower_bound: int
    optimal: bool
    gap: float
    found_by: str


class MakespanFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --frontier --micro-batches N` found: limits in ascending order, each shorter."""

    micro_batches: int
    frontier: tuple[PrintedMakespan, ...]


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
