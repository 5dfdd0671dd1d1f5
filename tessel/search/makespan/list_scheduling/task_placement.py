"""Placement of one task: when it can start after what it waits for, and what its start changes."""

from __future__ import annotations

from tessel.search.jit.compiled import compiled_leaf
from tessel.search.model.instance import InstanceArrays, IntArray


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
        micro_batch: micro-batch of the task.
        start: start by task, -1 where it has not started.
        free: step from which each device is free.
        options: option by choice and micro-batch, -1 where undecided.
    """
    earliest = after_all_before(arrays, block, micro_batch, start, options)
    if earliest < 0:
        return -1
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        earliest = max(earliest, free[arrays.device[place]])
    return int(earliest)


@compiled_leaf
def after_all_before(
    arrays: InstanceArrays, block: int, micro_batch: int, start: IntArray, options: IntArray
) -> int:
    """The earliest start that the blocks before allow, or -1 while one of them has not started."""
    earliest = 0
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
