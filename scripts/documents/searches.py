"""Documents of `tessel schedule`."""

from __future__ import annotations

import msgspec

from tessel.schedule import Schedule
from tessel.search.budget import StoppedBy


class PrintedSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Where durations vary: the makespan by replay, in steps.

    Attributes:
        distribution: of durations, as it was stated, or that and where it was measured.
        mean: on average.
        quantiles: by percentile, `p50`, `p95` and `p99`.
        greedy_ratio: p95 of a runtime that runs what can start over that of the order found; null where it
            was not replayed.
    """

    distribution: str
    mean: float
    quantiles: dict[str, float]
    greedy_ratio: float | None


class PrintedSchedule(Schedule, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """A schedule as it is saved, with what ended the search where that was no proof.

    Attributes:
        stopped_by: what ended the search; left out where `optimal` says it.
        spread: where durations vary; left out where they do not.
    """

    stopped_by: StoppedBy | msgspec.UnsetType = msgspec.UNSET
    spread: PrintedSpread | msgspec.UnsetType = msgspec.UNSET


class PrintedAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-batches shared out to replicas.

    Attributes:
        makespan: steps until the slowest replica is done.
        lower_bound: no assignment of this kind is done earlier.
        given: steps of 1F1B with equal consecutive runs as given; null where it fits nowhere.
        replicas: the micro-batches of each replica, by their number in the batch.
        schedules: of each replica, its micro-batches numbered in that order.
        found_by: what made the assignment.
        stopped_by: what ended the search.
        spread: where durations vary, of the slowest replica; left out where they do not.
    """

    makespan: int
    lower_bound: int
    given: int | None
    replicas: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]
    found_by: str
    stopped_by: StoppedBy
    spread: PrintedSpread | msgspec.UnsetType = msgspec.UNSET


class PrintedRepetend(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --period-only` found.

    Attributes:
        period: steps after which the pattern repeats.
        micro_batches: micro-batches that enter in one period.
        lower_bound: no pattern of as many micro-batches has a shorter period.
        optimal: the period is proven optimal for that number of micro-batches.
        steps_per_micro_batch: period over micro-batches.
        rate_lower_bound: steps that a micro-batch takes at least, whatever their number in a period.
        rate_optimal: `steps_per_micro_batch` is that bound.
        starts: start of each block that runs, in the placement's order, by micro-batch of the period.
        search_seconds: wall-clock time.
        found_by: the method that found it.
        stopped_by: what ended the search.
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
    stopped_by: StoppedBy


class PrintedOpenRange(msgspec.Struct, frozen=True, kw_only=True):
    """Memory limits at which something better may exist than was found.

    Attributes:
        first: the least of them, in units.
        last: the largest; null where there is no end.
        at_least: no value at these limits is smaller.
        at_most: what was found for less memory holds here too; null where nothing was found.
    """

    first: int
    last: int | None
    at_least: float
    at_most: float | None


class PrintedPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A memory limit and the least period found under it.

    Attributes:
        memory: the limit in units, one a device.
        period: steps after which the pattern repeats.
        copies: micro-batches that enter in one period.
        lower_bound: no pattern of as many micro-batches has a shorter period.
        optimal: the period is proven optimal for that number of micro-batches.
        open: another number of micro-batches may have a better rate at this limit.
    """

    memory: tuple[int, ...]
    period: int
    copies: int
    lower_bound: int
    optimal: bool
    open: bool


class PeriodFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --frontier` found.

    Attributes:
        frontier: limits in ascending order, each with a better rate.
        open: limits at which a better rate may exist, in steps a micro-batch.
        stopped_by: what ended the search; `proven` where nothing is open.
    """

    frontier: tuple[PrintedPeriod, ...]
    open: tuple[PrintedOpenRange, ...]
    stopped_by: StoppedBy


class PrintedMakespan(msgspec.Struct, frozen=True, kw_only=True):
    """A memory limit and the least makespan found under it.

    Attributes:
        memory: the limit in units, one a device.
        makespan: steps of all micro-batches.
        lower_bound: no schedule under the limit is shorter.
        optimal: the makespan is proven optimal.
        gap: how far it may be from the least one, as a share of the bound.
        found_by: the method that found it.
        open: a shorter schedule may exist at this limit.
    """

    memory: tuple[int, ...]
    makespan: int
    lower_bound: int
    optimal: bool
    gap: float
    found_by: str
    open: bool


class MakespanFrontier(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel schedule --frontier --micro-batches N` found.

    Attributes:
        micro_batches: how many every schedule runs.
        frontier: limits in ascending order, each with a shorter makespan.
        open: limits at which a shorter makespan may exist.
        stopped_by: what ended the search; `proven` where nothing is open.
    """

    micro_batches: int
    frontier: tuple[PrintedMakespan, ...]
    open: tuple[PrintedOpenRange, ...]
    stopped_by: StoppedBy
