"""Schedule: when every block of every micro-batch starts, and the figures that follow from it.

`Schedule.of` derives every figure from the placement and the starts, so that a schedule cannot claim what its
starts do not show; bounds and the search's own words are added beside. The document is DESIGN's schedule
format. Independent validation stands in `tessel.validation`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from tessel.batches import Batch
from tessel.errors import ScheduleError, shown
from tessel.names import check_name
from tessel.orders import Task
from tessel.placement import Placement
from tessel.progress.manual import manual
from tessel.schedule.overlap import Overlap, Pair, saved_steps, spans_of_pairs

SCHEMA_VERSION = 2
"""Of a schedule whose micro-batches differ; one of equal micro-batches is written as version 1, as ever."""

OVERLAP_VERSION = 3
"""Of a schedule in which pairs run together."""


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
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


class SearchFindings(TypedDict, total=False):
    """What a search says of a schedule beside its starts.

    Attributes:
        lower_bound: proven bound on the makespan; 0 where none is known.
        optimal: whether the makespan is proven optimal; implied where it equals the bound.
        repetend: the repeating part.
        search_seconds: time the search took.
        found_by: the method that found it.
    """

    lower_bound: int
    optimal: bool
    repetend: Repetend | None
    search_seconds: float
    found_by: str


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
        batch: the class of each micro-batch; `UNSET` where all take what the placement says.
        overlap: forwards and backwards that run together, both from the start of the pair to its end; `UNSET`
            where each block runs by itself.
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
    schema_version: int = 1
    batch: Batch | msgspec.UnsetType = msgspec.UNSET
    overlap: Overlap | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_name("found_by", self.found_by)

    @classmethod
    def of(
        cls,
        placement: Placement,
        starts: Mapping[tuple[int, int], int],
        *,
        micro_batches: int,
        memory: Sequence[int] | None = None,
        batch: Batch | None = None,
        overlap: Overlap | None = None,
        **found: Unpack[SearchFindings],
    ) -> Schedule:
        """Return the schedule of these starts with its figures derived from them.

        Args:
            placement: the blocks of one micro-batch.
            starts: step by (block index in the placement, micro-batch); with choices, only the blocks run.
            micro_batches: number of micro-batches.
            memory: limit per device; None for none.
            batch: what the blocks take by micro-batch; None where the placement says it of all.
            overlap: pairs that run together, of equal micro-batches; None where each block runs by itself.
            found: what the search says of it, as `SearchFindings` lists.
        """
        keys = np.array(list(starts), dtype=np.int64).reshape(-1, 2)
        return cls.of_tasks(
            placement,
            keys[:, 0],
            keys[:, 1],
            np.fromiter(starts.values(), dtype=np.int64, count=len(starts)),
            micro_batches=micro_batches,
            memory=memory,
            batch=batch,
            overlap=overlap,
            **found,
        )

    @classmethod
    def of_tasks(
        cls,
        placement: Placement,
        block: npt.NDArray[np.int64],
        micro_batch: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        *,
        micro_batches: int,
        memory: Sequence[int] | None = None,
        batch: Batch | None = None,
        overlap: Overlap | None = None,
        **figures: Unpack[SearchFindings],
    ) -> Schedule:
        """Return what `of` does, for tasks in arrays: hundreds of thousands of them in tenths of a second.

        Other arguments are those of `of`.

        Args:
            block: int64, shape (tasks,), index in the placement; at least one task.
            micro_batch: int64, shape (tasks,).
            start: int64, shape (tasks,), step at which each starts.
        """
        order = _in_order(start, block, micro_batch)
        block, micro_batch, start = block[order], micro_batch[order], start[order]
        span, units = _task_costs(placement, batch, block, micro_batch)
        held = np.array([len(each.devices) for each in placement.blocks], dtype=np.int64)
        busy = int((span * held[block]).sum())
        released = start
        if overlap is not None:
            pairs = tuple(overlap.tasks(placement))
            spans = spans_of_pairs(placement, overlap.factor, pairs)
            tasks = list(zip(block.tolist(), micro_batch.tolist(), strict=True))
            span = np.array([spans.get(Task(*task), own) for task, own in zip(tasks, span, strict=True)])
            # What a pair frees is held to its end.
            is_late = np.array([task in spans for task in tasks], dtype=bool) & (units < 0)
            released = np.where(is_late, start + span, start)
            busy -= saved_steps(placement, spans, pairs)
        makespan = int((start + span).max())
        capacity = placement.devices * makespan
        names = np.array([each.name for each in placement.blocks], dtype=object)
        lower_bound = figures.get("lower_bound", 0)
        return cls(
            placement=placement,
            micro_batches=micro_batches,
            memory=None if memory is None else tuple(memory),
            starts=tuple(map(Start, names[block].tolist(), micro_batch.tolist(), start.tolist())),
            makespan=makespan,
            lower_bound=lower_bound,
            optimal=figures.get("optimal", False) or makespan == lower_bound,
            bubble_ratio=1 - busy / capacity if capacity else 0.0,
            peak_memory=_peaks(placement, block, units, released),
            repetend=figures.get("repetend"),
            search_seconds=figures.get("search_seconds", 0.0),
            found_by=figures.get("found_by", ""),
            schema_version=OVERLAP_VERSION if overlap is not None else 1 if batch is None else SCHEMA_VERSION,
            batch=msgspec.UNSET if batch is None else batch,
            overlap=msgspec.UNSET if overlap is None else overlap,
        )

    @property
    def classes(self) -> Batch | None:
        """The batch by class; None where all micro-batches take what the placement says."""
        return None if isinstance(self.batch, msgspec.UnsetType) else self.batch

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The forwards and backwards that run together."""
        return (
            () if isinstance(self.overlap, msgspec.UnsetType) else tuple(self.overlap.tasks(self.placement))
        )

    @property
    def overlap_factor(self) -> float | None:
        """Share of the sum of its blocks that a pair takes; None where each block runs by itself."""
        return None if isinstance(self.overlap, msgspec.UnsetType) else self.overlap.factor

    def pair_spans(self) -> dict[Task, int]:
        """Return the steps of the tasks of pairs, from the start of the pair to its end."""
        factor = self.overlap_factor
        return {} if factor is None else spans_of_pairs(self.placement, factor, self.pairs)

    def require_apart(self, what: str) -> None:
        """Refuse a schedule in which blocks run together, where only blocks by themselves can be handled.

        Args:
            what: who handles them, as the message begins, such as "tessel compare".

        Raises:
            ScheduleError: pairs run together.
        """
        if self.overlap_factor is not None:
            raise ScheduleError(
                f"{what} runs one block at a time, and this schedule has {len(self.pairs)} pairs of a "
                "forward and a backward that run together; make it without --overlap-factor"
            )

    def require_equal(self, what: str) -> None:
        """Refuse a schedule whose micro-batches differ, where only equal ones can be handled.

        Args:
            what: who handles them, as the message begins, such as "tessel compare".

        Raises:
            ScheduleError: its micro-batches differ, or pairs run together.
        """
        self.require_apart(what)
        batch = self.classes
        if batch is not None:
            raise ScheduleError(
                f"{what} takes equal micro-batches, and this schedule has {batch.micro_batches} of "
                f"{len(batch.classes)} classes; give it a schedule that was made without --batch"
            )

    def span_of(self, block_index: int, micro_batch: int) -> int:
        """Return the steps that a block of a micro-batch runs; by itself, if it is of a pair."""
        if isinstance(self.batch, msgspec.UnsetType):
            return self.placement.blocks[block_index].span
        return self.batch.classes[self.batch.sequence[micro_batch]].spans[block_index]

    def memory_of(self, block_index: int, micro_batch: int) -> int:
        """Return the units that a block of a micro-batch adds when it starts."""
        if isinstance(self.batch, msgspec.UnsetType):
            return self.placement.blocks[block_index].memory
        return self.batch.classes[self.batch.sequence[micro_batch]].memory[block_index]

    @property
    def gap(self) -> float:
        """How far the makespan may be from the least one, as a fraction of the bound; 0 where proven."""
        if self.optimal:
            return 0.0
        return self.makespan / self.lower_bound - 1 if self.lower_bound else float("inf")

    def __repr__(self) -> str:
        proof = "optimal" if self.optimal else f"lower bound {self.lower_bound or 'not known'}"
        return (
            f"Schedule({self.placement.devices} devices, {self.micro_batches} micro-batches, makespan "
            f"{self.makespan} ({proof}), bubble ratio {self.bubble_ratio:.1%}, peak memory "
            f"{max(self.peak_memory)})"
        )

    def start_by_block(self) -> dict[tuple[int, int], int]:
        """Return the step by (block index, micro-batch), as `of` takes it."""
        index = self.placement.index_by_name
        return {(index[start.block], start.micro_batch): start.start for start in self.starts}

    def to_json(self) -> bytes:
        """Return the document of DESIGN's schedule format, keys sorted."""
        return msgspec.json.encode(self, order="sorted")


