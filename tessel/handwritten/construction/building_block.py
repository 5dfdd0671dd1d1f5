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
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tessel.handwritten.construction.chains import why_no_split_v
from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.instruction import BackwardInput, BackwardWeight, Forward

PERIOD = 6
"""Slots between two micro-batches: the work of one on one device."""

WRITTEN_A_DEVICE = 3
"""Micro-batches a device that are written; of more, a period in their midst is repeated. From two on nothing
else changes (tests/tessel/handwritten/construction/test_building_block.py)."""

Slots = tuple[int, int, int, int]
"""The slots of one micro-batch's passes on one device: F, f, b, B."""

_IntArray = npt.NDArray[np.int64]

_Device = list[list[int]]
"""The slots of each pass of one device, by micro-batch."""


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
    )


def building_block_streams(block: Sequence[Slots], micro_batches: int) -> tuple[Columns, ...]:
    """Return the instructions of each device for a building block.

    Of many micro-batches the steady part is written once and repeated.

    Args:
        block: slots of the first micro-batch, one entry per device; per device distinct modulo the period.
        micro_batches: how many are run, >= 1.
    """
    written = min(micro_batches, WRITTEN_A_DEVICE * len(block) + 2)
    streams = _write(tuple(block), written)
    if written == micro_batches:
        return tuple(streams)
    return tuple(
        each.repeated(*_steady_period(each, device, written // 2), micro_batches - written)
        for device, each in enumerate(streams)
    )


def _steady_period(columns: Columns, stage: int, micro_batch: int) -> tuple[int, int]:
    """Return the places of the forwards of a micro-batch and of the next one on the first chunk."""
    is_forward = (columns.kind == columns.kinds.index(Forward)) & (columns.stage == stage)
    first, after = (
        int(np.flatnonzero(is_forward & (columns.micro_batch == each))[0])
        for each in (micro_batch, micro_batch + 1)
    )
    return first, after


class _Pass(enum.IntEnum):
    """What a device does with a micro-batch."""

    FORWARD_DOWN = 0
    FORWARD_UP = 1
    BACKWARD_DOWN = 2
    BACKWARD_UP = 3
    WEIGHT_DOWN = 4
    WEIGHT_UP = 5


_BACKWARDS, _WEIGHTS = int(_Pass.BACKWARD_DOWN), int(_Pass.WEIGHT_DOWN)
"""The first pass that is a backward, and the first weight half, as many passes after its own backward."""


# Rules are written anew for each layout that has as many devices.
@lru_cache(maxsize=8)
def _write(block: tuple[Slots, ...], micro_batches: int) -> tuple[Columns, ...]:
    """Return the instructions of each device, every one of them placed by itself."""
    numbers = np.arange(micro_batches)
    repeated = np.array(block)[:, :, np.newaxis] + PERIOD * numbers
    grid = list(map(_with_weights, repeated.tolist()))
    _fill_holes(grid, max(int(_held(device).max()) for device in grid))
    _run_early(grid)
    grid = [device[:_WEIGHTS] for device in grid]
    _drain_early(grid)
    grid = list(map(_with_weights, grid))
    _run_early(grid)
    grid = [_with_weights(device[:_WEIGHTS]) for device in grid]
    return tuple(_columns(np.array(slots), device, len(block)) for device, slots in enumerate(grid))


def _columns(slots: _IntArray, device: int, num_devices: int) -> Columns:
    first, second = device, 2 * num_devices - 1 - device
    works = (
        (Forward, first),
        (Forward, second),
        (BackwardInput, second),
        (BackwardInput, first),
        (BackwardWeight, second),
        (BackwardWeight, first),
    )
    numbers = np.arange(slots.shape[1])
    return Columns.by_key(
        *((kind, stage, numbers, own) for (kind, stage), own in zip(works, slots, strict=True))
    )


def _with_weights(device: _Device) -> _Device:
    """Put every weight half into the first free slot after its backward, those of the second chunk first."""
    taken = {slot: (kind, number) for kind, slots in enumerate(device) for number, slot in enumerate(slots)}
    placed = [[-1] * len(slots) for slots in device[_BACKWARDS:]]
    waiting: list[deque[int]] = [deque() for _ in placed]
    slot, last = 0, max(taken)
    while slot <= last or any(waiting):
        kind, number = taken.get(slot, (-1, -1))
        if kind >= _BACKWARDS:
            waiting[kind - _BACKWARDS].append(number)
        elif kind < 0 and any(waiting):
            chunk = 0 if waiting[0] else 1
            placed[chunk][waiting[chunk].popleft()] = slot
        slot += 1
    return [*device, *placed]


def _held(device: _Device) -> _IntArray:
    """Half-activations held after each slot: a forward adds two, each half of a backward frees one."""
    slots = np.array(device)
    changes = np.zeros(slots.max() + 1, dtype=np.int64)
    changes[slots[:_BACKWARDS]] = 2
    changes[slots[_BACKWARDS:]] = -1
    return np.cumsum(changes)


def _in_order(grid: Sequence[_Device]) -> list[list[int]]:
    """Return slot, device, pass and micro-batch of all work, by slot, then by device."""
    slots = np.array(grid)
    order = np.argsort(slots * len(grid) + np.arange(len(grid))[:, np.newaxis, np.newaxis], axis=None)
    found: list[list[int]] = np.stack(
        (slots.ravel()[order], *np.unravel_index(order, slots.shape)), axis=1
    ).tolist()
    return found


def _fill_holes(grid: list[_Device], limit: int) -> None:
    """Move work into earlier holes, in order of time, while the pipeline fills and while it drains.

    The steady part between is left as it is: from the first B of device 0 to its last F.
    """
    steady_from = grid[0][_Pass.BACKWARD_UP][0]
    steady_to = grid[0][_Pass.FORWARD_DOWN][-1]
    held = [_held(device) for device in grid]
    taken = [{slot for slots in device for slot in slots} for device in grid]
    for slot, index, kind, number in _in_order(grid):
        if steady_from <= slot <= max(steady_from, steady_to):
            continue
        change = 2 if kind < _BACKWARDS else -1
        for hole in range(_earliest(grid, index, kind, number), slot):
            if hole in taken[index] or (change > 0 and held[index][hole:slot].max() + change > limit):
                continue
            held[index][hole:slot] += change
            taken[index].remove(slot)
            taken[index].add(hole)
            grid[index][kind][number] = hole
            break


def _drain_early(grid: list[_Device]) -> None:
    """Move backwards into earlier holes while the pipeline drains.

    A hole that a backward takes is lost to a weight half, which then holds its activation for longer: moves
    that raise the peak are left out.
    """
    slots = np.array(grid)
    # By device and slot: 1 for a forward, -1 for a backward, 0 for a hole.
    changes = np.zeros((len(grid), slots.max() + 1), dtype=np.int64)
    devices = np.arange(len(grid))[:, np.newaxis, np.newaxis]
    changes[devices, slots[:, :_BACKWARDS]] = 1
    changes[devices, slots[:, _BACKWARDS:]] = -1
    limit = max(_peak_until_weights(each) for each in changes)
    begin = max(grid[0][_Pass.BACKWARD_UP][0], grid[0][_Pass.FORWARD_DOWN][-1])
    for slot, index, kind, number in _in_order(grid):
        if slot <= begin:
            continue
        own = changes[index]
        change = own[slot]
        for hole in range(_earliest(grid, index, kind, number), slot):
            if own[hole]:
                continue
            own[hole], own[slot] = change, 0
            if _peak_until_weights(own) <= limit:
                grid[index][kind][number] = hole
                break
            own[hole], own[slot] = 0, change


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
    free = [0] * len(grid)
    for _, index, kind, number in _in_order(grid):
        slot = max(free[index], _earliest(grid, index, kind, number))
        grid[index][kind][number] = slot
        free[index] = slot + 1


def _earliest(grid: Sequence[_Device], index: int, kind: int, number: int) -> int:
    """The slot after everything that the work waits for; each kind takes its micro-batches in order."""
    own = grid[index]
    last = own[kind][number - 1] if number else -1
    if kind >= _WEIGHTS:
        return 1 + max(last, own[kind - _WEIGHTS + _BACKWARDS][number])
    # Passes down the devices and up again take turns.
    neighbour = index - 1 if kind % 2 == 0 else index + 1
    if 0 <= neighbour < len(grid):
        last = max(last, grid[neighbour][kind][number])
    return 1 + (max(last, own[kind - 1][number]) if kind else last)
