"""The orders of all devices as linked lists, the times that follow, and how to change them in place.

A schedule is the order of each device; times follow as longest paths (as in `tessel.orders`, here
incrementally). A topological order of all tasks is kept along: after a change only the window between the
tasks that changed places is put in order again, and only the tasks that a change of time reaches are timed
again.

    device 0   f0 f0 f0 b0 ...     f0[2] behind b0[0]     f0 f0 b0 f0 ...
               window of the sequence: all tasks between the two

What a device holds in memory depends on its order alone, so a running sum by place decides what fits.
Checked in tests/tessel/search/makespan/test_tabu_search.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.model.instance import InstanceArrays, IntArray

TABU_BITS = 16
"""The tabu list is a table of 2¹⁶ pairs; two pairs in one place only forbid a little more."""


class Orders(NamedTuple):
    """The orders of all devices, with what follows from them; all int64.

    A slot is a task on one of its devices: slot `m·S + j` is the j-th of the S (block, device) pairs of
    micro-batch m, in the order of `InstanceArrays.device`. -1 stands for no task.

    Attributes:
        previous: task before, by slot.
        following: task after, by slot.
        level: units held on the device after the task starts, by slot.
        first: first task, by device.
        sequence: tasks in a topological order.
        rank: place in `sequence` by task, -1 for tasks not run.
        head: start by task.
        tail: longest path from the start to the end of all, by task.
        tabu: round until which a pair may not be put in an order, by hash of the pair.
        best: starts of the best schedule seen.
    """

    previous: IntArray
    following: IntArray
    level: IntArray
    first: IntArray
    sequence: IntArray
    rank: IntArray
    head: IntArray
    tail: IntArray
    tabu: IntArray
    best: IntArray


def orders_of(arrays: InstanceArrays, start: IntArray) -> Orders:
    """Return the orders of a valid schedule, and its times when all tasks start as early as they allow.

    Args:
        start: start by task, -1 where a task is not run.
    """
    tasks = np.flatnonzero(start >= 0)
    block = tasks % arrays.num_blocks
    topological = np.empty(arrays.num_blocks, dtype=np.int64)
    topological[arrays.serial_order] = np.arange(arrays.num_blocks)
    # Of tasks that start together, those of span 0 come first.
    by_time = np.lexsort(
        (topological[block], tasks // arrays.num_blocks, arrays.span[block] > 0, start[tasks])
    )
    return _linked(arrays, tasks[by_time].astype(np.int64), start.copy())


def orders_of_devices(arrays: InstanceArrays, tasks_by_device: Sequence[IntArray]) -> Orders | None:
    """Return the orders with these tasks on each device, not yet timed, or None where they deadlock.

    Args:
        tasks_by_device: int64, the tasks of each device, first to last; of each micro-batch one option.
    """
    found = _sequence_and_starts(arrays, tasks_by_device)
    if found is None:
        return None
    num_tasks = arrays.num_blocks * arrays.micro_batches
    return _linked(arrays, found[0].copy(), np.full(num_tasks, -1, dtype=np.int64))


def starts_of_devices(arrays: InstanceArrays, tasks_by_device: Sequence[IntArray]) -> IntArray | None:
    """Return the earliest starts that these tasks of each device allow, or None where they deadlock.

    The same as `earliest_starts` of `orders_of_devices`, in half the time: nothing is kept to change them.

    Args:
        tasks_by_device: as `orders_of_devices` takes them.

    Returns:
        int64, start by task, -1 where a task is not run.
    """
    found = _sequence_and_starts(arrays, tasks_by_device)
    return None if found is None else found[1]


def _sequence_and_starts(
    arrays: InstanceArrays, tasks_by_device: Sequence[IntArray]
) -> tuple[IntArray, IntArray] | None:
    """Return a topological order of all tasks and their earliest starts, or None where they deadlock."""
    ends = np.cumsum([0, *map(len, tasks_by_device)])
    sequence = np.empty(ends[-1], dtype=np.int64)
    start = np.full(arrays.num_blocks * arrays.micro_batches, -1, dtype=np.int64)
    count = _sequence_of(arrays, ends, np.concatenate(tasks_by_device), sequence, start)
    return None if count < 0 else (sequence[:count], start)


def keeps_limits(arrays: InstanceArrays, orders: Orders) -> bool:
    """Return whether no running sum of memory is above its device's limit."""
    devices = np.tile(arrays.device, arrays.micro_batches)
    return bool((orders.level <= arrays.limit[devices]).all())