def peak_memory(
    placement: Placement, starts: Mapping[tuple[int, int], int], batch: Batch | None = None
) -> tuple[int, ...]:
    """Return the most units each device holds at once.

    A block's change counts from the step at which it starts; changes of one step are summed before the peak
    is taken, since only blocks of span 0 can start together on one device.
    """
    block = np.fromiter((block for block, _ in starts), dtype=np.int64, count=len(starts))
    micro_batch = np.fromiter((micro_batch for _, micro_batch in starts), dtype=np.int64, count=len(starts))
    start = np.fromiter(starts.values(), dtype=np.int64, count=len(starts))
    _, units = _task_costs(placement, batch, block, micro_batch)
    return _peaks(placement, block, units, start)


def decode_schedule(text: bytes | str) -> Schedule:
    """Read a schedule document.

    Raises:
        ScheduleError: it is not one; the message names the key.
    """
    try:
        printed = msgspec.json.decode(text, type=_PrintedSchedule)
        schedule = Schedule(**{name: getattr(printed, name) for name in Schedule.__struct_fields__})
    except msgspec.MsgspecError as error:
        raise ScheduleError(f"schedule cannot be read: {shown(error)}; see {manual('formats.md')}") from error
    if not 1 <= schedule.schema_version <= OVERLAP_VERSION:
        raise ScheduleError(
            f"schedule has schema_version {schedule.schema_version}, this installation reads 1 to "
            f"{OVERLAP_VERSION}; convert it, or use the version that wrote it"
        )
    if schedule.overlap_factor is not None and (
        schedule.schema_version < OVERLAP_VERSION or schedule.classes is not None
    ):
        raise ScheduleError(
            f"schedule has pairs that run together, which are of schema_version {OVERLAP_VERSION} and of "
            "equal micro-batches; make it again"
        )
    if schedule.schema_version == 1 and schedule.classes is not None:
        raise ScheduleError(
            f"schedule has a batch and schema_version 1, which has none; set schema_version {SCHEMA_VERSION}"
        )
    return schedule


