"""Build a whole schedule one task at a time, by priority, and never run into a dead end.

Tasks are appended one after the other and each starts as soon as its devices and what it waits for allow.
Among the tasks that could come next, the one that could end first names a device; of the tasks that want one
of its devices and could start before that end, the most urgent is taken (Giffler and Thompson). Under a
memory limit a task that adds memory is taken only if afterwards the unfinished micro-batches could still be
finished, oldest first, each in the instance's serial order (after giving back what they can, where that
helps): so a slot for a later chunk is never given away.

    priority  b0[0] before f0[2]     device 0   f0 f0 .  .  b0 b0 f0
                                     device 1   .  f1 b1 b1 f1 ...

What it leaves out: looking ahead beyond that; the searches built on it do. Checked in
tests/tessel/search/makespan/test_list_scheduling.py.

Source: Giffler and Thompson, "Algorithms for solving production-scheduling problems" (1960); Dijkstra, EWD
623 (the banker's algorithm).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.model.instance import InstanceArrays, IntArray
from tessel.search.model.problem import UNLIMITED

NEVER = 1 << 62
"""Later than any step of any schedule."""

MAX_LOOKS = 600_000
"""Blocks looked at between two looks at the budget: some hundredths of a second."""

OPERATIONS_A_LOOK = 70
"""Charged for each block looked at."""

FINISHED, STUCK, GOING_ON = range(3)
"""What has become of a listing."""


@compiled_leaf
def advance(arrays: InstanceArrays, block: int, following: IntArray, options: IntArray) -> int:
    """Return the next micro-batch that a block may start, moved past those that run another option."""
    micro_batch = following[block]
    choice = arrays.choice[block]
    if choice >= 0:
        option = arrays.option[block]
        while micro_batch < arrays.micro_batches:
            chosen = options[choice, micro_batch]
            if chosen < 0 or chosen == option:
                break
            micro_batch += 1
        following[block] = micro_batch
    return int(micro_batch)


@compiled_leaf
def ready_time(
    arrays: InstanceArrays, block: int, micro_batch: int, start: IntArray, free: IntArray, options: IntArray
) -> int:
    """Return the earliest start of a task that may come next, or -1 while it waits for one not started.

    Args:
        arrays: of the instance.
        block: block of the task.
        micro_batch: micro-batch of the task.
        start: start by task, -1 where it has not started.
        free: step from which each device is free.
        options: option by choice and micro-batch, -1 where undecided.
    """
    earliest = 0
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        earliest = max(earliest, free[arrays.device[place]])
    first = micro_batch * arrays.num_blocks
    for place in range(arrays.before_start[block], arrays.before_start[block + 1]):
        source = arrays.before[place]
        choice = arrays.choice[source]
        if choice >= 0:
            chosen = options[choice, micro_batch]
            if choice == arrays.choice[block]:
                chosen = arrays.option[block]
            if chosen < 0:
                return -1
            if chosen != arrays.option[source]:
                continue
        if start[first + source] < 0:
            return -1
        earliest = max(earliest, start[first + source] + arrays.before_delay[place])
    return int(earliest)


@compiled
def fits(
    arrays: InstanceArrays,
    block: int,
    micro_batch: int,
    start: IntArray,
    held: IntArray,
    options: IntArray,
    following: IntArray,
) -> bool:
    """Return whether a task keeps the memory limits and leaves a way to finish.

    O(open micro-batches x blocks).
    """
    amount = arrays.memory[block]
    if amount <= 0 and arrays.choice[block] < 0:
        return True
    is_limited = False
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[place]
        if arrays.limit[device] < UNLIMITED:
            is_limited = True
            if held[device] + amount > arrays.limit[device]:
                return False
    if not is_limited:
        return True
    return _can_finish(arrays, block, micro_batch, start, held, options, following, False) or _can_finish(
        arrays, block, micro_batch, start, held, options, following, True
    )


@compiled
def _can_finish(
    arrays: InstanceArrays,
    block: int,
    micro_batch: int,
    start: IntArray,
    held: IntArray,
    options: IntArray,
    following: IntArray,
    frees_first: bool,
) -> bool:
    """Finish the open micro-batches one by one, oldest first, as if `block` of `micro_batch` had started.

    With `frees_first`, each is first led up to the next block that adds memory, which gives back what it can.
    """
    num_blocks = arrays.num_blocks
    room = arrays.limit - held
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        room[arrays.device[place]] -= arrays.memory[block]
    oldest, newest = arrays.micro_batches, micro_batch
    for other in range(num_blocks):
        oldest = min(oldest, following[other])
        newest = max(newest, following[other] - 1)
    led_to = np.zeros(newest + 1 - oldest, dtype=np.int64)
    if frees_first:
        for current in range(oldest, newest + 1):
            led_to[current - oldest] = _lead_on(
                arrays, current, 0, block, micro_batch, start, options, room, True
            )
    for current in range(oldest, newest + 1):
        if (room >= arrays.ample).all():
            return True
        begin = led_to[current - oldest]
        if _lead_on(arrays, current, begin, block, micro_batch, start, options, room, False) < 0:
            return False
    return True


@compiled_leaf
def _lead_on(
    arrays: InstanceArrays,
    current: int,
    begin: int,
    block: int,
    micro_batch: int,
    start: IntArray,
    options: IntArray,
    room: IntArray,
    frees_only: bool,
) -> int:
    """Run a micro-batch on in the serial order, up to a block that adds memory or to its end.

    Return the place in the serial order that it was led to, or -1 where there was no room.
    """
    first = current * arrays.num_blocks
    for place in range(begin, arrays.num_blocks):
        other = arrays.serial_order[place]
        if start[first + other] >= 0 or (other == block and current == micro_batch):
            continue
        choice = arrays.choice[other]
        if choice >= 0:
            chosen = options[choice, current]
            if current == micro_batch and choice == arrays.choice[block]:
                chosen = arrays.option[block]
            elif chosen < 0:
                chosen = arrays.default_option[choice]
            if chosen != arrays.option[other]:
                continue
        if frees_only and arrays.memory[other] > 0:
            return place
        for at in range(arrays.device_start[other], arrays.device_start[other + 1]):
            device = arrays.device[at]
            room[device] -= arrays.memory[other]
            if room[device] < 0:
                return -1
    return int(arrays.num_blocks)


@compiled_leaf
def place_task(
    arrays: InstanceArrays,
    block: int,
    micro_batch: int,
    when: int,
    start: IntArray,
    free: IntArray,
    held: IntArray,
    options: IntArray,
    following: IntArray,
) -> None:
    """Start a task at a time: note its start, its devices' next free step and memory, and its option."""
    start[micro_batch * arrays.num_blocks + block] = when
    following[block] = micro_batch + 1
    if arrays.choice[block] >= 0:
        options[arrays.choice[block], micro_batch] = arrays.option[block]
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[place]
        free[device] = when + arrays.span[block]
        held[device] += arrays.memory[block]


