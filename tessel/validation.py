"""Independent validation of a schedule, from its placement and start times alone.

Everything is recomputed here, in the simplest way and without the code that produced the schedule: device
occupancy, dependencies, memory, makespan. Nothing is trusted but the placement's blocks, edges and choices. A
bound cannot be checked from a schedule, only that the makespan does not violate it. Checked in
tests/tessel/test_validation.py, which breaks valid schedules in every way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import msgspec

from tessel.errors import ScheduleError, shown
from tessel.placement import Block, BlockKind, Placement
from tessel.schedule.overlap import Overlap
from tessel.schedule.schedule import Repetend, Schedule

MAX_STEP = 10**15
"""Last step at which a block may start; longer than a million blocks of the longest span."""

MAX_UNITS = 10**18
"""Largest limit of memory; sums of what blocks hold still fit 64-bit integers."""

BUBBLE_TOLERANCE = 1e-6
"""Largest difference of a bubble ratio that counts as rounding: six printed decimals."""


def find_violations(schedule: Schedule) -> tuple[str, ...]:
    """Return one line for each thing that is wrong with the schedule; none if it is valid."""
    malformed = (*_malformed_starts(schedule), *_malformed_pairs(schedule))
    if malformed:
        return malformed
    runs = _runs(schedule)
    return (
        *_wrong_counts(schedule, runs),
        *_torn_pairs(runs),
        *_overlaps(schedule.placement, runs),
        *_broken_edges(schedule, runs),
        *_memory_violations(schedule, runs),
        *_wrong_figures(schedule, runs),
        *_repetend_violations(schedule, runs),
    )


def check_schedule(schedule: Schedule) -> None:
    """Raise an error that names the first violations.

    Raises:
        ScheduleError: the schedule is invalid.
    """
    violations = find_violations(schedule)
    if violations:
        more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
        raise ScheduleError(f"schedule is invalid: {'; '.join(violations[:3])}{more}; make it again")


@dataclass(frozen=True, slots=True)
class _Run:
    """One block of one micro-batch in time, of a pair if it has an order among those that run together."""

    block: Block
    micro_batch: int
    start: int
    pair: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.block.span

    def __str__(self) -> str:
        return f"{self.block.name} of micro-batch {self.micro_batch}"


def _malformed_starts(schedule: Schedule) -> Iterator[str]:
    names = {block.name for block in schedule.placement.blocks}
    if schedule.micro_batches < 1:
        yield f"it has {schedule.micro_batches} micro-batches, but needs at least 1"
    batch, placement = schedule.classes, schedule.placement
    if batch is not None and batch.micro_batches != schedule.micro_batches:
        yield f"it has {schedule.micro_batches} micro-batches, and its batch {batch.micro_batches}"
    if batch is not None and (
        len(batch.classes[0].spans) != len(placement.blocks)
        or len(batch.classes[0].lags) != len(placement.edges)
    ):
        yield "its batch has not one span for each block and one lag for each edge of the placement"
    if schedule.memory is not None and len(schedule.memory) != schedule.placement.devices:
        yield f"it has {len(schedule.memory)} memory limits for {schedule.placement.devices} devices"
    if any(abs(limit) > MAX_UNITS for limit in schedule.memory or ()):
        yield f"it has a memory limit beyond {MAX_UNITS} units"
    # Each micro-batch starts every block that is no option, and one of each choice. Said before the
    # micro-batches are looked at one by one: there may be said to be a billion.
    optional = {name for choice in schedule.placement.choices for option in choice.options for name in option}
    fewest = len(schedule.placement.blocks) - len(optional) + len(schedule.placement.choices)
    if len(schedule.starts) < schedule.micro_batches * fewest:
        yield (
            f"it has {len(schedule.starts)} starts, and {schedule.micro_batches} micro-batches of {fewest} "
            f"blocks need {schedule.micro_batches * fewest}"
        )
    for start in schedule.starts:
        if start.block not in names:
            yield f"a start names block {shown(start.block)!r}, which the placement does not have"
        if not 0 <= start.micro_batch < schedule.micro_batches:
            yield f"{shown(start.block)} starts for micro-batch {start.micro_batch}, which does not exist"
        if start.start < 0:
            name = shown(start.block)
            yield f"{name} of micro-batch {start.micro_batch} starts at step {start.start}, before 0"
        if start.start > MAX_STEP:
            yield f"{shown(start.block)} of micro-batch {start.micro_batch} starts after step {MAX_STEP}"


def _malformed_pairs(schedule: Schedule) -> Iterator[str]:
    """Pairs are a forward and a joint backward on one device alone, and no block is in two of them."""
    if not isinstance(schedule.overlap, Overlap):
        return
    if schedule.classes is not None:
        yield "pairs run together, and its micro-batches differ"
    blocks = {block.name: block for block in schedule.placement.blocks}
    seen: Counter[tuple[str, int]] = Counter()
    started = {(start.block, start.micro_batch) for start in schedule.starts}
    for pair in schedule.overlap.pairs:
        ends = (pair.forward, pair.forward_micro_batch), (pair.backward, pair.backward_micro_batch)
        seen.update(ends)
        if not started.issuperset(ends):
            yield f"a pair is of {shown(ends[0])} and {shown(ends[1])}, and not both of them start"
            continue
        forward, backward = blocks[pair.forward], blocks[pair.backward]
        is_pair = forward.kind is BlockKind.FORWARD and backward.kind is BlockKind.BACKWARD
        if not is_pair or len(forward.devices) != 1 or forward.devices != backward.devices:
            yield f"{pair.forward} and {pair.backward} are no forward and joint backward of one device"
    for (name, micro_batch), times in seen.items():
        if times > 1:
            yield f"{shown(name)} of micro-batch {micro_batch} is in {times} pairs"


def _runs(schedule: Schedule) -> list[_Run]:
    batch = schedule.classes
    if batch is None:
        blocks = {block.name: block for block in schedule.placement.blocks}
        runs = [_Run(blocks[start.block], start.micro_batch, start.start) for start in schedule.starts]
        return _with_pairs(runs, schedule.overlap) if isinstance(schedule.overlap, Overlap) else runs
    by_class = [
        {
            block.name: msgspec.structs.replace(block, span=own.spans[place], memory=own.memory[place])
            for place, block in enumerate(schedule.placement.blocks)
        }
        for own in batch.classes
    ]
    return [
        _Run(by_class[batch.sequence[start.micro_batch]][start.block], start.micro_batch, start.start)
        for start in schedule.starts
    ]


def _with_pairs(runs: list[_Run], overlap: Overlap) -> list[_Run]:
    """Give the blocks of a pair the steps that it takes: the share of their sum, or the longer of both."""
    number = {
        end: number
        for number, pair in enumerate(overlap.pairs)
        for end in ((pair.forward, pair.forward_micro_batch), (pair.backward, pair.backward_micro_batch))
    }
    spans: dict[int, list[int]] = defaultdict(list)
    for run in runs:
        if (run.block.name, run.micro_batch) in number:
            spans[number[run.block.name, run.micro_batch]].append(run.block.span)
    share = Fraction(round(overlap.factor * 10**6), 10**6)
    found = []
    for run in runs:
        pair = number.get((run.block.name, run.micro_batch))
        if pair is not None:
            span = max(*spans[pair], ceil(share * sum(spans[pair])))
            run = replace(run, pair=pair, block=msgspec.structs.replace(run.block, span=span))
        found.append(run)
    return found


def _torn_pairs(runs: list[_Run]) -> Iterator[str]:
    """Both blocks of a pair start together."""
    first: dict[int, _Run] = {}
    for run in runs:
        if run.pair is not None and first.setdefault(run.pair, run).start != run.start:
            other = first[run.pair]
            yield f"{other} and {run} run together, and start at {other.start} and {run.start}"


def _wrong_counts(schedule: Schedule, runs: list[_Run]) -> Iterator[str]:
    """Each micro-batch runs each block once, and exactly one option of each choice."""
    placement = schedule.placement
    count = Counter((run.block.name, run.micro_batch) for run in runs)
    for (name, micro_batch), times in count.items():
        if times > 1:
            yield f"{name} of micro-batch {micro_batch} starts {times} times"
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    for micro_batch in range(schedule.micro_batches):
        for block in placement.blocks:
            if block.name not in optional and not count[block.name, micro_batch]:
                yield f"{block.name} of micro-batch {micro_batch} never starts"
        for choice in placement.choices:
            started = {name for option in choice.options for name in option if count[name, micro_batch]}
            if all(started != set(option) for option in choice.options):
                yield (
                    f"micro-batch {micro_batch} runs {sorted(started)} of choice {choice.name}, "
                    "which is not exactly one option"
                )


def _overlaps(placement: Placement, runs: list[_Run]) -> Iterator[str]:
    """Two blocks overlap when each starts before the other ends; a block of span 0 may stand at an edge."""
    by_device: dict[int, list[_Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.start, run.end)):
        for device in run.block.devices:
            by_device[device].append(run)
    for device, here in sorted(by_device.items()):
        latest: _Run | None = None
        for run in here:
            is_pair = latest is not None and latest.pair is not None and latest.pair == run.pair
            if latest is not None and run.start < latest.end and not is_pair:
                yield f"{latest} and {run} overlap on device {device} at step {run.start}"
            if latest is None or run.end >= latest.end:
                latest = run


def _broken_edges(schedule: Schedule, runs: list[_Run]) -> Iterator[str]:
    batch = schedule.classes
    start_of: dict[str, dict[int, _Run]] = defaultdict(dict)
    for run in runs:
        start_of[run.block.name][run.micro_batch] = run
    for place, edge in enumerate(schedule.placement.edges):
        targets = start_of[edge.target]
        for micro_batch, source in start_of[edge.source].items():
            lag = edge.lag if batch is None else batch.classes[batch.sequence[micro_batch]].lags[place]
            target = targets.get(micro_batch)
            if target is not None and target.start < source.end + lag:
                yield (
                    f"{target} starts at step {target.start}, but {edge.source} ends at {source.end}"
                    + (f" and its lag is {lag}" if lag else "")
                )


def _memory_violations(schedule: Schedule, runs: list[_Run]) -> Iterator[str]:
    peaks = _peaks(schedule.placement, runs)
    if schedule.peak_memory != peaks:
        yield f"it says peak_memory {shown(list(schedule.peak_memory))}, its starts give {shown(list(peaks))}"
    if schedule.memory is None:
        return
    for device, (peak, limit) in enumerate(zip(peaks, schedule.memory, strict=True)):
        if peak > limit:
            yield f"device {device} holds {peak} units, its limit is {limit}"


def _peaks(placement: Placement, runs: list[_Run]) -> tuple[int, ...]:
    change: list[Counter[int]] = [Counter() for _ in range(placement.devices)]
    for run in runs:
        for device in run.block.devices:
            # What a pair frees is held to its end.
            is_late = run.pair is not None and run.block.memory < 0
            change[device][run.end if is_late else run.start] += run.block.memory
    peaks = []
    for by_step in change:
        held = peak = 0
        for step in sorted(by_step):
            held += by_step[step]
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def _wrong_figures(schedule: Schedule, runs: list[_Run]) -> Iterator[str]:
    makespan = max((run.end for run in runs), default=0)
    if schedule.makespan != makespan:
        yield f"it says makespan {schedule.makespan}, its last block ends at {makespan}"
    if schedule.lower_bound > makespan:
        yield f"it says lower_bound {schedule.lower_bound}, but its own makespan {makespan} is less"
    alone = [run for run in runs if run.pair is None]
    together = {run.pair: run for run in runs if run.pair is not None}
    busy = sum(run.block.span * len(run.block.devices) for run in (*alone, *together.values()))
    capacity = schedule.placement.devices * makespan
    bubble_ratio = (capacity - busy) / capacity if capacity else 0.0
    if abs(schedule.bubble_ratio - bubble_ratio) > BUBBLE_TOLERANCE:
        yield f"it says bubble_ratio {schedule.bubble_ratio:.6f}, its starts give {bubble_ratio:.6f}"


def _repetend_violations(schedule: Schedule, runs: list[_Run]) -> Iterator[str]:
    """Inside the window, what starts at t starts again at t + period, a period's micro-batches later."""
    repetend = schedule.repetend
    if repetend is None:
        return
    if not _is_sane(repetend, schedule.makespan):
        yield (
            f"its repetend runs from {repetend.start} to {repetend.end} with period {repetend.period}, "
            f"{repetend.micro_batches} micro-batches and lower_bound {repetend.lower_bound}, which cannot be"
        )
        return
    inside = {
        (run.start, run.block.name, run.micro_batch)
        for run in runs
        if repetend.start <= run.start < repetend.end
    }
    for start, name, micro_batch in sorted(inside):
        later = (start + repetend.period, name, micro_batch + repetend.micro_batches)
        earlier = (start - repetend.period, name, micro_batch - repetend.micro_batches)
        if later[0] < repetend.end and later not in inside:
            yield f"its repetend does not repeat: {name} starts at {start}, but not at {later[0]}"
        if earlier[0] >= repetend.start and earlier not in inside:
            yield f"its repetend does not repeat: {name} starts at {start}, but not at {earlier[0]}"
    yield from _wrong_repetend_counts(schedule.placement, repetend, inside)


def _is_sane(repetend: Repetend, makespan: int) -> bool:
    return (
        repetend.period >= 1
        and repetend.micro_batches >= 1
        and repetend.lower_bound <= repetend.period
        and repetend.start >= 0
        and repetend.start + repetend.period <= repetend.end <= makespan
    )


def _wrong_repetend_counts(
    placement: Placement, repetend: Repetend, inside: set[tuple[int, str, int]]
) -> Iterator[str]:
    """In one period, each block starts as often as there are micro-batches in it."""
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    started = Counter(name for start, name, _ in inside if start < repetend.start + repetend.period)
    for block in placement.blocks:
        if block.name not in optional and started[block.name] != repetend.micro_batches:
            yield (
                f"{block.name} starts {started[block.name]} times in the first period of the repetend, "
                f"which has {repetend.micro_batches} micro-batches"
            )
