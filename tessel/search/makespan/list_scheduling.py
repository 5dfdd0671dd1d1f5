"""Build a whole schedule one task at a time, in time linear in its tasks, and never run into a dead end.

Tasks are appended one after the other and each starts as soon as its devices and what it waits for allow.
Among the tasks that could come next, the one that could end first names a device; of the tasks that want one
of its devices and could start before that end, the most urgent is taken (Giffler and Thompson). What is most
urgent is said by a `Dispatch`: a priority of each task, or, as the rules that simulate 1F1B and GPipe have
it, a preference among blocks with a limit on the micro-batches in flight, first come, first served.

    priority  b0[0] before f0[2]     device 0   f0 f0 .  .  b0 b0 f0
                                     device 1   .  f1 b1 b1 f1 ...

A tournament tree over the blocks holds when each could end; a task that starts changes only the entries of
its devices' blocks and of those that waited for it. O(log blocks) for each.

Under a memory limit a task that adds memory is taken only if afterwards the unfinished micro-batches could
still be finished, oldest first, each in the instance's serial order: so a slot for a later chunk is never
given away. That order is the same on every device, so that it is enough to look at the devices of the task,
O(open micro-batches) there; what does not fit waits until something starts on its devices. Small instances
are looked at as a whole, where each open micro-batch may first give back what it can.

What it leaves out: looking ahead beyond that; the searches built on it do. Checked in
tests/tessel/search/makespan/test_list_scheduling.py.

Source: Giffler and Thompson, "Algorithms for solving production-scheduling problems" (1960); Dijkstra, EWD
623 (the banker's algorithm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.model.instance import InstanceArrays, IntArray
from tessel.search.model.precedence import as_array, flat_rows
from tessel.search.model.problem import UNLIMITED

NEVER = 1 << 62
"""Later than any step of any schedule."""

TASKS_A_ROUND = 20_000
"""Tasks started between two looks at the budget: some hundredths of a second."""

OPERATIONS_A_TASK = 500
"""Charged for each task started."""

MAX_LOOK_AHEAD = 1_000_000
"""Tasks times blocks up to which the memory of an instance is looked at as a whole."""

OPERATIONS_A_LOOK = 40
"""Charged for each block of each task started where it is."""

FINISHED, STUCK, GOING_ON = range(3)
"""What has become of a listing."""


class Dispatch(NamedTuple):
    """Which of the tasks that could come next is taken; all int64.

    Attributes:
        priority: by task, the lowest first, ties by earliest start, then by block; empty for the rest here.
        group: by block, the lowest first; then what has been ready for longest, then the earlier micro-batch.
        rank: by block, the lowest first where even that is equal.
        in_flight: by block, how many micro-batches it may be ahead of its closing blocks; 0 for no limit.
        closing_start: rows of `closing` by block.
        closing: blocks whose start says that a micro-batch of the block is no longer in flight.
        opening_start: rows of `opening` by block.
        opening: blocks that a block is a closing one of.
    """

    priority: IntArray
    group: IntArray
    rank: IntArray
    in_flight: IntArray
    closing_start: IntArray
    closing: IntArray
    opening_start: IntArray
    opening: IntArray


def by_priority(arrays: InstanceArrays, priority: IntArray) -> Dispatch:
    """Return the dispatch by a priority of each task, the lowest first."""
    none = np.zeros(arrays.num_blocks, dtype=np.int64)
    rows = flat_rows([()] * arrays.num_blocks)
    return Dispatch(priority, none, none, none, *rows, *rows)


def by_preference(
    arrays: InstanceArrays,
    *,
    group: IntArray,
    rank: IntArray,
    in_flight: Mapping[int, int],
    closing: Mapping[int, Sequence[int]],
) -> Dispatch:
    """Return the dispatch first come, first served, among blocks of equal group.

    Args:
        arrays: of the instance.
        group: by block, the lowest first.
        rank: by block, for what is otherwise equal.
        in_flight: by block, how many micro-batches it may be ahead, >= 1; blocks left out have no limit.
        closing: for each of these blocks, those that it may be ahead of.
    """
    limits = np.zeros(arrays.num_blocks, dtype=np.int64)
    opening: list[list[int]] = [[] for _ in range(arrays.num_blocks)]
    for block, limit in in_flight.items():
        limits[block] = limit
        for closer in closing[block]:
            opening[closer].append(block)
    rows = [closing[block] if block in in_flight else () for block in range(arrays.num_blocks)]
    return Dispatch(as_array(()), group, rank, limits, *flat_rows(rows), *flat_rows(opening))


class Listing(NamedTuple):
    """A schedule that is being listed; all int64.

    Attributes:
        start: by task, -1 where it has not started, or is not run.
        options: option by choice and micro-batch, -1 where undecided.
        free: step from which each device is free.
        held: units on each device.
        peak: most units on each device so far.
        following: next micro-batch of each block.
        makespan: one number, the last end so far.
        last_end: by block, the end of its last task so far.
        since: by block, when its next task had all it waits for but devices.
        earliest: by block, when its next task could start; -1 while it waits, or does not fit.
        is_waiting_for_room: by block, 1 where it did not fit.
        tree: by node, when the first task below it could end (start, where devices do not idle).
    """

    start: IntArray
    options: IntArray
    free: IntArray
    held: IntArray
    peak: IntArray
    following: IntArray
    makespan: IntArray
    last_end: IntArray
    since: IntArray
    earliest: IntArray
    is_waiting_for_room: IntArray
    tree: IntArray


def list_schedule(
    arrays: InstanceArrays,
    dispatch: Dispatch,
    options: IntArray,
    start: IntArray,
    budget: SearchBudget | None = None,
    *,
    is_active: bool = False,
    keeps_limits: bool = True,
) -> Listing | None:
    """Write the start of every task, and return makespan, peaks and options, or None where it got stuck.

    It gets stuck only under a memory limit, where even finishing the open micro-batches one by one does not
    apply from the beginning on. O(tasks x log blocks).

    Args:
        arrays: of the instance.
        dispatch: which task is taken first.
        options: option by choice and micro-batch; -1 leaves it to the dispatch, and is overwritten.
        start: by task, overwritten; -1 where a task is not run.
        budget: charged, and looked at every few hundredths of a second; where it is over there is no
            schedule, and None. None for no limit.
        is_active: whether a device may idle for a more urgent task that comes before another could end.
        keeps_limits: whether memory limits count.
    """
    num_tasks = arrays.num_blocks * arrays.micro_batches
    looks_ahead = keeps_limits and num_tasks * arrays.num_blocks <= MAX_LOOK_AHEAD
    operations = OPERATIONS_A_TASK + (OPERATIONS_A_LOOK * arrays.num_blocks if looks_ahead else 0)
    listing = _new_listing(arrays, options, start)
    begin_listing(arrays, dispatch, listing, is_active)
    state, started = GOING_ON, 0
    while state == GOING_ON:
        state = continue_listing(
            arrays, dispatch, listing, is_active, keeps_limits, looks_ahead, TASKS_A_ROUND
        )
        if budget is None:
            continue
        before, started = started, int(listing.following.sum())
        budget.charge((started - before) * operations)
        if state == GOING_ON and budget.is_over:
            return None
    return listing if state == FINISHED else None


def _new_listing(arrays: InstanceArrays, options: IntArray, start: IntArray) -> Listing:
    start[:] = -1
    size = 1
    while size < arrays.num_blocks:
        size *= 2
    by_device = np.zeros((3, arrays.num_devices), dtype=np.int64)
    by_block = np.zeros((5, arrays.num_blocks), dtype=np.int64)
    return Listing(
        start=start,
        options=options,
        free=by_device[0],
        held=by_device[1],
        peak=by_device[2],
        following=by_block[0],
        makespan=np.zeros(1, dtype=np.int64),
        last_end=by_block[1],
        since=by_block[2],
        earliest=by_block[3],
        is_waiting_for_room=by_block[4],
        tree=np.full(2 * size, NEVER, dtype=np.int64),
    )


@compiled
def begin_listing(arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, is_active: bool) -> None:
    """Note which blocks could start first."""
    for block in range(arrays.num_blocks):
        _look_again(arrays, dispatch, listing, block, is_active)


@compiled
def continue_listing(
    arrays: InstanceArrays,
    dispatch: Dispatch,
    listing: Listing,
    is_active: bool,
    keeps_limits: bool,
    looks_ahead: bool,
    num_tasks: int,
) -> int:
    """Start so many more tasks; return whether all have started, it is stuck, or it goes on."""
    for _ in range(num_tasks):
        block = _next_block(arrays, dispatch, listing, is_active, keeps_limits, looks_ahead)
        if block < 0:
            for other in range(arrays.num_blocks):
                if listing.following[other] < arrays.micro_batches:
                    return STUCK
            return FINISHED
        when, micro_batch = listing.earliest[block], listing.following[block]
        end = when + arrays.span[block]
        listing.makespan[0] = max(listing.makespan[0], end)
        listing.last_end[block] = end
        place_task(
            arrays, block, micro_batch, when,
            listing.start, listing.free, listing.held, listing.options, listing.following,
        )  # fmt: skip
        for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
            device = arrays.device[place]
            listing.peak[device] = max(listing.peak[device], listing.held[device])
        _look_around(arrays, dispatch, listing, block, is_active)
        if looks_ahead:
            _make_room_again(arrays, dispatch, listing, is_active)
    return GOING_ON


@compiled
def _next_block(
    arrays: InstanceArrays,
    dispatch: Dispatch,
    listing: Listing,
    is_active: bool,
    keeps_limits: bool,
    looks_ahead: bool,
) -> int:
    """Return the block whose next task is taken, or -1 if none is ready and fits."""
    is_second_look = False
    while True:
        leader = _first_in_tree(listing.tree)
        if leader < 0:
            if is_second_look or not keeps_limits:
                return -1
            is_second_look = True
            if not _make_room_again(arrays, dispatch, listing, is_active):
                return -1
            continue
        block = _most_urgent(arrays, dispatch, listing, leader, is_active)
        # Whether a task fits is costly to find out, so only those that would be taken are asked.
        if not keeps_limits or fits(arrays, listing, block, looks_ahead):
            return block
        listing.earliest[block] = -1
        listing.is_waiting_for_room[block] = 1
        _set_leaf(listing.tree, block, NEVER)


@compiled_leaf
def _make_room_again(arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, is_active: bool) -> bool:
    """Look again at the blocks that did not fit; return whether there were any."""
    found = False
    for block in range(arrays.num_blocks):
        if listing.is_waiting_for_room[block] > 0:
            _look_again(arrays, dispatch, listing, block, is_active)
            found = True
    return found


@compiled_leaf
def _look_around(
    arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, block: int, is_active: bool
) -> None:
    """Note anew when the blocks could start for which the start of a task has changed something."""
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[place]
        for at in range(arrays.on_start[device], arrays.on_start[device + 1]):
            _look_again(arrays, dispatch, listing, arrays.on[at], is_active)
    for at in range(arrays.after_start[block], arrays.after_start[block + 1]):
        _look_again(arrays, dispatch, listing, arrays.after[at], is_active)
    for at in range(dispatch.opening_start[block], dispatch.opening_start[block + 1]):
        _look_again(arrays, dispatch, listing, dispatch.opening[at], is_active)
    choice = arrays.choice[block]
    if choice >= 0:
        for member in range(arrays.member_start[choice], arrays.member_start[choice + 1]):
            other = arrays.member[member]
            _look_again(arrays, dispatch, listing, other, is_active)
            for at in range(arrays.after_start[other], arrays.after_start[other + 1]):
                _look_again(arrays, dispatch, listing, arrays.after[at], is_active)


@compiled_leaf
def _look_again(
    arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, block: int, is_active: bool
) -> None:
    """Note when the next task of a block could start."""
    listing.is_waiting_for_room[block] = 0
    micro_batch = advance(arrays, block, listing.following, listing.options)
    when = -1
    if micro_batch < arrays.micro_batches:
        when = _available_from(arrays, dispatch, listing, block, micro_batch)
    if when >= 0:
        listing.since[block] = when
        for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
            when = max(when, listing.free[arrays.device[place]])
    listing.earliest[block] = when
    leaf = NEVER
    if when >= 0:
        leaf = when + (arrays.span[block] if is_active else 0)
    _set_leaf(listing.tree, block, leaf)


@compiled_leaf
def _available_from(
    arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, block: int, micro_batch: int
) -> int:
    """Return when a task has all it waits for but devices, or -1 while it waits for one not started."""
    when = _after_all_before(arrays, block, micro_batch, listing.start, listing.options)
    limit = dispatch.in_flight[block]
    if when < 0:
        return -1
    when = max(when, listing.last_end[block])
    if limit > 0 and micro_batch >= limit:
        for at in range(dispatch.closing_start[block], dispatch.closing_start[block + 1]):
            closer = dispatch.closing[at]
            if listing.following[closer] <= micro_batch - limit:
                return -1
            when = max(when, listing.start[(micro_batch - limit) * arrays.num_blocks + closer])
    return int(when)


@compiled_leaf
def _set_leaf(tree: IntArray, block: int, value: int) -> None:
    """Put a value into the tree, and the least of each pair above it."""
    node = len(tree) // 2 + block
    if tree[node] == value:
        return
    tree[node] = value
    node //= 2
    while node > 0:
        least = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == least:
            return
        tree[node] = least
        node //= 2


@compiled_leaf
def _first_in_tree(tree: IntArray) -> int:
    """Return the block with the least value, the first of several, or -1 if none is ready."""
    size = len(tree) // 2
    if tree[1] == NEVER:
        return -1
    node = 1
    while node < size:
        node *= 2
        if tree[node] > tree[node + 1]:
            node += 1
    return int(node - size)


@compiled_leaf
def _most_urgent(
    arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, leader: int, is_active: bool
) -> int:
    """Return the most urgent block that wants a device of the leader's before the leader could be done.

    Where blocks come first come, first served, another block may be even more urgent than that one and want
    another of its devices; it goes first.
    """
    horizon = listing.earliest[leader] + (arrays.span[leader] if is_active else 1)
    while True:
        best = leader
        for place in range(arrays.device_start[leader], arrays.device_start[leader + 1]):
            device = arrays.device[place]
            for at in range(arrays.on_start[device], arrays.on_start[device + 1]):
                block = arrays.on[at]
                if 0 <= listing.earliest[block] < horizon and block != best:
                    order = _compare(arrays, dispatch, listing, block, best)
                    if order < 0 or (order == 0 and best != leader and block < best):
                        best = block
        if len(dispatch.priority) > 0 or best == leader:
            return int(best)
        leader = best


@compiled_leaf
def _compare(arrays: InstanceArrays, dispatch: Dispatch, listing: Listing, one: int, other: int) -> int:
    """Return a number below 0 where the one block is more urgent, above 0 where the other one is, or 0."""
    first, second = listing.following[one], listing.following[other]
    if len(dispatch.priority) > 0:
        size = arrays.num_blocks
        urgency = dispatch.priority[first * size + one] - dispatch.priority[second * size + other]
        return int(urgency if urgency != 0 else listing.earliest[one] - listing.earliest[other])
    if dispatch.group[one] != dispatch.group[other]:
        return int(dispatch.group[one] - dispatch.group[other])
    if listing.since[one] != listing.since[other]:
        return int(listing.since[one] - listing.since[other])
    return int(first - second if first != second else dispatch.rank[one] - dispatch.rank[other])


@compiled
def fits(arrays: InstanceArrays, listing: Listing, block: int, looks_ahead: bool) -> bool:
    """Return whether the next task of a block keeps the memory limits and leaves a way to finish."""
    choice, amount = arrays.choice[block], arrays.memory[block]
    if amount <= 0 and choice < 0:
        return True
    is_limited = False
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[place]
        if arrays.limit[device] < UNLIMITED:
            is_limited = True
            if listing.held[device] + amount > arrays.limit[device]:
                return False
    if not is_limited:
        return True
    if looks_ahead:
        is_safe = True
        for device in range(arrays.num_devices):
            is_safe = is_safe and _can_finish_on(arrays, listing, device, block)
        return is_safe or _can_finish_after_giving_back(arrays, listing, block)
    # What was safe on the other devices is safe still.
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        if not _can_finish_on(arrays, listing, arrays.device[place], block):
            return False
    if choice >= 0:
        for member in range(arrays.member_start[choice], arrays.member_start[choice + 1]):
            other = arrays.member[member]
            for place in range(arrays.device_start[other], arrays.device_start[other + 1]):
                if not _can_finish_on(arrays, listing, arrays.device[place], block):
                    return False
    return True


@compiled_leaf
def _can_finish_on(arrays: InstanceArrays, listing: Listing, device: int, block: int) -> bool:
    """Finish the open micro-batches one by one on a device, oldest first, as if a task had started."""
    micro_batch = listing.following[block]
    room = arrays.limit[device] - listing.held[device]
    oldest, newest = arrays.micro_batches, micro_batch
    for at in range(arrays.on_start[device], arrays.on_start[device + 1]):
        other = arrays.on[at]
        oldest = min(oldest, listing.following[other])
        newest = max(newest, listing.following[other] - 1)
        if other == block:
            room -= arrays.memory[block]
    for current in range(oldest, newest + 1):
        if room >= arrays.ample[device]:
            return True
        for at in range(arrays.on_start[device], arrays.on_start[device + 1]):
            other = arrays.on[at]
            if _is_still_to_run(arrays, listing, other, current, block, micro_batch):
                room -= arrays.memory[other]
                if room < 0:
                    return False
    return bool(room >= 0)


@compiled_leaf
def _is_still_to_run(
    arrays: InstanceArrays, listing: Listing, other: int, current: int, block: int, micro_batch: int
) -> bool:
    """Whether a task is to come when one more has started, with the options that are settled by then."""
    if listing.start[current * arrays.num_blocks + other] >= 0 or (other == block and current == micro_batch):
        return False
    choice = arrays.choice[other]
    if choice < 0:
        return True
    chosen = listing.options[choice, current]
    if current == micro_batch and choice == arrays.choice[block]:
        chosen = arrays.option[block]
    elif chosen < 0:
        chosen = arrays.default_option[choice]
    return bool(chosen == arrays.option[other])


@compiled
def _can_finish_after_giving_back(arrays: InstanceArrays, listing: Listing, block: int) -> bool:
    """The same on all devices at once, each micro-batch first led up to its next block that adds memory."""
    room = arrays.limit - listing.held
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        room[arrays.device[place]] -= arrays.memory[block]
    oldest, newest = arrays.micro_batches, listing.following[block]
    for other in range(arrays.num_blocks):
        oldest = min(oldest, listing.following[other])
        newest = max(newest, listing.following[other] - 1)
    led_to = np.zeros(newest + 1 - oldest, dtype=np.int64)
    for current in range(oldest, newest + 1):
        led_to[current - oldest] = _lead_on(arrays, listing, current, 0, block, room, True)
    for current in range(oldest, newest + 1):
        if (room >= arrays.ample).all():
            return True
        if _lead_on(arrays, listing, current, led_to[current - oldest], block, room, False) < 0:
            return False
    return True


@compiled_leaf
def _lead_on(
    arrays: InstanceArrays,
    listing: Listing,
    current: int,
    begin: int,
    block: int,
    room: IntArray,
    frees_only: bool,
) -> int:
    """Run a micro-batch on in the serial order, up to a block that adds memory or to its end.

    Return the place in the serial order that it was led to, or -1 where there was no room.
    """
    for place in range(begin, arrays.num_blocks):
        other = arrays.serial_order[place]
        if not _is_still_to_run(arrays, listing, other, current, block, listing.following[block]):
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
    earliest = _after_all_before(arrays, block, micro_batch, start, options)
    if earliest < 0:
        return -1
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        earliest = max(earliest, free[arrays.device[place]])
    return int(earliest)


@compiled_leaf
def _after_all_before(
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
