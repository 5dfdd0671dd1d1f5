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
tests/tessel/search/test_serial.py.

Source: Giffler and Thompson, "Algorithms for solving production-scheduling problems" (1960); Dijkstra, EWD
623 (the banker's algorithm).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.compiled import compiled, compiled_leaf
from tessel.search.instance import UNLIMITED, Instance, IntArray

NEVER = 1 << 62
"""Later than any step of any schedule."""

MOST_LOOKS = 600_000
"""Blocks looked at between two looks at the budget: some hundredths of a second."""

OPERATIONS_A_LOOK = 70
"""Charged for each block looked at."""

FINISHED, STUCK, GOING_ON = range(3)
"""What has become of a listing."""


@compiled_leaf
def advance(instance: Instance, block: int, following: IntArray, options: IntArray) -> int:
    """Return the next micro-batch that a block may start, moved past those that run another option."""
    micro_batch = following[block]
    choice = instance.choice[block]
    if choice >= 0:
        option = instance.option[block]
        while micro_batch < instance.micro_batches:
            chosen = options[choice, micro_batch]
            if chosen < 0 or chosen == option:
                break
            micro_batch += 1
        following[block] = micro_batch
    return int(micro_batch)


@compiled_leaf
def ready_time(
    instance: Instance, block: int, micro_batch: int, start: IntArray, free: IntArray, options: IntArray
) -> int:
    """Return the earliest start of a task that may come next, or -1 while it waits for one not started.

    Args:
        instance: the arrays.
        block: block of the task.
        micro_batch: micro-batch of the task.
        start: start by task, -1 where it has not started.
        free: step from which each device is free.
        options: option by choice and micro-batch, -1 where undecided.
    """
    earliest = 0
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        earliest = max(earliest, free[instance.device[place]])
    first = micro_batch * instance.num_blocks
    for place in range(instance.before_start[block], instance.before_start[block + 1]):
        source = instance.before[place]
        choice = instance.choice[source]
        if choice >= 0:
            chosen = options[choice, micro_batch]
            if choice == instance.choice[block]:
                chosen = instance.option[block]
            if chosen < 0:
                return -1
            if chosen != instance.option[source]:
                continue
        if start[first + source] < 0:
            return -1
        earliest = max(earliest, start[first + source] + instance.before_delay[place])
    return int(earliest)


@compiled
def fits(
    instance: Instance,
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
    amount = instance.memory[block]
    if amount <= 0 and instance.choice[block] < 0:
        return True
    is_limited = False
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        device = instance.device[place]
        if instance.limit[device] < UNLIMITED:
            is_limited = True
            if held[device] + amount > instance.limit[device]:
                return False
    if not is_limited:
        return True
    return _can_finish(instance, block, micro_batch, start, held, options, following, False) or _can_finish(
        instance, block, micro_batch, start, held, options, following, True
    )


@compiled
def _can_finish(
    instance: Instance,
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
    num_blocks = instance.num_blocks
    room = instance.limit - held
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        room[instance.device[place]] -= instance.memory[block]
    oldest, newest = instance.micro_batches, micro_batch
    for other in range(num_blocks):
        oldest = min(oldest, following[other])
        newest = max(newest, following[other] - 1)
    led_to = np.zeros(newest + 1 - oldest, dtype=np.int64)
    if frees_first:
        for current in range(oldest, newest + 1):
            led_to[current - oldest] = _lead_on(
                instance, current, 0, block, micro_batch, start, options, room, True
            )
    for current in range(oldest, newest + 1):
        if (room >= instance.ample).all():
            return True
        begin = led_to[current - oldest]
        if _lead_on(instance, current, begin, block, micro_batch, start, options, room, False) < 0:
            return False
    return True


@compiled_leaf
def _lead_on(
    instance: Instance,
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
    first = current * instance.num_blocks
    for place in range(begin, instance.num_blocks):
        other = instance.serial_order[place]
        if start[first + other] >= 0 or (other == block and current == micro_batch):
            continue
        choice = instance.choice[other]
        if choice >= 0:
            chosen = options[choice, current]
            if current == micro_batch and choice == instance.choice[block]:
                chosen = instance.option[block]
            elif chosen < 0:
                chosen = instance.default_option[choice]
            if chosen != instance.option[other]:
                continue
        if frees_only and instance.memory[other] > 0:
            return place
        for at in range(instance.device_start[other], instance.device_start[other + 1]):
            device = instance.device[at]
            room[device] -= instance.memory[other]
            if room[device] < 0:
                return -1
    return int(instance.num_blocks)


@compiled_leaf
def place_task(
    instance: Instance,
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
    start[micro_batch * instance.num_blocks + block] = when
    following[block] = micro_batch + 1
    if instance.choice[block] >= 0:
        options[instance.choice[block], micro_batch] = instance.option[block]
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        device = instance.device[place]
        free[device] = when + instance.span[block]
        held[device] += instance.memory[block]


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
    instance: Instance,
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
        instance: the arrays.
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
        free=np.zeros(instance.num_devices, dtype=np.int64),
        held=np.zeros(instance.num_devices, dtype=np.int64),
        following=np.zeros(instance.num_blocks, dtype=np.int64),
        makespan=np.zeros(1, dtype=np.int64),
    )
    num_tasks = max(MOST_LOOKS // instance.num_blocks, 1)
    state, started = GOING_ON, 0
    while state == GOING_ON:
        state = continue_listing(instance, priority, listing, is_active, num_tasks)
        if budget is None:
            continue
        before, started = started, int(listing.following.sum())
        budget.charge((started - before) * instance.num_blocks * OPERATIONS_A_LOOK)
        if state == GOING_ON and budget.is_over:
            return -1
    return int(listing.makespan[0]) if state == FINISHED else -1


@compiled
def continue_listing(
    instance: Instance, priority: IntArray, listing: Listing, is_active: bool, num_tasks: int
) -> int:
    """Start so many more tasks; return whether all have started, it is stuck, or it goes on."""
    start, options, free, held, following, makespan = listing
    ready = np.full(instance.num_blocks, -1, dtype=np.int64)
    for _ in range(num_tasks):
        is_finished = True
        for block in range(instance.num_blocks):
            ready[block] = -1
            micro_batch = advance(instance, block, following, options)
            if micro_batch < instance.micro_batches:
                is_finished = False
                ready[block] = ready_time(instance, block, micro_batch, start, free, options)
        if is_finished:
            return FINISHED
        # Whether a task fits is costly to find out, so only those that would be taken are asked.
        while True:
            leader = first_to_end(instance, ready, is_active)
            if leader < 0:
                return STUCK
            block = most_urgent(instance, ready, leader, following, priority, is_active)
            if fits(instance, block, following[block], start, held, options, following):
                break
            ready[block] = -1
        makespan[0] = max(makespan[0], ready[block] + instance.span[block])
        place_task(instance, block, following[block], ready[block], start, free, held, options, following)
    return GOING_ON


@compiled_leaf
def first_to_end(instance: Instance, ready: IntArray, is_active: bool) -> int:
    """Return the block that could end first (start first, if not active), or -1 if none is ready."""
    leader, horizon = -1, NEVER
    for block in range(instance.num_blocks):
        if ready[block] >= 0:
            when = ready[block] + (instance.span[block] if is_active else 0)
            if when < horizon:
                leader, horizon = block, when
    return leader


@compiled_leaf
def most_urgent(
    instance: Instance,
    ready: IntArray,
    leader: int,
    following: IntArray,
    priority: IntArray,
    is_active: bool,
) -> int:
    """Return the most urgent block that wants a device of the leader's before the leader could be done."""
    horizon = ready[leader] + (instance.span[leader] if is_active else 1)
    best = leader
    least = priority[following[leader] * instance.num_blocks + leader]
    for block in range(instance.num_blocks):
        if ready[block] < 0 or ready[block] >= horizon or not _share_device(instance, leader, block):
            continue
        urgency = priority[following[block] * instance.num_blocks + block]
        if urgency < least or (urgency == least and ready[block] < ready[best]):
            best, least = block, urgency
    return int(best)


@compiled_leaf
def _share_device(instance: Instance, one: int, other: int) -> bool:
    for place in range(instance.device_start[one], instance.device_start[one + 1]):
        for there in range(instance.device_start[other], instance.device_start[other + 1]):
            if instance.device[place] == instance.device[there]:
                return True
    return False