def _linked(arrays: InstanceArrays, sequence: IntArray, best: IntArray) -> Orders:
    """Return the orders in which each device follows a sequence of all tasks."""
    num_tasks = arrays.num_blocks * arrays.micro_batches
    num_slots = len(arrays.device)
    rank = np.full(num_tasks, -1, dtype=np.int64)
    rank[sequence] = np.arange(len(sequence))
    orders = Orders(
        previous=np.full(num_slots * arrays.micro_batches, -1, dtype=np.int64),
        following=np.full(num_slots * arrays.micro_batches, -1, dtype=np.int64),
        level=np.zeros(num_slots * arrays.micro_batches, dtype=np.int64),
        first=np.full(arrays.num_devices, -1, dtype=np.int64),
        sequence=sequence,
        rank=rank,
        head=np.full(num_tasks, -1, dtype=np.int64),
        tail=np.zeros(num_tasks, dtype=np.int64),
        tabu=np.zeros(1 << TABU_BITS, dtype=np.int64),
        best=best,
    )
    _link(arrays, orders)
    return orders


def earliest_starts(arrays: InstanceArrays, orders: Orders) -> IntArray:
    """Return the earliest start by task that the orders allow; -1 for tasks not run."""
    time_heads(arrays, orders, 0)
    return orders.head.copy()


@compiled
def time_heads(arrays: InstanceArrays, orders: Orders, begin: int) -> None:
    """Time the starts from a place of the sequence on."""
    for place in range(begin, len(orders.sequence)):
        task = orders.sequence[place]
        orders.head[task] = outer_head(arrays, orders, task, -1)


@compiled_leaf
def time_tails(arrays: InstanceArrays, orders: Orders, begin: int) -> None:
    """Time the longest paths to the end from a place of the sequence backwards."""
    for place in range(begin, -1, -1):
        task = orders.sequence[place]
        orders.tail[task] = outer_tail(arrays, orders, task, -1)


@compiled_leaf
def makespan_in_order(arrays: InstanceArrays, orders: Orders) -> int:
    """Return the last end of all tasks."""
    makespan = 0
    for task in orders.sequence:
        makespan = max(makespan, orders.head[task] + arrays.span[task % arrays.num_blocks])
    return int(makespan)


@compiled_leaf
def outer_head(arrays: InstanceArrays, orders: Orders, task: int, device: int) -> int:
    """The earliest start that everything but the order of one device allows; -1 as device leaves none out."""
    block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
    first = micro_batch * arrays.num_blocks
    earliest = 0
    for place in range(arrays.before_start[block], arrays.before_start[block + 1]):
        source = first + arrays.before[place]
        if orders.rank[source] >= 0:
            earliest = max(earliest, orders.head[source] + arrays.before_delay[place])
    slots = micro_batch * len(arrays.device)
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        before = orders.previous[slots + place]
        if before >= 0 and arrays.device[place] != device:
            earliest = max(earliest, orders.head[before] + arrays.span[before % arrays.num_blocks])
    return int(earliest)


@compiled_leaf
def outer_tail(arrays: InstanceArrays, orders: Orders, task: int, device: int) -> int:
    """The longest path from the start of a task to the end that does not go on along one device."""
    block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
    first = micro_batch * arrays.num_blocks
    span = arrays.span[block]
    longest = span
    for place in range(arrays.after_start[block], arrays.after_start[block + 1]):
        target = first + arrays.after[place]
        if orders.rank[target] >= 0:
            longest = max(longest, arrays.after_delay[place] + orders.tail[target])
    slots = micro_batch * len(arrays.device)
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        after = orders.following[slots + place]
        if after >= 0 and arrays.device[place] != device:
            longest = max(longest, span + orders.tail[after])
    return int(longest)


