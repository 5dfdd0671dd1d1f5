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

from collections.abc import Callable

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.makespan.list_scheduling.listing import NEVER, Dispatch, Listing
from tessel.search.makespan.list_scheduling.room_check import fits
from tessel.search.makespan.list_scheduling.task_placement import advance, after_all_before, place_task
from tessel.search.model.instance import InstanceArrays, IntArray

TASKS_A_ROUND = 20_000
"""Tasks started between two looks at the budget: some hundredths of a second."""

TASKS_A_QUESTION = 5_000
"""Tasks started before `goes_on` is asked again: most simulations that do not fit show it by then."""

OPERATIONS_A_TASK = 500
"""Charged for each task started."""

MAX_LOOK_AHEAD = 1_000_000
"""Tasks times blocks up to which the memory of an instance is looked at as a whole."""

OPERATIONS_A_LOOK = 40
"""Charged for each block of each task started where it is."""

FINISHED, STUCK, GOING_ON = range(3)
"""What has become of a listing."""


def list_schedule(
    arrays: InstanceArrays,
    dispatch: Dispatch,
    options: IntArray,
    start: IntArray,
    budget: SearchBudget | None = None,
    *,
    is_active: bool = False,
    keeps_limits: bool = True,
    goes_on: Callable[[Listing], bool] | None = None,
) -> Listing | None:
    """Write the start of every task, and return makespan, peaks and options, or None where it got stuck.

    It gets stuck only under a memory limit, where even finishing the open micro-batches one by one does not
    apply from the beginning on. O(tasks x log blocks).

    Args:
        dispatch: which task is taken first.
        options: option by choice and micro-batch; -1 leaves it to the dispatch, and is overwritten.
        start: by task, overwritten; -1 where a task is not run.
        budget: charged, and looked at every few hundredths of a second; where it is over there is no
            schedule, and None. None for no limit.
        is_active: whether a device may idle for a more urgent task that comes before another could end.
        keeps_limits: whether memory limits count.
        goes_on: asked every few thousandths of a second; where it says no there is no schedule, and None.
    """
    num_tasks = arrays.num_blocks * arrays.micro_batches
    looks_ahead = keeps_limits and num_tasks * arrays.num_blocks <= MAX_LOOK_AHEAD
    operations = OPERATIONS_A_TASK + (OPERATIONS_A_LOOK * arrays.num_blocks if looks_ahead else 0)
    listing = _new_listing(arrays, options, start)
    begin_listing(arrays, dispatch, listing, is_active)
    state, started = GOING_ON, 0
    round_tasks = TASKS_A_ROUND if goes_on is None else TASKS_A_QUESTION
    while state == GOING_ON:
        state = continue_listing(arrays, dispatch, listing, is_active, keeps_limits, looks_ahead, round_tasks)
        if state == GOING_ON and goes_on is not None and not goes_on(listing):
            return None
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
    when = after_all_before(arrays, block, micro_batch, listing.start, listing.options)
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
