"""When every block of every micro-batch starts, and the figures that follow from it.

`Schedule.of` derives every figure from the placement and the starts, so that a schedule cannot claim what its
starts do not show; bounds and the search's own words are added beside. The document is DESIGN's schedule
format. Independent validation stands in `tessel.validation`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessel.errors import ScheduleError, shown
from tessel.placement import Placement

SCHEMA_VERSION = 1


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block of a micro-batch and the step at which it starts."""

    block: str
    micro_batch: int
    start: int


class Repetend(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of a schedule that repeats.

    Attributes:
        period: steps after which the pattern repeats.
        micro_batches: micro-batches that enter in one period (the copies of each block).
        lower_bound: no pattern of that many micro-batches has a shorter period, under the same limits.
        optimal: the period equals the bound, or the search proved that no shorter one exists.
        start: first step of the repeating part in this schedule.
        end: first step after it.
    """

    period: int
    micro_batches: int
    lower_bound: int
    optimal: bool
    start: int
    end: int


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole schedule of `micro_batches` micro-batches.

    Attributes:
        placement: the blocks of one micro-batch.
        micro_batches: how many are run, numbered from 0.
        memory: limit in units, one per device, or None where there is none.
        starts: ordered by start, then block order, then micro-batch.
        makespan: last end, counted from step 0.
        lower_bound: no schedule is shorter under the same limits.
        optimal: whether no shorter schedule exists; only with a proof.
        bubble_ratio: 1 - (busy steps of all devices) / (devices x makespan).
        peak_memory: most units held at once, one per device.
        repetend: the part that repeats, where there is one.
        search_seconds: wall-clock time the search took.
        found_by: the method that found it.
    """

    placement: Placement
    micro_batches: int
    memory: tuple[int, ...] | None
    starts: tuple[Start, ...]
    makespan: int
    lower_bound: int
    optimal: bool
    bubble_ratio: float
    peak_memory: tuple[int, ...]
    repetend: Repetend | None = None
    search_seconds: float = 0.0
    found_by: str = ""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(
        cls,
        placement: Placement,
        starts: Mapping[tuple[int, int], int],
        *,
        micro_batches: int,
        memory: Sequence[int] | None = None,
        lower_bound: int = 0,
        optimal: bool = False,
        repetend: Repetend | None = None,
        search_seconds: float = 0.0,
        found_by: str = "",
    ) -> Schedule:
        """Return the schedule of these starts with its figures derived from them.

        Args:
            placement: the blocks of one micro-batch.
            starts: step by (block index in the placement, micro-batch); with choices, only the blocks run.
            micro_batches: number of micro-batches.
            memory: limit per device; None for none.
            lower_bound: proven bound on the makespan; 0 where none is known.
            optimal: whether the makespan is proven least; implied where it equals the bound.
            repetend: the repeating part.
            search_seconds: time the search took.
            found_by: the method that found it.
        """
        ordered = sorted(starts.items(), key=lambda item: (item[1], item[0]))
        makespan = max(start + placement.blocks[block].span for (block, _), start in ordered)
        busy = sum(placement.blocks[block].span * len(placement.blocks[block].devices) for block, _ in starts)
        capacity = placement.devices * makespan
        return cls(
            placement=placement,
            micro_batches=micro_batches,
            memory=None if memory is None else tuple(memory),
            starts=tuple(Start(placement.blocks[block].name, m, start) for (block, m), start in ordered),
            makespan=makespan,
            lower_bound=lower_bound,
            optimal=optimal or makespan == lower_bound,
            bubble_ratio=1 - busy / capacity if capacity else 0.0,
            peak_memory=peak_memory(placement, starts),
            repetend=repetend,
            search_seconds=search_seconds,
            found_by=found_by,
        )

    @property
    def gap(self) -> float:
        """How far the makespan may be from the least one, as a fraction of the bound; 0 where proven."""
        if self.optimal:
            return 0.0
        return self.makespan / self.lower_bound - 1 if self.lower_bound else float("inf")

    def __repr__(self) -> str:
        proof = "optimal" if self.optimal else f"lower bound {self.lower_bound}"
        return (
            f"Schedule({self.placement.devices} devices, {self.micro_batches} micro-batches, makespan "
            f"{self.makespan} ({proof}), bubble ratio {self.bubble_ratio:.1%}, peak memory "
            f"{max(self.peak_memory)})"
        )

    def _repr_svg_(self) -> str | None:
        """Return the picture of the schedule for a notebook; None where it has too many blocks to be read."""
        from tessel.picture.notebook import schedule_svg  # noqa: PLC0415 (pictures know schedules, not the reverse)

        return schedule_svg(self)

    def start_by_block(self) -> dict[tuple[int, int], int]:
        """Return the step by (block index, micro-batch), as `of` takes it."""
        index = self.placement.index_by_name
        return {(index[start.block], start.micro_batch): start.start for start in self.starts}

    def to_json(self) -> bytes:
        """Return the document of DESIGN's schedule format, keys sorted."""
        return msgspec.json.encode(self, order="sorted")


def peak_memory(placement: Placement, starts: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """Return the most units each device holds at once.

    A block's change counts from the step at which it starts; changes of one step are summed before the peak
    is
    taken, since only blocks of span 0 can start together on one device.
    """
    changes: list[dict[int, int]] = [{} for _ in range(placement.devices)]
    for (block_index, _), start in starts.items():
        block = placement.blocks[block_index]
        for device in block.devices:
            changes[device][start] = changes[device].get(start, 0) + block.memory
    return tuple(_peak(change[step] for step in sorted(change)) for change in changes)


def decode_schedule(text: bytes | str) -> Schedule:
    """Read a schedule document.

    Raises:
        ScheduleError: it is not one; the message names the key.
    """
    try:
        printed = msgspec.json.decode(text, type=_PrintedSchedule)
        schedule = Schedule(**{name: getattr(printed, name) for name in Schedule.__struct_fields__})
    except msgspec.MsgspecError as error:
        raise ScheduleError(f"schedule cannot be read: {shown(error)}; see docs/formats.md") from error
    if schedule.schema_version != SCHEMA_VERSION:
        raise ScheduleError(
            f"schedule has schema_version {schedule.schema_version}, this installation reads "
            f"{SCHEMA_VERSION}; convert it, or use the version that wrote it"
        )
    return schedule


class _PrintedSchedule(Schedule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule as `tessel schedule --json` prints it: with what ended the search, which is not kept."""

    stopped_by: str | None = None


def _peak(changes: Iterable[int]) -> int:
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    return peak
