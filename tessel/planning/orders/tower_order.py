"""Tower blocks of each micro-batch put into the idle time of an order of the language model's blocks.

First all blocks of the language model are moved later by one forward of the tower, and micro-batch after
micro-batch is given the device whose idle time holds its forward before its first stage's, and its backward
behind that's, with the least delay. Then micro-batches are moved, one at a time, to other devices and other
places in their orders, as long as the last block ends earlier, or others start earlier and it does not end
later. Memory is looked at in every order; where the first one breaks it, forwards are allowed less far ahead.
A move takes O(devices × tasks). Checked in tests/tessel/planning/test_towers.py against CP-SAT.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tessel.planning.costs.training_step import TrainingStep
from tessel.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.jit.compiled import compiled
from tessel.search.makespan.option_search import start_in_sequence
from tessel.search.model.instance import Instance, InstanceArrays, IntArray

OPERATIONS_A_VISIT = 20
"""Charged for each task of an order that is timed."""

ANCHORS = np.array([0, 1, 2, 3, 5, 8, 13, 21, 34, 55], dtype=np.int64)
"""Blocks of a device that a tower's block is put ahead of, or behind, beyond its own micro-batch's."""

FOUND_BY = "tower in bubbles"


def with_tower(step: TrainingStep, instance: Instance, language: Schedule) -> Schedule | None:
    """Return an order of all blocks; None where none that was tried keeps the limits.

    Args:
        step: with a tower in bubbles.
        instance: of its placement, micro-batches and limits.
        language: an order of the same stages without the tower, in steps of the same length.
    """
    arrays, devices = instance.arrays, instance.arrays.num_devices
    for ahead in (step.micro_batches, 2 * devices, devices, 1):
        sequence = _first_sequence(step, language, ahead)
        start = np.full(instance.num_tasks, -1, dtype=np.int64)
        if start_in_sequence(arrays, sequence, _options(arrays, sequence), start):
            return _schedule(step, instance, start)
    return None


def with_tower_moved(
    step: TrainingStep, instance: Instance, schedule: Schedule, budget: SearchBudget
) -> Schedule:
    """Return the order after moves of one micro-batch's tower at a time, until none helps.

    Args:
        step: with a tower in bubbles.
        instance: as `with_tower` takes it.
        schedule: of its blocks.
        budget: is charged, and ends it.
    """
    arrays, blocks = instance.arrays, step.placement.index_by_name
    copies = range(arrays.num_devices)
    towers = np.array([[blocks[f"t{copy}"], blocks[f"t{copy}_back"]] for copy in copies], dtype=np.int64)
    ends = np.array([blocks["f0"], blocks.get("b0", -1), blocks.get("b0_input", -1)], dtype=np.int64)
    start = np.full(instance.num_tasks, -1, dtype=np.int64)
    tasks = [(each.micro_batch * arrays.num_blocks + blocks[each.block]) for each in schedule.starts]
    sequence = np.array(tasks, dtype=np.int64)
    options = _options(arrays, sequence)
    start_in_sequence(arrays, sequence, options, start)
    micro_batch, failed = 0, 0
    while failed < step.micro_batches and not budget.is_over:
        sequence, is_better, visited = _moved(arrays, sequence, options, start, towers, ends, micro_batch)
        budget.charge(visited * OPERATIONS_A_VISIT)
        failed = 0 if is_better else failed + 1
        micro_batch = (micro_batch + 1) % step.micro_batches
    return _schedule(step, instance, start)


def _schedule(step: TrainingStep, instance: Instance, start: IntArray) -> Schedule:
    arrays, found = instance.arrays, np.flatnonzero(start >= 0)
    return Schedule.of_tasks(
        step.placement,
        found % arrays.num_blocks,
        found // arrays.num_blocks,
        start[found],
        micro_batches=step.micro_batches,
        memory=step.limits,
        found_by=FOUND_BY,
    )


def _options(arrays: InstanceArrays, sequence: IntArray) -> IntArray:
    """Return the option by choice and micro-batch that the tasks of an order are of."""
    options = np.zeros((len(arrays.default_option), arrays.micro_batches), dtype=np.int64)
    block = sequence % arrays.num_blocks
    is_chosen = arrays.choice[block] >= 0
    chosen = block[is_chosen]
    options[arrays.choice[chosen], sequence[is_chosen] // arrays.num_blocks] = arrays.option[chosen]
    return options


def _first_sequence(step: TrainingStep, language: Schedule, ahead: int) -> IntArray:
    """Return all tasks in an order: the language model's, and the tower's where devices are idle.

    Args:
        step: with a tower in bubbles.
        language: an order without the tower.
        ahead: micro-batches by which a tower's forward may come before its first stage's.
    """
    placement, num_blocks = step.placement, len(step.placement.blocks)
    index = placement.index_by_name
    forward, back = placement.block("t0").span, placement.block("t0_back").span
    lags = {edge.source: edge.lag for edge in placement.edges if edge.target == "f0"}
    ready, gone = {}, {}
    busy: list[list[tuple[int, int]]] = [[] for _ in range(placement.devices)]
    placed = []
    for number, start in enumerate(language.starts):
        block, when = placement.block(start.block), start.start + forward
        for device in block.devices:
            busy[device].append((when, when + block.span))
        if start.block == "f0":
            ready[start.micro_batch] = when
        elif start.block in ("b0", "b0_input"):
            gone[start.micro_batch] = when + block.span
        placed.append((when, 1, number, start.micro_batch * num_blocks + index[start.block]))
    for row in busy:
        row.sort()
    end = language.makespan + forward
    turns = sorted(ready, key=ready.__getitem__)
    for turn, micro_batch in enumerate(turns):
        earliest = ready[turns[turn - ahead]] if turn >= ahead else 0
        latest, found = ready[micro_batch], []
        for device, row in enumerate(busy):
            lag = lags[f"t{device}"]
            at = _first_gap(row, forward, earliest)
            behind = _first_gap(row, back, gone[micro_batch] + lag)
            late = max(0, at + forward + lag - latest) + max(0, behind + back - end)
            found.append((late, behind, at, device))
        _, behind, at, device = min(found)
        insort(busy[device], (at, at + forward))
        insort(busy[device], (behind, behind + back))
        first = micro_batch * num_blocks
        placed.append((min(at, latest), 0, turn, first + index[f"t{device}"]))
        placed.append((behind, 2, turn, first + index[f"t{device}_back"]))
    return np.array([task for *_, task in sorted(placed)], dtype=np.int64)


def _first_gap(row: Sequence[tuple[int, int]], span: int, earliest: int) -> int:
    """Return the first step from which a device is idle for so long."""
    for (_, before), (after, _) in pairwise(((0, 0), *row, (math.inf, math.inf))):
        at = max(earliest, before)
        if at + span <= after:
            return int(at)
    raise AssertionError("a device is idle after its last block")


@compiled
def _moved(
    arrays: InstanceArrays,
    sequence: IntArray,
    options: IntArray,
    start: IntArray,
    towers: IntArray,
    ends: IntArray,
    micro_batch: int,
) -> tuple[IntArray, bool, int]:
    """Move a micro-batch's tower to the best device and places.

    Args:
        arrays: of the instance.
        sequence: all tasks by start.
        options: option by choice and micro-batch; changed.
        start: by task; changed.
        towers: forward and backward of the tower by device.
        ends: the first stage's forward, its joint backward and the input half of that, -1 for none.
        micro_batch: whose tower.

    Returns:
        The order of the tasks, whether it got better, and the tasks visited.
    """
    size = len(sequence)
    makespan, total = _lengths(arrays, sequence, start)
    visited, first = 0, micro_batch * arrays.num_blocks
    rest = np.empty(size - 2, dtype=np.int64)
    place, ahead, behind = 0, 0, 0
    for task in sequence:
        block = task - first
        if 0 <= block < arrays.num_blocks:
            if _is_tower(towers, block):
                continue
            if block == ends[0]:
                ahead = place
            elif block == ends[1] or block == ends[2]:
                behind = place + 1
        rest[place] = task
        place += 1
    best, best_start, best_device = sequence, start.copy(), -1
    trial_start, trial_options = start.copy(), options.copy()
    for device in range(arrays.num_devices):
        own = first + towers[device, 0], first + towers[device, 1]
        if arrays.choice[towers[device, 0]] >= 0:
            trial_options[arrays.choice[towers[device, 0]], micro_batch] = device
        low = ahead
        for side in range(2):
            for number in ANCHORS:
                at = _anchor(arrays, rest, device, ahead, -1, number) if side == 0 else low
                to = _anchor(arrays, rest, device, behind, 1, number) if side == 1 else behind
                if at < 0 or to < 0:
                    break
                trial = np.concatenate(
                    (rest[:at], np.array([own[0]]), rest[at:to], np.array([own[1]]), rest[to:])
                )
                trial_start[:] = -1
                visited += size
                if not start_in_sequence(arrays, trial, trial_options, trial_start):
                    continue
                found, found_total = _lengths(arrays, trial, trial_start)
                if found < makespan or (found == makespan and found_total < total):
                    makespan, total, best, best_device = found, found_total, trial, device
                    best_start[:] = trial_start
                    low = at
    if best_device < 0:
        return sequence, False, visited
    start[:] = best_start
    if arrays.choice[towers[best_device, 0]] >= 0:
        options[arrays.choice[towers[best_device, 0]], micro_batch] = best_device
    return best[np.argsort(start[best], kind="mergesort")], True, visited


@compiled
def _is_tower(towers: IntArray, block: int) -> bool:
    return bool(np.any(towers == block))


@compiled
def _anchor(arrays: InstanceArrays, tasks: IntArray, device: int, place: int, step: int, number: int) -> int:
    """Return the place ahead of (step -1) or behind (1) so many further tasks of a device; -1 for none."""
    if number == 0:
        return place
    at = place - 1 if step < 0 else place
    while 0 <= at < len(tasks):
        block = tasks[at] % arrays.num_blocks
        for held in range(arrays.device_start[block], arrays.device_start[block + 1]):
            if arrays.device[held] == device:
                number -= 1
        if number == 0:
            return at if step < 0 else at + 1
        at += step
    return -1


@compiled
def _lengths(arrays: InstanceArrays, sequence: IntArray, start: IntArray) -> tuple[int, int]:
    """Return the last end, and the sum of all starts."""
    end, total = 0, 0
    for task in sequence:
        end = max(end, start[task] + arrays.span[task % arrays.num_blocks])
        total += start[task]
    return end, total
