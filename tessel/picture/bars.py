"""The data behind a picture of a schedule: bars, idle time, memory over time.

Pure functions from a schedule to plain data. Every drawing (matplotlib, the page, the trace, the terminal)
starts from these, and tests examine these. Times are schedule steps.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tessel.dag import Dag
from tessel.orders import Task
from tessel.placement import BlockKind
from tessel.schedule import Schedule


class Phase(enum.StrEnum):
    """The part of a schedule that a bar belongs to."""

    WARM_UP = "warm-up"
    REPETEND = "repetend"
    COOL_DOWN = "cool-down"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One block of one micro-batch on one device.

    Attributes:
        device: row.
        start: first step.
        end: first step after it.
        block: the block's name.
        kind: what it does.
        micro_batch: its micro-batch.
        phase: where it lies relative to the repeating part; `none` where nothing repeats.
    """

    device: int
    start: int
    end: int
    block: str
    kind: BlockKind
    micro_batch: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Box:
    """A block on adjacent devices, drawn as one: on the rows from `bar.device` to `last_device`.

        device 0   ┌──┐
        device 1   │ 7│      one box of two bars, with one number
                   └──┘

    Attributes:
        bar: the first row's.
        last_device: the last row; `bar.device` where the block is on one device.
        is_first: whether no other box of the same block is above; it carries the number.
    """

    bar: Bar
    last_device: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Units held by one device over time: `units[i]` from `steps[i]` until the next step."""

    device: int
    steps: tuple[int, ...]
    units: tuple[int, ...]


def bars_of(schedule: Schedule) -> tuple[Bar, ...]:
    """Return one bar a block and device, ordered by device, then start.

    A pair that runs together has its forward and its backward one behind the other, each with its part.
    """
    index = schedule.placement.index_by_name
    together = _parts_of_pairs(schedule)
    bars = []
    for start in schedule.starts:
        block = schedule.placement.block(start.block)
        task = index[start.block], start.micro_batch
        offset, span = together.get(task, (0, schedule.span_of(*task)))
        bars += [
            Bar(
                device=device,
                start=start.start + offset,
                end=start.start + offset + span,
                block=block.name,
                kind=block.kind,
                micro_batch=start.micro_batch,
                phase=_phase(schedule, start.start),
            )
            for device in block.devices
        ]
    return tuple(sorted(bars, key=lambda bar: (bar.device, bar.start, bar.end, bar.micro_batch)))


def _parts_of_pairs(schedule: Schedule) -> dict[tuple[int, int], tuple[int, int]]:
    """Return where in its pair each block is drawn, and how long."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    spans = schedule.pair_spans()
    for forward, backward in schedule.pairs:
        own = [schedule.span_of(*task) for task in (forward, backward)]
        first = round(spans[forward] * own[0] / sum(own)) if sum(own) else 0
        found[forward], found[backward] = (0, first), (first, spans[forward] - first)
    return found


def boxes_of(schedule: Schedule) -> tuple[Box, ...]:
    """Return one box for each block and run of adjacent devices, in the order of `bars_of`."""
    boxes = []
    for bar in bars_of(schedule):
        devices = schedule.placement.block(bar.block).devices
        if bar.device - 1 in devices:
            continue
        last = bar.device
        while last + 1 in devices:
            last += 1
        boxes.append(Box(bar, last, is_first=bar.device == devices[0]))
    return tuple(boxes)


def idle_steps(schedule: Schedule) -> tuple[int, ...]:
    """Return for each device the steps of the makespan in which it runs nothing."""
    busy = [0] * schedule.placement.devices
    for bar in bars_of(schedule):
        busy[bar.device] += bar.end - bar.start
    return tuple(schedule.makespan - steps for steps in busy)


def memory_curves(schedule: Schedule) -> tuple[MemoryCurve, ...]:
    """Return the units each device holds over time, from step 0 to the makespan."""
    changes: list[dict[int, int]] = [{0: 0, schedule.makespan: 0} for _ in range(schedule.placement.devices)]
    index = schedule.placement.index_by_name
    spans = schedule.pair_spans()
    for start in schedule.starts:
        task = Task(index[start.block], start.micro_batch)
        units = schedule.memory_of(*task)
        when = start.start + (spans.get(task, 0) if units < 0 else 0)
        for device in schedule.placement.block(start.block).devices:
            changes[device][when] = changes[device].get(when, 0) + units
    return tuple(_curve(device, change) for device, change in enumerate(changes))


def critical_bars(schedule: Schedule) -> tuple[Bar, ...]:
    """Return the bars of the schedule's critical path, in order of time, one per block.

    They stand where the schedule has them, which is later than they could be if it waits where it need not.
    Of a block on several devices the bar is on the one nearest to the bar before.
    """
    placement = schedule.placement
    starts = schedule.start_by_block()
    path: list[Bar] = []
    for task in Dag.of_schedule(schedule).critical_path():
        block = placement.blocks[task.block_index]
        start = starts[task.block_index, task.micro_batch]
        row = path[-1].device if path else 0
        path.append(
            Bar(
                device=min(block.devices, key=lambda device: (abs(device - row), device)),
                start=start,
                end=start + task.duration,
                block=block.name,
                kind=block.kind,
                micro_batch=task.micro_batch,
                phase=_phase(schedule, start),
            )
        )
    return tuple(path)


def _curve(device: int, change: dict[int, int]) -> MemoryCurve:
    steps, units, held = sorted(change), [], 0
    for step in steps:
        held += change[step]
        units.append(held)
    return MemoryCurve(device, tuple(steps), tuple(units))


def _phase(schedule: Schedule, start: int) -> Phase:
    if schedule.repetend is None:
        return Phase.NONE
    if start < schedule.repetend.start:
        return Phase.WARM_UP
    return Phase.REPETEND if start < schedule.repetend.end else Phase.COOL_DOWN


def names_of(schedule: Schedule, device_names: Sequence[str] | None) -> Sequence[str]:
    """Return what each device is called: as given, or by its number.

    Raises:
        ValueError: the names are not one a device.
    """
    devices = schedule.placement.devices
    if device_names is None:
        return [str(device) for device in range(devices)]
    if len(device_names) != devices:
        raise ValueError(f"{len(device_names)} names are given for {devices} devices; give one each")
    return device_names
