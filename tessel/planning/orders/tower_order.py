"""Tower blocks of each micro-batch put into the idle time of an order of the language model's blocks.

All blocks of the language model are moved later by one forward of the tower, and micro-batch after
micro-batch is given the device whose idle time holds its forward before its first stage's, and its backward
behind that's, with the least delay. Where that breaks a limit of memory, forwards are allowed less far ahead.
It is a beginning: `tessel.find_schedule` moves blocks of all kinds, and has other devices run the tower's.
O(micro-batches × devices). Checked in tests/tessel/planning/test_towers.py.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import islice

import numpy as np

from tessel.planning.costs.training_step import TrainingStep
from tessel.schedule import Schedule
from tessel.search.makespan.option_search import start_in_sequence
from tessel.search.model.instance import Instance, InstanceArrays, IntArray

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
    known = [(0, 0, 0) for _ in busy]
    turns = sorted(ready, key=ready.__getitem__)
    for turn, micro_batch in enumerate(turns):
        earliest = ready[turns[turn - ahead]] if turn >= ahead else 0
        latest, found = ready[micro_batch], []
        for device, row in enumerate(busy):
            lag = lags[f"t{device}"]
            at = _first_gap(row, forward, max(earliest, known[device][0]))
            release = gone[micro_batch] + lag
            behind = _first_gap(row, back, max(release, known[device][1] * (release >= known[device][2])))
            # Gaps only shrink: none of those before holds a later block of the same length.
            known[device] = (at, behind, release)
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
    place = bisect_right(row, (earliest, math.inf))
    at = max(earliest, row[place - 1][1]) if place else earliest
    for begin, end in islice(row, place, None):
        if at + span <= begin:
            break
        at = max(at, end)
    return at
