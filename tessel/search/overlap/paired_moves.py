"""Moves at random places of orders with pairs: neighbours exchanged, paired, taken apart.

Each is timed from the start, O(tasks + edges), and kept where the whole is no longer and keeps the limits.
Checked in tests/tessel/search/overlap/test_find_overlapped.py: what is found is what `paired_starts` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.orders import Orders, Task
from tessel.placement import BlockKind, Placement
from tessel.schedule.overlap import MILLION, Pair
from tessel.search.jit.compiled import compiled
from tessel.search.jit.random_generator import below, next_state
from tessel.search.model.instance import InstanceArrays, IntArray

BoolArray = npt.NDArray[np.bool_]


class PairedOrders(NamedTuple):
    """Orders with pairs, as arrays.

    Attributes:
        task: int64, shape (tasks,), device by device; task `m·B + b` is block b of micro-batch m.
        bounds: int64, shape (devices + 1,), where those of each device begin.
        joined: bool, shape (tasks,), whether a task, a forward, runs together with the next one.
    """

    task: IntArray
    bounds: IntArray
    joined: BoolArray


def as_arrays(orders: Orders, pairs: Iterable[Pair], num_blocks: int) -> PairedOrders:
    """Return orders as arrays, of each pair the forward first."""
    partner = {task: pair for pair in pairs for task in pair}
    tasks: list[Task] = []
    bounds, joined = [0], []
    for order in orders:
        seen: set[Task] = set()
        for task in order:
            if task in seen:
                continue
            unit = partner.get(task, (task,))
            seen.update(unit)
            tasks += unit
            joined += [True, False] if len(unit) == 2 else [False]
        bounds.append(len(tasks))
    numbers = [task.micro_batch * num_blocks + task.block_index for task in tasks]
    return PairedOrders(np.array(numbers), np.array(bounds), np.array(joined))


def as_tasks(found: PairedOrders, num_blocks: int) -> tuple[list[list[Task]], list[Pair]]:
    """Return arrays as orders and pairs."""
    tasks = [Task(number % num_blocks, number // num_blocks) for number in found.task.tolist()]
    pairs = [(tasks[place], tasks[place + 1]) for place in np.flatnonzero(found.joined).tolist()]
    ends = found.bounds.tolist()
    return [tasks[first:after] for first, after in pairwise(ends)], pairs


def kinds_of(placement: Placement) -> IntArray:
    """Return 1 for forwards, 2 for joint backwards, 0 for all other blocks."""
    number = {BlockKind.FORWARD: 1, BlockKind.BACKWARD: 2}
    return np.array([number.get(block.kind, 0) for block in placement.blocks])


def move_at_random(
    found: PairedOrders,
    arrays: InstanceArrays,
    kinds: Sequence[int] | IntArray,
    *,
    factor: float,
    state: int,
    moves: int,
) -> tuple[int, int]:
    """Change orders in place by so many moves, and return their makespan and the state of the random numbers.

    Args:
        found: orders that keep the limits, whose pairs can run together, each block on one device.
        kinds: see `kinds_of`.
        factor: share of its sum that a pair takes.
    """
    makespan, state = _move(found, arrays, np.asarray(kinds), round(factor * MILLION), state, moves)
    return int(makespan), int(state)


@compiled
def _makespan(found: PairedOrders, arrays: InstanceArrays, parts: int, end: IntArray, place: IntArray) -> int:
    """Return the makespan of orders; -1 where they wait for themselves or break a limit.

    Args:
        found: the orders.
        parts: millionths of its sum that a pair takes.
        end: by task, -1 where it is not run and -2 before it is; overwritten.
        place: by device; overwritten.
    """
    end[:] = -1
    for task in found.task:
        end[task] = -2
    num_devices = len(found.bounds) - 1
    free = np.zeros(num_devices, dtype=np.int64)
    held = np.zeros(num_devices, dtype=np.int64)
    place[:] = found.bounds[:-1]
    left, last = len(found.task), 0
    is_moving = True
    while is_moving and left:
        is_moving = False
        for device in range(num_devices):
            while place[device] < found.bounds[device + 1]:
                at = place[device]
                count = 2 if found.joined[at] else 1
                start, is_ready = free[device], True
                for each in range(at, at + count):
                    micro_batch = found.task[each] // arrays.num_blocks
                    block = found.task[each] % arrays.num_blocks
                    for row in range(arrays.before_start[block], arrays.before_start[block + 1]):
                        source = arrays.before[row]
                        reached = end[micro_batch * arrays.num_blocks + source]
                        if reached == -2:
                            is_ready = False
                        elif reached >= 0:
                            start = max(start, reached + arrays.before_delay[row] - arrays.span[source])
                if not is_ready:
                    break
                span = arrays.span[found.task[at] % arrays.num_blocks]
                if count == 2:
                    other = arrays.span[found.task[at + 1] % arrays.num_blocks]
                    span = max(span, other, (parts * (span + other) + 999_999) // 1_000_000)
                free[device] = start + span
                last = max(last, start + span)
                for each in range(at, at + count):
                    end[found.task[each]] = start + span
                    held[device] += arrays.memory[found.task[each] % arrays.num_blocks]
                    if held[device] > arrays.limit[device]:
                        return -1
                place[device] += count
                left -= count
                is_moving = True
    return -1 if left else last


@compiled
def _exchange(task: IntArray, joined: BoolArray, first: int, middle: int, after: int) -> None:
    """Put what stands from `middle` to `after` before what stands from `first` to `middle`."""
    tasks, flags = task[first:after].copy(), joined[first:after].copy()
    split = middle - first
    rest = after - middle
    task[first : first + rest] = tasks[split:]
    joined[first : first + rest] = flags[split:]
    task[first + rest : after] = tasks[:split]
    joined[first + rest : after] = flags[:split]


@compiled
def _move(
    found: PairedOrders, arrays: InstanceArrays, kinds: IntArray, parts: int, state: int, moves: int
) -> tuple[int, int]:
    end = np.empty(arrays.num_blocks * arrays.micro_batches, dtype=np.int64)
    place = np.empty(len(found.bounds) - 1, dtype=np.int64)
    best = _makespan(found, arrays, parts, end, place)
    for _ in range(moves):
        state = next_state(state)
        device = below(state, len(found.bounds) - 1)
        begin, after = found.bounds[device], found.bounds[device + 1]
        if after - begin < 2:
            continue
        state = next_state(state)
        first = begin + below(state, after - begin - 1)
        if first > begin and found.joined[first - 1]:
            first -= 1
        state = next_state(state)
        draw = below(state, 4)
        if found.joined[first] and draw < 2:
            found.joined[first] = False
            changed = _makespan(found, arrays, parts, end, place)
            if changed < 0 or changed > best:
                found.joined[first] = True
            else:
                best = changed
            continue
        middle = first + (2 if found.joined[first] else 1)
        if middle >= after:
            continue
        one, other = found.task[first], found.task[middle]
        is_single = middle == first + 1 and not found.joined[middle]
        kind = kinds[one % arrays.num_blocks], kinds[other % arrays.num_blocks]
        if is_single and draw < 2:
            if kind[0] * kind[1] != 2 or one // arrays.num_blocks == other // arrays.num_blocks:
                continue
            if kind[0] == 2:
                found.task[first], found.task[middle] = other, one
            found.joined[first] = True
            changed = _makespan(found, arrays, parts, end, place)
            if changed < 0 or changed > best:
                found.joined[first] = False
                found.task[first], found.task[middle] = one, other
            else:
                best = changed
            continue
        behind = middle + (2 if found.joined[middle] else 1)
        _exchange(found.task, found.joined, first, middle, behind)
        changed = _makespan(found, arrays, parts, end, place)
        if changed < 0 or changed > best:
            _exchange(found.task, found.joined, first, first + behind - middle, behind)
        else:
            best = changed
    return best, state