class _PrintedSchedule(Schedule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule as `tessel schedule --json` prints it: with what ended the search, and what is not kept."""

    stopped_by: str | None = None
    spread: msgspec.Raw | None = None


def _task_costs(
    placement: Placement,
    batch: Batch | None,
    block: npt.NDArray[np.int64],
    micro_batch: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return span and memory by task."""
    if batch is not None:
        batch.check(placement)
        return batch.spans[micro_batch, block], batch.memory[micro_batch, block]
    span = np.array([each.span for each in placement.blocks], dtype=np.int64)
    memory = np.array([each.memory for each in placement.blocks], dtype=np.int64)
    return span[block], memory[block]


def _peaks(
    placement: Placement,
    block: npt.NDArray[np.int64],
    units: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
) -> tuple[int, ...]:
    """Return the most units by device of tasks given as their blocks, changes of memory and starts."""
    blocks = placement.blocks
    held = np.array([len(each.devices) for each in blocks], dtype=np.int64)
    first = np.cumsum(held) - held
    devices = np.array([device for each in blocks for device in each.devices], dtype=np.int64)
    changes = units != 0
    block, units, start = block[changes], units[changes], start[changes]
    count = held[block]
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    device = devices[np.repeat(first[block], count) + place]
    start, amount = np.repeat(start, count), np.repeat(units, count)
    order = _in_order(device, start)
    device, start, level = device[order], start[order], np.cumsum(amount[order])
    peaks = np.zeros(placement.devices, dtype=np.int64)
    if not len(device):
        return tuple(peaks.tolist())
    is_last = np.append((device[1:] != device[:-1]) | (start[1:] != start[:-1]), True)
    begins = np.flatnonzero(np.append(True, device[1:] != device[:-1]))
    before = np.zeros(placement.devices, dtype=np.int64)
    before[device[begins[1:]]] = level[begins[1:] - 1]
    np.maximum.at(peaks, device[is_last], (level - before[device])[is_last])
    return tuple(peaks.tolist())


def _in_order(*keys: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the order by the first of some non-negative keys, then by the next; equal ones stay in place.

    Where one number can hold all keys, sorting by it takes a fifth of what `numpy.lexsort` takes.
    """
    joint = keys[0]
    room = 2**63 - 1
    for key in keys[1:]:
        size = int(key.max(initial=0)) + 1
        room //= size
        joint = joint * size + key
    if int(keys[0].max(initial=0)) >= room:
        return np.lexsort(keys[::-1])
    return np.argsort(joint, kind="stable")