class Listing(NamedTuple):
    """A schedule that is being listed; all int64.

    Attributes:
        start: by task, -1 where it has not started, or is not run.
        options: option by choice and micro-batch, -1 where undecided.
        free: step from which each device is free.
        held: units on each device.
        following: next micro-batch of each block.
        makespan: one number, the last end so far.
    """

    start: IntArray
    options: IntArray
    free: IntArray
    held: IntArray
    following: IntArray
    makespan: IntArray


def list_schedule(
    arrays: InstanceArrays,
    priority: IntArray,
    options: IntArray,
    is_active: bool,
    start: IntArray,
    budget: SearchBudget | None = None,
) -> int:
    """Write the start of every task by priority, and return the makespan, or -1 where it got stuck.

    It gets stuck only under a memory limit, where even finishing the open micro-batches one by one does not
    apply from the beginning on. O(tasks x blocks).

    Args:
        arrays: of the instance.
        priority: by task; the lowest is taken first, ties by earliest start, then by block.
        options: option by choice and micro-batch; -1 leaves it to the priority, and is overwritten.
        is_active: whether a device may idle for a more urgent task that comes before another could end.
        start: by task, overwritten; -1 where a task is not run.
        budget: charged, and looked at every few hundredths of a second; where it is over there is no
            schedule, and -1. None for no limit.
    """
    start[:] = -1
    listing = Listing(
        start=start,
        options=options,
        free=np.zeros(arrays.num_devices, dtype=np.int64),
        held=np.zeros(arrays.num_devices, dtype=np.int64),
        following=np.zeros(arrays.num_blocks, dtype=np.int64),
        makespan=np.zeros(1, dtype=np.int64),
    )
    num_tasks = max(MAX_LOOKS // arrays.num_blocks, 1)
    state, started = GOING_ON, 0
    while state == GOING_ON:
        state = continue_listing(arrays, priority, listing, is_active, num_tasks)
        if budget is None:
            continue
        before, started = started, int(listing.following.sum())
        budget.charge((started - before) * arrays.num_blocks * OPERATIONS_A_LOOK)
        if state == GOING_ON and budget.is_over:
            return -1
    return int(listing.makespan[0]) if state == FINISHED else -1


@compiled
def continue_listing(
    arrays: InstanceArrays, priority: IntArray, listing: Listing, is_active: bool, num_tasks: int
) -> int:
    """Start so many more tasks; return whether all have started, it is stuck, or it goes on."""
    start, options, free, held, following, makespan = listing
    ready = np.full(arrays.num_blocks, -1, dtype=np.int64)
    for _ in range(num_tasks):
        is_finished = True
        for block in range(arrays.num_blocks):
            ready[block] = -1
            micro_batch = advance(arrays, block, following, options)
            if micro_batch < arrays.micro_batches:
                is_finished = False
                ready[block] = ready_time(arrays, block, micro_batch, start, free, options)
        if is_finished:
            return FINISHED
        # Whether a task fits is costly to find out, so only those that would be taken are asked.
        while True:
            leader = first_to_end(arrays, ready, is_active)
            if leader < 0:
                return STUCK
            block = most_urgent(arrays, ready, leader, following, priority, is_active)
            if fits(arrays, block, following[block], start, held, options, following):
                break
            ready[block] = -1
        makespan[0] = max(makespan[0], ready[block] + arrays.span[block])
        place_task(arrays, block, following[block], ready[block], start, free, held, options, following)
    return GOING_ON


@compiled_leaf
def first_to_end(arrays: InstanceArrays, ready: IntArray, is_active: bool) -> int:
    """Return the block that could end first (start first, if not active), or -1 if none is ready."""
    leader, horizon = -1, NEVER
    for block in range(arrays.num_blocks):
        if ready[block] >= 0:
            when = ready[block] + (arrays.span[block] if is_active else 0)
            if when < horizon:
                leader, horizon = block, when
    return leader


@compiled_leaf
def most_urgent(
    arrays: InstanceArrays,
    ready: IntArray,
    leader: int,
    following: IntArray,
    priority: IntArray,
    is_active: bool,
) -> int:
    """Return the most urgent block that wants a device of the leader's before the leader could be done."""
    horizon = ready[leader] + (arrays.span[leader] if is_active else 1)
    best = leader
    least = priority[following[leader] * arrays.num_blocks + leader]
    for block in range(arrays.num_blocks):
        if ready[block] < 0 or ready[block] >= horizon or not _share_device(arrays, leader, block):
            continue
        urgency = priority[following[block] * arrays.num_blocks + block]
        if urgency < least or (urgency == least and ready[block] < ready[best]):
            best, least = block, urgency
    return int(best)


@compiled_leaf
def _share_device(arrays: InstanceArrays, one: int, other: int) -> bool:
    for place in range(arrays.device_start[one], arrays.device_start[one + 1]):
        for there in range(arrays.device_start[other], arrays.device_start[other + 1]):
            if arrays.device[place] == arrays.device[there]:
                return True
    return False
