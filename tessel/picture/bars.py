"""What a picture of a schedule shows, before anything is drawn: bars, idle time, memory over time.

Pure functions from a schedule to plain data. Every drawing (matplotlib, the page, the trace, the terminal)
starts from these, and tests look at these. Times are schedule steps.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

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
class MemoryCurve:
    """Units held by one device over time: `units[i]` from `steps[i]` until the next step."""

    device: int
    steps: tuple[int, ...]
    units: tuple[int, ...]


def bars_of(schedule: Schedule) -> tuple[Bar, ...]:
    """Return one bar a block and device, ordered by device, then start."""
    placement = schedule.placement
    bars = []
    for start in schedule.starts:
        block = placement.block(start.block)
        bars += [
            Bar(
                device=device,
                start=start.start,
                end=start.start + block.span,
                block=block.name,
                kind=block.kind,
                micro_batch=start.micro_batch,
                phase=_phase(schedule, start.start),
            )
            for device in block.devices
        ]
    return tuple(sorted(bars, key=lambda bar: (bar.device, bar.start, bar.end, bar.micro_batch)))


def idle_steps(schedule: Schedule) -> tuple[int, ...]:
    """Return for each device the steps of the makespan in which it runs nothing."""
    busy = [0] * schedule.placement.devices
    for bar in bars_of(schedule):
        busy[bar.device] += bar.end - bar.start
    return tuple(schedule.makespan - steps for steps in busy)


def memory_curves(schedule: Schedule) -> tuple[MemoryCurve, ...]:
    """Return the units each device holds over time, from step 0 to the makespan."""
    changes: list[dict[int, int]] = [{0: 0, schedule.makespan: 0} for _ in range(schedule.placement.devices)]
    for start in schedule.starts:
        block = schedule.placement.block(start.block)
        for device in block.devices:
            changes[device][start.start] = changes[device].get(start.start, 0) + block.memory
    return tuple(_curve(device, change) for device, change in enumerate(changes))


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


def merge_adjacent(bars: Sequence[Bar], min_length: float) -> tuple[tuple[int, int, int, BlockKind], ...]:
    """Return (device, start, end, kind) runs in which bars too short to be seen are joined with neighbours.

    Args:
        bars: bars ordered by device, then start.
        min_length: steps below which two neighbours of one kind are drawn as one.
    """
    runs: list[tuple[int, int, int, BlockKind]] = []
    for bar in bars:
        if runs:
            device, start, end, kind = runs[-1]
            touches = device == bar.device and kind is bar.kind and bar.start - end < min_length
            if touches and (bar.end - bar.start < min_length or end - start < min_length):
                runs[-1] = (device, start, max(end, bar.end), kind)
                continue
        runs.append((bar.device, bar.start, bar.end, bar.kind))
    return tuple(runs)
