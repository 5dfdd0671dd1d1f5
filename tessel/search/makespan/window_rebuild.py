"""Destroy a window of a schedule and construct it anew by list scheduling; what surrounds it keeps its order.

    device 0   F0 F1 F2 | .  b0 .  F3 b1 . | b2 b3          the tasks between the bars are taken out and
    device 1   .  F0 F1 | F2 b0 b1 .  F3 b2| b3             listed again by other priorities

A window is a stretch of a topological order of all tasks, so that what comes before it waits for nothing in
it, and what comes after it finds the same units held as before. Among its tasks that are ready and fit, the
one that could end first names a device, and the most urgent that could start there before that end is taken
(Giffler and Thompson); tasks of one block keep their order. Whether a task fits is asked of that task alone,
so that priorities may be infeasible: they may lead to where no ready task fits. O(tasks of the window x those
of them that are ready) for the window, O(tasks) for the times of all. Checked in
tests/tessel/search/makespan/test_window_rebuild.py.

Source: Ruiz and Stützle, "A simple and effective iterated greedy algorithm" (2007), for destruction and
construction; Giffler and Thompson (1960).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.model.instance import InstanceArrays, IntArray

INFEASIBLE = -1
"""What `rebuild` returns where no task that is ready fits any more."""


class Timed(NamedTuple):
    """A schedule as a topological order of its tasks; all int64.

    Attributes:
        sequence: all tasks that are run; each starts as soon as those before it allow.
        rank: place in the sequence by task, -1 for tasks not run.
        start: by task, -1 for tasks not run.
    """

    sequence: IntArray
    rank: IntArray
    start: IntArray


class _Window(NamedTuple):
    """A window under construction; all int64, by place in the window unless said otherwise.

    Attributes:
        tasks: as they stood.
        pending: tasks of the window that it still waits for.
        release: when those that have started allow it.
        following: place of the next task of the same block, -1 for none.
        ready: places that wait for nothing, in any order.
        free: step from which each device is free, by device.
        held: units on each device, by device.
    """

    tasks: IntArray
    pending: IntArray
    release: IntArray
    following: IntArray
    ready: IntArray
    free: IntArray
    held: IntArray


def timed_of(arrays: InstanceArrays, sequence: IntArray) -> Timed:
    """Return the schedule of a topological order in which the limits are kept."""
    num_tasks = arrays.num_blocks * arrays.micro_batches
    rank = np.full(num_tasks, -1, dtype=np.int64)
    rank[sequence] = np.arange(len(sequence))
    found = Timed(sequence.copy(), rank, np.full(num_tasks, -1, dtype=np.int64))
    start_behind(arrays, found, 0, np.zeros(arrays.num_devices, dtype=np.int64))
    return found


@compiled
def rebuild(
    arrays: InstanceArrays,
    current: Timed,
    begin: int,
    end: int,
    priority: IntArray,
    is_active: bool,
    trial: Timed,
) -> int:
    """Write the schedule with this window built anew; return its makespan, or `INFEASIBLE`.

    Args:
        begin: place in its sequence of the first task of the window.
        end: place after the last one, > `begin`.
        priority: int64, shape (end - begin,), of the tasks as they stand; the lowest is the most urgent.
        is_active: whether a device may idle for a more urgent task that comes before another could end.
        trial: overwritten; equal to `current` before `begin`.
    """
    size = end - begin
    window = _Window(
        tasks=current.sequence[begin:end],
        pending=np.zeros(size, dtype=np.int64),
        release=np.zeros(size, dtype=np.int64),
        following=np.full(size, -1, dtype=np.int64),
        ready=np.empty(size, dtype=np.int64),
        free=np.zeros(arrays.num_devices, dtype=np.int64),
        held=np.zeros(arrays.num_devices, dtype=np.int64),
    )
    last = np.full(arrays.num_blocks, -1, dtype=np.int64)
    num_ready = _prepare(arrays, current, begin, end, window, last)
    trial.sequence[:] = current.sequence
    trial.rank[:] = current.rank
    trial.start[:] = current.start
    for done in range(size):
        at = _select(arrays, window, num_ready, priority, is_active)
        if at < 0:
            return INFEASIBLE
        place = window.ready[at]
        task = window.tasks[place]
        num_ready = _start(arrays, current, begin, end, window, at, num_ready, trial.start)
        trial.sequence[begin + done] = task
        trial.rank[task] = begin + done
    return start_behind(arrays, trial, end, window.free)


@compiled
def start_behind(arrays: InstanceArrays, timed: Timed, begin: int, free: IntArray) -> int:
    """Start the tasks from a place of the sequence on as early as possible; return the makespan.

    Args:
        arrays: of the instance.
        timed: its starts from there on are overwritten.
        free: step from which each device is free by then; changed.
    """
    for place in range(begin, len(timed.sequence)):
        task = timed.sequence[place]
        block, first = task % arrays.num_blocks, task // arrays.num_blocks * arrays.num_blocks
        when = np.int64(0)
        for at in range(arrays.before_start[block], arrays.before_start[block + 1]):
            source = first + arrays.before[at]
            if timed.rank[source] >= 0:
                when = max(when, timed.start[source] + arrays.before_delay[at])
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            when = max(when, free[arrays.device[at]])
        timed.start[task] = when
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            free[arrays.device[at]] = when + arrays.span[block]
    makespan = np.int64(0)
    for task in timed.sequence:
        makespan = max(makespan, timed.start[task] + arrays.span[task % arrays.num_blocks])
    return int(makespan)


@compiled_leaf
def _prepare(
    arrays: InstanceArrays, current: Timed, begin: int, end: int, window: _Window, last: IntArray
) -> int:
    """Fill in what comes before the window and what its tasks wait for; return how many are ready."""
    num_blocks = arrays.num_blocks
    for place in range(begin):
        task = current.sequence[place]
        block = task % num_blocks
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            window.free[arrays.device[at]] = current.start[task] + arrays.span[block]
            window.held[arrays.device[at]] += arrays.memory[block]
    num_ready = 0
    for place in range(end - begin):
        task = window.tasks[place]
        block, first = task % num_blocks, task // num_blocks * num_blocks
        for at in range(arrays.before_start[block], arrays.before_start[block + 1]):
            source = first + arrays.before[at]
            if current.rank[source] >= begin:
                window.pending[place] += 1
            elif current.rank[source] >= 0:
                window.release[place] = max(
                    window.release[place], current.start[source] + arrays.before_delay[at]
                )
        if last[block] >= 0:
            window.following[last[block]] = place
            window.pending[place] += 1
        last[block] = place
        if window.pending[place] == 0:
            window.ready[num_ready] = place
            num_ready += 1
    return num_ready


@compiled_leaf
def _select(
    arrays: InstanceArrays, window: _Window, num_ready: int, priority: IntArray, is_active: bool
) -> int:
    """Return where in `ready` the next task stands, or -1 if none of them fits."""
    horizon, leader = NEVER, -1
    for at in range(num_ready):
        place = window.ready[at]
        block = window.tasks[place] % arrays.num_blocks
        if not _fits(arrays, window, block):
            continue
        when = _earliest(arrays, window, place, block) + (arrays.span[block] if is_active else 1)
        if when < horizon or (when == horizon and place < window.ready[leader]):
            horizon, leader = when, at
    if leader < 0:
        return -1
    best = leader
    for at in range(num_ready):
        place = window.ready[at]
        block = window.tasks[place] % arrays.num_blocks
        if at == best or not _shares_device(arrays, block, window.tasks[window.ready[leader]]):
            continue
        before = window.ready[best]
        is_more_urgent = priority[place] < priority[before] or (
            priority[place] == priority[before] and place < before
        )
        if (
            is_more_urgent
            and _earliest(arrays, window, place, block) < horizon
            and _fits(arrays, window, block)
        ):
            best = at
    return best


@compiled_leaf
def _start(
    arrays: InstanceArrays,
    current: Timed,
    begin: int,
    end: int,
    window: _Window,
    at: int,
    num_ready: int,
    start: IntArray,
) -> int:
    """Start the task at a place of `ready`; return how many are ready then."""
    place = window.ready[at]
    task = window.tasks[place]
    block, first = task % arrays.num_blocks, task // arrays.num_blocks * arrays.num_blocks
    when = _earliest(arrays, window, place, block)
    start[task] = when
    for slot in range(arrays.device_start[block], arrays.device_start[block + 1]):
        window.free[arrays.device[slot]] = when + arrays.span[block]
        window.held[arrays.device[slot]] += arrays.memory[block]
    num_ready -= 1
    window.ready[at] = window.ready[num_ready]
    for edge in range(arrays.after_start[block], arrays.after_start[block + 1]):
        target = first + arrays.after[edge]
        other = current.rank[target] - begin
        if 0 <= other < end - begin:
            window.release[other] = max(window.release[other], when + arrays.after_delay[edge])
            window.pending[other] -= 1
            if window.pending[other] == 0:
                window.ready[num_ready] = other
                num_ready += 1
    other = window.following[place]
    if other >= 0:
        window.pending[other] -= 1
        if window.pending[other] == 0:
            window.ready[num_ready] = other
            num_ready += 1
    return num_ready


@compiled_leaf
def _earliest(arrays: InstanceArrays, window: _Window, place: int, block: int) -> int:
    when = window.release[place]
    for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
        when = max(when, window.free[arrays.device[at]])
    return int(when)


@compiled_leaf
def _fits(arrays: InstanceArrays, window: _Window, block: int) -> bool:
    if arrays.memory[block] <= 0:
        return True
    for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[at]
        if window.held[device] + arrays.memory[block] > arrays.limit[device]:
            return False
    return True


@compiled_leaf
def _shares_device(arrays: InstanceArrays, block: int, task: int) -> bool:
    other = task % arrays.num_blocks
    for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
        for there in range(arrays.device_start[other], arrays.device_start[other + 1]):
            if arrays.device[at] == arrays.device[there]:
                return True
    return False