@compiled_leaf
def update_heads(arrays: InstanceArrays, orders: Orders, begin: int, end: int, is_dirty: IntArray) -> None:
    """Time the tasks of a window of the sequence again, and beyond it those that a change reaches."""
    num_blocks, num_slots = arrays.num_blocks, len(arrays.device)
    farthest, place = end, begin
    while place <= farthest:
        task = orders.sequence[place]
        in_window = place <= end
        place += 1
        if not in_window and is_dirty[task] == 0:
            continue
        is_dirty[task] = 0
        block, micro_batch = task % num_blocks, task // num_blocks
        head = outer_head(arrays, orders, task, -1)
        # Behind the window a task may have a new neighbour even where no time has changed.
        if head == orders.head[task] and not in_window:
            continue
        orders.head[task] = head
        for at in range(arrays.after_start[block], arrays.after_start[block + 1]):
            target = micro_batch * num_blocks + arrays.after[at]
            if orders.rank[target] >= 0:
                is_dirty[target] = 1
                farthest = max(farthest, orders.rank[target])
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            target = orders.following[micro_batch * num_slots + at]
            if target >= 0:
                is_dirty[target] = 1
                farthest = max(farthest, orders.rank[target])


@compiled_leaf
def update_tails(arrays: InstanceArrays, orders: Orders, begin: int, end: int, is_dirty: IntArray) -> None:
    """The same for tails, backwards."""
    num_blocks, num_slots = arrays.num_blocks, len(arrays.device)
    farthest, place = begin, end
    while place >= farthest:
        task = orders.sequence[place]
        in_window = place >= begin
        place -= 1
        if not in_window and is_dirty[task] == 0:
            continue
        is_dirty[task] = 0
        block, micro_batch = task % num_blocks, task // num_blocks
        tail = outer_tail(arrays, orders, task, -1)
        if tail == orders.tail[task] and not in_window:
            continue
        orders.tail[task] = tail
        for at in range(arrays.before_start[block], arrays.before_start[block + 1]):
            source = micro_batch * num_blocks + arrays.before[at]
            if orders.rank[source] >= 0:
                is_dirty[source] = 1
                farthest = min(farthest, orders.rank[source])
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            source = orders.previous[micro_batch * num_slots + at]
            if source >= 0:
                is_dirty[source] = 1
                farthest = min(farthest, orders.rank[source])


@compiled_leaf
def slot_of(arrays: InstanceArrays, task: int, device: int) -> int:
    """The slot of a task on a device, or -1 if it does not hold it."""
    block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        if arrays.device[place] == device:
            return int(micro_batch * len(arrays.device) + place)
    return -1


@compiled_leaf
def relink(arrays: InstanceArrays, orders: Orders, task: int, target: int, device: int) -> None:
    """Take a task out of a device's order and put it behind another one, or first where that is -1."""
    slot = slot_of(arrays, task, device)
    before, after = orders.previous[slot], orders.following[slot]
    if before < 0:
        orders.first[device] = after
    else:
        orders.following[slot_of(arrays, before, device)] = after
    if after >= 0:
        orders.previous[slot_of(arrays, after, device)] = before
    if target < 0:
        behind = orders.first[device]
        orders.first[device] = task
    else:
        behind = orders.following[slot_of(arrays, target, device)]
        orders.following[slot_of(arrays, target, device)] = task
    orders.previous[slot], orders.following[slot] = target, behind
    if behind >= 0:
        orders.previous[slot_of(arrays, behind, device)] = task
    _set_levels(arrays, orders, device)


@compiled_leaf
def swap_everywhere(arrays: InstanceArrays, orders: Orders, task: int, anchor: int, is_right: bool) -> None:
    """Let two neighbours change places on every device that both hold."""
    left, right = (task, anchor) if is_right else (anchor, task)
    block = left % arrays.num_blocks
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        if slot_of(arrays, right, arrays.device[place]) >= 0:
            relink(arrays, orders, left, right, arrays.device[place])


