"""Schedules that repeat one building block: equal costs, a V of two chunks per device, a chosen life span.

A building block says when each device makes the four passes of one micro-batch, in slots of one pass: forward
down the first chunk and up the second (F, f), backward down the second and up the first (b, B). A micro-batch
enters every six slots, so a device makes its four passes and two weight halves in each six. The shorter the
block, the less is held; how many slots each hop takes in each phase decides its length.

    device 0   F . . . . . . f b . . . . . . B        v-min on four devices: one slot a hop in all phases
    device 1   . F . . . . f . . b . . . . B .
    device 2   . . F . . f . . . . b . . B . .
    device 3   . . . F f . . . . . . b B . . .

Repeated blocks leave holes while the pipeline fills and drains. They are closed in three moves, none of which
raises the most that any device holds: what lies before the first B or after the last F of device 0 moves to
the earliest hole it may run in; every device then runs as early as its order allows; then the backwards that
drain the pipeline move once more, as long as enough holes are left for weight halves, which fill them. Only
the order that results is kept: costs and hops are those of the placement.

Source: Qi et al., Pipeline Parallelism with Controllable Memory (NeurIPS 2024), section 3, and the authors'
program for the holes. Here a backward frees half of the activations and its weight half the rest.
Checked in tests/tessel/handwritten/test_formulas.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.handwritten.construction.chains import why_no_split_v
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import BackwardInput, BackwardWeight, Forward, Instruction

PERIOD = 6
"""Slots between two micro-batches: the work of one on one device."""

Slots = tuple[int, int, int, int]
"""The slots of one micro-batch's passes on one device: F, f, b, B."""