@compiled_leaf
def repair_sequence(
    arrays: InstanceArrays, orders: Orders, begin: int, end: int, is_marked: IntArray, buffer: IntArray
) -> bool:
    """Put the task at `end`, and what it waits for, before that at `begin`; False if it waits for that."""
    sequence, rank = orders.sequence, orders.rank
    num_blocks, num_slots = arrays.num_blocks, len(arrays.device)
    for place in range(begin, end + 1):
        is_marked[sequence[place]] = 0
    is_marked[sequence[end]] = 1
    for place in range(end, begin, -1):
        task = sequence[place]
        if is_marked[task] == 0:
            continue
        block, micro_batch = task % num_blocks, task // num_blocks
        for at in range(arrays.before_start[block], arrays.before_start[block + 1]):
            source = micro_batch * num_blocks + arrays.before[at]
            if rank[source] >= begin:
                is_marked[source] = 1
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            before = orders.previous[micro_batch * num_slots + at]
            if before >= 0 and rank[before] >= begin:
                is_marked[before] = 1
    if is_marked[sequence[begin]] > 0:
        return False
    count = 0
    for wanted in (1, 0):
        for place in range(begin, end + 1):
            if is_marked[sequence[place]] == wanted:
                buffer[count] = sequence[place]
                count += 1
    for place in range(count):
        sequence[begin + place] = buffer[place]
        rank[buffer[place]] = begin + place
    return True


@compiled_leaf
def _set_levels(arrays: InstanceArrays, orders: Orders, device: int) -> None:
    held, task = 0, orders.first[device]
    while task >= 0:
        slot = slot_of(arrays, task, device)
        held += arrays.memory[task % arrays.num_blocks]
        orders.level[slot] = held
        task = orders.following[slot]


@compiled
def _sequence_of(
    arrays: InstanceArrays, ends: IntArray, order: IntArray, sequence: IntArray, start: IntArray
) -> int:
    """Write a topological order of all tasks and return their number, or -1 where they deadlock.

    Args:
        ends: where each device's tasks begin in `order`, and where the last ones end.
        order: the tasks of one device after the other.
        sequence: as long as `order`; overwritten.
        start: -1 by task; overwritten for those in `order` with the earliest step that all of it allows.
    """
    num_blocks, num_slots = arrays.num_blocks, len(arrays.device)
    pending = np.full(num_blocks * arrays.micro_batches, -1, dtype=np.int64)
    following = np.full(num_slots * arrays.micro_batches, -1, dtype=np.int64)
    for task in order:
        pending[task] = 0
        start[task] = 0
    num_run = 0
    for task in range(len(pending)):
        if pending[task] == 0:
            num_run += 1
            block, first = task % num_blocks, task // num_blocks * num_blocks
            for at in range(arrays.before_start[block], arrays.before_start[block + 1]):
                pending[task] += pending[first + arrays.before[at]] >= 0
    for device in range(arrays.num_devices):
        for place in range(ends[device] + 1, ends[device + 1]):
            following[slot_of(arrays, order[place - 1], device)] = order[place]
            pending[order[place]] += 1
    count = 0
    for task in range(len(pending)):
        if pending[task] == 0:
            sequence[count] = task
            count += 1
    done = 0
    while done < count:
        task = sequence[done]
        done += 1
        block, micro_batch = task % num_blocks, task // num_blocks
        end = start[task] + arrays.span[block]
        for at in range(arrays.after_start[block], arrays.after_start[block + 1]):
            target = micro_batch * num_blocks + arrays.after[at]
            if pending[target] > 0:
                start[target] = max(start[target], start[task] + arrays.after_delay[at])
                pending[target] -= 1
                if pending[target] == 0:
                    sequence[count] = target
                    count += 1
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            target = following[micro_batch * num_slots + at]
            if target >= 0:
                start[target] = max(start[target], end)
                pending[target] -= 1
                if pending[target] == 0:
                    sequence[count] = target
                    count += 1
    return count if count == num_run else -1


@compiled
def _link(arrays: InstanceArrays, orders: Orders) -> None:
    """Fill in the orders and levels from the sequence."""
    num_slots = len(arrays.device)
    last = np.full(arrays.num_devices, -1, dtype=np.int64)
    held = np.zeros(arrays.num_devices, dtype=np.int64)
    for task in orders.sequence:
        block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
        for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
            device, slot = arrays.device[place], micro_batch * num_slots + place
            held[device] += arrays.memory[block]
            orders.level[slot] = held[device]
            before = last[device]
            orders.previous[slot] = before
            if before < 0:
                orders.first[device] = task
            else:
                orders.following[slot_of(arrays, before, device)] = task
            last[device] = task