def building_block_rule(
    name: str, building_block: Callable[[int], Sequence[Slots]], *, includes: tuple[StreamRule, ...] = ()
) -> StreamRule:
    """Return the rule that repeats a building block, for a V whose backwards are split.

    Args:
        building_block: returns the slots of the first micro-batch, one entry per device, for so many devices.
        includes: weaker rules of its family.
    """

    def streams(pipeline: Pipeline, micro_batches: int) -> Streams:
        block = building_block(len(pipeline.stages) // 2)
        return pipeline.on_devices(building_block_streams(block, micro_batches))

    return StreamRule(
        name=name,
        applies=why_no_split_v,
        streams=streams,
        includes=includes,
        is_linear=False,
    )


def building_block_streams(block: Sequence[Slots], micro_batches: int) -> tuple[tuple[Instruction, ...], ...]:
    """Return the instructions of each device for a building block.

    Args:
        block: slots of the first micro-batch, one entry per device; per device distinct modulo the period.
        micro_batches: how many are run, >= 1.
    """
    grid = [_place_weights(_repeat(slots, micro_batches)) for slots in block]
    limit = max(int(_held(device).max()) for device in grid)
    _fill_holes(grid, micro_batches, limit)
    _run_early(grid)
    grid = [_without_weights(device) for device in grid]
    _drain_early(grid, micro_batches)
    grid = [_place_weights(device) for device in grid]
    _run_early(grid)
    grid = [_place_weights(_without_weights(device)) for device in grid]
    return tuple(
        tuple(_instruction(work, device, len(block)) for work in _by_slot(slots))
        for device, slots in enumerate(grid)
    )


class _Pass(enum.IntEnum):
    """What a device does with a micro-batch."""

    FORWARD_DOWN = 0
    FORWARD_UP = 1
    BACKWARD_DOWN = 2
    BACKWARD_UP = 3
    WEIGHT_DOWN = 4
    WEIGHT_UP = 5


_FORWARD = frozenset((_Pass.FORWARD_DOWN, _Pass.FORWARD_UP))
_DOWN = frozenset((_Pass.FORWARD_DOWN, _Pass.BACKWARD_DOWN))
_WEIGHT_OF = {_Pass.BACKWARD_DOWN: _Pass.WEIGHT_DOWN, _Pass.BACKWARD_UP: _Pass.WEIGHT_UP}
_BACKWARD_OF = {weight: backward for backward, weight in _WEIGHT_OF.items()}


class _Work(NamedTuple):
    """A pass of a micro-batch."""

    kind: _Pass
    micro_batch: int


_Device = dict[_Work, int]
"""The slot of each piece of work on one device."""


def _repeat(slots: Slots, micro_batches: int) -> _Device:
    return {
        _Work(kind, micro_batch): slot + PERIOD * micro_batch
        for micro_batch in range(micro_batches)
        for kind, slot in zip(_Pass, slots, strict=False)  # the weight halves have no slots yet
    }


def _by_slot(device: _Device) -> list[_Work]:
    return sorted(device, key=device.__getitem__)


def _without_weights(device: _Device) -> _Device:
    return {work: slot for work, slot in device.items() if work.kind not in _BACKWARD_OF}


def _place_weights(device: _Device) -> _Device:
    """Put every weight half into the first free slot after its backward, those of the second chunk first."""
    taken = {slot: work for work, slot in device.items()}
    placed = dict(device)
    waiting: dict[_Pass, list[_Work]] = {kind: [] for kind in _WEIGHT_OF}
    for slot in range(max(taken) + 1 + 2 * len(device)):
        work = taken.get(slot)
        if work is None:
            queue = next((queue for queue in waiting.values() if queue), None)
            if queue:
                placed[queue.pop(0)] = slot
        elif work.kind in _WEIGHT_OF:
            waiting[work.kind].append(_Work(_WEIGHT_OF[work.kind], work.micro_batch))
    return placed


def _change(kind: _Pass) -> int:
    """Half-activations that a pass adds."""
    return 2 if kind in _FORWARD else -1


def _held(device: _Device) -> npt.NDArray[np.int64]:
    """Half-activations held after each slot."""
    changes = np.zeros(max(device.values()) + 1, dtype=np.int64)
    for work, slot in device.items():
        changes[slot] = _change(work.kind)
    return np.cumsum(changes)


def _fill_holes(grid: list[_Device], micro_batches: int, limit: int) -> None:
    """Move work into earlier holes, in order of time, while the pipeline fills and while it drains.

    The steady part between is left as it is: from the first B of device 0 to its last F.
    """
    steady_from = grid[0][_Work(_Pass.BACKWARD_UP, 0)]
    steady_to = grid[0][_Work(_Pass.FORWARD_DOWN, micro_batches - 1)]
    held = [_held(device) for device in grid]
    taken = [set(device.values()) for device in grid]
    everything = sorted(
        (slot, index, work) for index, device in enumerate(grid) for work, slot in device.items()
    )
    for slot, index, work in everything:
        if steady_from <= slot <= max(steady_from, steady_to):
            continue
        change = _change(work.kind)
        for hole in range(_earliest(grid, index, work), slot):
            if hole in taken[index] or (change > 0 and held[index][hole:slot].max() + change > limit):
                continue
            held[index][hole:slot] += change
            taken[index].remove(slot)
            taken[index].add(hole)
            grid[index][work] = hole
            break


def _drain_early(grid: list[_Device], micro_batches: int) -> None:
    """Move backwards into earlier holes while the pipeline drains.

    A hole that a backward takes is lost to a weight half, which then holds its activation for longer: moves
    that raise the peak are left out.
    """
    slots = 1 + max(slot for device in grid for slot in device.values())
    changes = [_changes(device, slots) for device in grid]
    limit = max(_peak_until_weights(each) for each in changes)
    begin = max(grid[0][_Work(_Pass.BACKWARD_UP, 0)], grid[0][_Work(_Pass.FORWARD_DOWN, micro_batches - 1)])
    everything = sorted(
        (slot, index, work)
        for index, device in enumerate(grid)
        for work, slot in device.items()
        if slot > begin
    )
    for slot, index, work in everything:
        change = changes[index]
        kind = change[slot]
        for hole in range(_earliest(grid, index, work), slot):
            if change[hole]:
                continue
            change[hole], change[slot] = kind, 0
            if _peak_until_weights(change) <= limit:
                grid[index][work] = hole
                break
            change[hole], change[slot] = 0, kind


def _changes(device: _Device, slots: int) -> npt.NDArray[np.int64]:
    """Return 1 for each slot with a forward, -1 for each with a backward, 0 for the holes."""
    changes = np.zeros(slots, dtype=np.int64)
    for work, slot in device.items():
        changes[slot] = 1 if work.kind in _FORWARD else -1
    return changes


def _peak_until_weights(changes: npt.NDArray[np.int64]) -> int:
    """Most activations held at once if each is until a weight half runs, which they do in every free slot.

    Halves that wait are a queue whose servers are the holes: what arrived and what could be served, less the
    lowest that the difference ever was (Lindley 1952).
    """
    arrived = np.cumsum(changes < 0)
    surplus = arrived - np.cumsum(changes == 0)
    waiting = surplus - np.minimum(np.minimum.accumulate(surplus), 0)
    return int((np.cumsum(changes > 0) - (arrived - waiting)).max())


def _run_early(grid: list[_Device]) -> None:
    """Start everything in the first slot that the devices' orders allow."""
    everything = sorted(
        (slot, index, work) for index, device in enumerate(grid) for work, slot in device.items()
    )
    free = [0] * len(grid)
    for _, index, work in everything:
        slot = max(free[index], _earliest(grid, index, work))
        grid[index][work] = slot
        free[index] = slot + 1


def _earliest(grid: Sequence[_Device], index: int, work: _Work) -> int:
    """The slot after everything that the work waits for; each kind takes its micro-batches in order."""
    kind, micro_batch = work
    neighbour = index - 1 if kind in _DOWN else index + 1
    waits = []
    if kind in _BACKWARD_OF:
        waits.append(grid[index][_Work(_BACKWARD_OF[kind], micro_batch)])
    else:
        if 0 <= neighbour < len(grid):
            waits.append(grid[neighbour][work])
        if kind > 0:
            waits.append(grid[index][_Work(_Pass(kind - 1), micro_batch)])
    if micro_batch:
        waits.append(grid[index][_Work(kind, micro_batch - 1)])
    return max(waits, default=-1) + 1


def _instruction(work: _Work, device: int, num_devices: int) -> Instruction:
    first, second = device, 2 * num_devices - 1 - device
    match work.kind:
        case _Pass.FORWARD_DOWN:
            return Forward(first, work.micro_batch)
        case _Pass.FORWARD_UP:
            return Forward(second, work.micro_batch)
        case _Pass.BACKWARD_DOWN:
            return BackwardInput(second, work.micro_batch)
        case _Pass.BACKWARD_UP:
            return BackwardInput(first, work.micro_batch)
        case _Pass.WEIGHT_DOWN:
            return BackwardWeight(second, work.micro_batch)
        case _Pass.WEIGHT_UP:
            return BackwardWeight(first, work.micro_batch)
