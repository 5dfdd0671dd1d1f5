"""Tabu search over device orders: change the order on the critical path, keep what helps, never deadlock.

A schedule is the order of each device; times follow as longest paths (as in `tessel.orders`). The makespan is
the length of a critical path, and only a change on it can help: of tasks that follow each other on one device
there, one moves before the first or behind the last.

    device 0   f0 f0 f0 w0 b0 ...      critical: f0 f0 f0 w0, then on device 1
    move       f0 f0 w0' ...           w0 behind b0 lets b0, and all that waits for it, start earlier

Each round takes the move whose estimated longest path is least, even when it is worse than before; what was
just moved may not move back for a while. The estimate is exact for paths through the moved tasks as long as
what surrounds them stays, O(tasks moved). Memory on a device depends on its order alone, so a move is allowed
if no running sum breaks the limit; a cycle is found while the topological order is repaired. Tasks of one
block keep the order of their micro-batches. Checked in tests/tessel/search/makespan/test_tabu_search.py.

Source: Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem" (1996); Balas and
Vazacopoulos (1998) for moving over several tasks; Taillard (1994) for the estimates. Here blocks may hold
several devices and orders keep memory limits.
"""

from __future__ import annotations

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.jit.random_generator import below, next_state
from tessel.search.makespan.device_orders import (
    TABU_BITS,
    Orders,
    makespan_in_order,
    outer_head,
    outer_tail,
    relink,
    repair_sequence,
    slot_of,
    swap_everywhere,
    time_heads,
    time_tails,
    update_heads,
    update_tails,
)
from tessel.search.model.instance import InstanceArrays, IntArray

MAX_LENGTH = 64
"""Most tasks that a move passes; longer ones cost more than they were seen to bring."""


SAMPLED_TASKS = 16
"""Tasks inside a stretch of the critical path that are tried in a round; its ends always are."""

TASK, ANCHOR, DEVICE, DIRECTION, DISTANCE = range(5)
"""Columns of a list of moves: what moves, the task it passes last, where, 1 for later, and over how many."""

LOOKS_A_ROUND, LOOKS_A_MOVE, LOOKS_IN_WINDOW, TASKS_A_LOOK = 20, 3, 2, 2
"""Tasks that a round looks at: for itself, for each move weighed beside those it passes, for each task
between the two that change places; and how many of all tasks count as one: most are only passed over."""

CYCLE_TENURE = 20
"""Rounds for which a move that closes a cycle is not tried again."""

MIN_TENURE = 6
"""Fewest rounds for which a move may not be taken back; the random generator adds up to ten."""


@compiled
def tabu_search(
    arrays: InstanceArrays,
    orders: Orders,
    best: int,
    turn: int,
    num_rounds: int,
    target: int,
    state: int,
) -> tuple[int, int, int]:
    """Move for some rounds, keeping the best schedule in `orders.best`.

    Args:
        orders: where to go on; changed.
        best: makespan of the schedule in `orders.best`.
        turn: rounds made on these orders before.
        num_rounds: moves tried, O(tasks) each.
        target: the search ends at a makespan that is not above it.
        state: state of the random generator.

    Returns:
        The makespan of the best schedule, the state, and the tasks looked at.
    """
    num_tasks = len(orders.rank)
    num_looks = 2 * num_tasks
    path = np.empty(num_tasks, dtype=np.int64)
    via = np.empty(num_tasks, dtype=np.int64)
    moves = np.empty((2 * num_tasks, DISTANCE + 1), dtype=np.int64)
    is_marked = np.zeros(num_tasks, dtype=np.int64)
    buffer = np.empty(num_tasks, dtype=np.int64)
    scratch = np.empty(MAX_LENGTH + 2, dtype=np.int64)
    heads = np.empty(MAX_LENGTH + 2, dtype=np.int64)
    time_heads(arrays, orders, 0)
    time_tails(arrays, orders, len(orders.sequence) - 1)
    makespan = makespan_in_order(arrays, orders)
    for _ in range(num_rounds):
        if makespan < best:
            best = makespan
            orders.best[:] = orders.head
        if best <= target:
            break
        turn += 1
        state = next_state(state)
        length = _critical_path(arrays, orders, makespan, path, via, state)
        num_moves = _list_moves(path, via, length, moves, state)
        num_looks += LOOKS_A_ROUND + num_tasks // TASKS_A_LOOK + length
        for place in range(num_moves):
            num_looks += LOOKS_A_MOVE + moves[place, DISTANCE]
        chosen = _choose(arrays, orders, moves, num_moves, turn, best, scratch, heads, state)
        if chosen < 0:
            orders.tabu[:] = 0
            continue
        task, anchor, device = moves[chosen, TASK], moves[chosen, ANCHOR], moves[chosen, DEVICE]
        is_right = moves[chosen, DIRECTION] == 1
        num_looks += LOOKS_IN_WINDOW * abs(orders.rank[task] - orders.rank[anchor])
        if _move(arrays, orders, task, anchor, device, is_right, is_marked, buffer, turn, state):
            makespan = makespan_in_order(arrays, orders)
        else:
            _forbid(orders, task, anchor, is_right, turn + CYCLE_TENURE)
    if makespan < best:
        best = makespan
        orders.best[:] = orders.head
    return int(best), int(state), int(num_looks)


@compiled_leaf
def _critical_path(
    arrays: InstanceArrays, orders: Orders, makespan: int, path: IntArray, via: IntArray, state: int
) -> int:
    """Write one critical path, chosen at random where it branches; return its length.

    via[i] is the device along which path[i] follows path[i - 1], or -1 where an edge is tight as well.
    """
    num_blocks, num_slots = arrays.num_blocks, len(arrays.device)
    task, found = -1, 0
    for candidate in orders.sequence:
        if orders.head[candidate] > 0:
            break
        if orders.tail[candidate] == makespan:
            found += 1
            state = next_state(state)
            if below(state, found) == 0:
                task = candidate
    length = 0
    arrived = -1
    while task >= 0:
        path[length], via[length] = task, arrived
        length += 1
        block, micro_batch = task % num_blocks, task // num_blocks
        upcoming, arrived, found = -1, -1, 0
        for place in range(arrays.after_start[block], arrays.after_start[block + 1]):
            target = micro_batch * num_blocks + arrays.after[place]
            delay = arrays.after_delay[place]
            if _is_tight(orders, task, target, delay, makespan):
                found += 1
                state = next_state(state)
                if below(state, found) == 0:
                    upcoming = target
        for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
            target = orders.following[micro_batch * num_slots + place]
            if target >= 0 and _is_tight(orders, task, target, arrays.span[block], makespan):
                found += 1
                state = next_state(state)
                if below(state, found) == 0:
                    upcoming, arrived = target, arrays.device[place]
        task = upcoming
    return length


@compiled_leaf
def _is_tight(orders: Orders, task: int, target: int, delay: int, makespan: int) -> bool:
    return bool(
        orders.rank[target] >= 0
        and orders.head[target] == orders.head[task] + delay
        and orders.head[target] + orders.tail[target] == makespan
    )


@compiled_leaf
def _list_moves(path: IntArray, via: IntArray, length: int, moves: IntArray, state: int) -> int:
    """Write the moves that could shorten a path: task, task to pass last, device, direction, distance.

    On each stretch of the path along one device, the two tasks at either end may move, and of those between
    about sixteen chosen at random. Return how many moves there are.
    """
    count = begin = 0
    while begin < length:
        end = begin
        while end + 1 < length and via[end + 1] >= 0 and (end == begin or via[end + 1] == via[end]):
            end += 1
        stride = 1 + (end - begin) // SAMPLED_TASKS
        state = next_state(state)
        shift = below(state, stride)
        for member in range(begin, end + 1):
            is_edge = member <= begin + 1 or member >= end - 1
            if not is_edge and (member - begin) % stride != shift:
                continue
            # At the ends of the whole path nothing is gained by moving outwards.
            if end < length - 1 and 0 < end - member <= MAX_LENGTH:
                _note(moves, count, path[member], path[end], via[begin + 1], 1, end - member)
                count += 1
            if begin > 0 and 0 < member - begin <= MAX_LENGTH:
                _note(moves, count, path[member], path[begin], via[begin + 1], 0, member - begin)
                count += 1
        begin = max(end, begin + 1)
    return count


@compiled_leaf
def _note(
    moves: IntArray, place: int, task: int, anchor: int, device: int, direction: int, distance: int
) -> None:
    moves[place, TASK], moves[place, ANCHOR], moves[place, DEVICE] = task, anchor, device
    moves[place, DIRECTION], moves[place, DISTANCE] = direction, distance


@compiled_leaf
def _choose(
    arrays: InstanceArrays,
    orders: Orders,
    moves: IntArray,
    num_moves: int,
    turn: int,
    best: int,
    scratch: IntArray,
    heads: IntArray,
    state: int,
) -> int:
    """Return the place in the list of the move with the least estimate, or -1 if none is allowed.

    A tabu move counts only if it promises a new best.
    """
    chosen, least = -1, 1 << 60
    for place in range(num_moves):
        task, anchor, device = moves[place, TASK], moves[place, ANCHOR], moves[place, DEVICE]
        is_right, distance = moves[place, DIRECTION] == 1, moves[place, DISTANCE]
        if not _line_up(arrays, orders, task, anchor, device, is_right, distance, scratch):
            continue
        state = next_state(state)
        estimate = _longest_through(arrays, orders, device, distance + 1, scratch, heads)
        if estimate >= best and _is_tabu(orders, task, anchor, is_right, turn):
            continue
        if estimate < least or (estimate == least and below(state, 2) == 1):
            chosen, least = place, estimate
    return chosen


@compiled_leaf
def _line_up(
    arrays: InstanceArrays,
    orders: Orders,
    task: int,
    anchor: int,
    device: int,
    is_right: bool,
    distance: int,
    scratch: IntArray,
) -> bool:
    """Write the tasks that a move concerns in their new order; return whether the move is allowed."""
    num_blocks = arrays.num_blocks
    block = task % num_blocks
    amount, limit = arrays.memory[block], arrays.limit[device]
    is_single = arrays.device_start[block + 1] - arrays.device_start[block] == 1
    if not is_single and (distance > 1 or not _can_swap(arrays, orders, task, anchor, is_right)):
        return False
    scratch[distance if is_right else 0] = task
    slot = slot_of(arrays, task, device)
    for place in range(distance):
        passed = orders.following[slot] if is_right else orders.previous[slot]
        slot = slot_of(arrays, passed, device)
        scratch[place if is_right else distance - place] = passed
        # What is passed to the right starts without the task's memory, to the left with it.
        level = orders.level[slot] + (-amount if is_right else amount)
        if passed % num_blocks == block or level > limit:
            return False
    before = orders.previous[slot]
    level = 0 if before < 0 else orders.level[slot_of(arrays, before, device)]
    if not is_right and level + amount > limit:
        return False
    return distance == 1 or not _may_close_cycle(arrays, orders, task, anchor, is_right)


@compiled_leaf
def _longest_through(
    arrays: InstanceArrays, orders: Orders, device: int, count: int, scratch: IntArray, heads: IntArray
) -> int:
    """Return the longest path through tasks in their new order, as long as what surrounds them stays."""
    num_blocks = arrays.num_blocks
    before, after = _surroundings(arrays, orders, device, count, scratch)
    time = 0 if before < 0 else orders.head[before] + arrays.span[before % num_blocks]
    for place in range(count):
        moved = scratch[place]
        time = max(time, outer_head(arrays, orders, moved, device))
        heads[place] = time
        time += arrays.span[moved % num_blocks]
    longest = 0
    behind = 0 if after < 0 else orders.tail[after]
    for place in range(count - 1, -1, -1):
        moved = scratch[place]
        behind = max(outer_tail(arrays, orders, moved, device), arrays.span[moved % num_blocks] + behind)
        longest = max(longest, heads[place] + behind)
    return int(longest)


@compiled_leaf
def _surroundings(
    arrays: InstanceArrays, orders: Orders, device: int, count: int, scratch: IntArray
) -> tuple[int, int]:
    """The tasks before and after those that change places, which still stand in their old order."""
    first, last = scratch[0], scratch[count - 1]
    for place in range(count):
        if orders.rank[scratch[place]] < orders.rank[first]:
            first = scratch[place]
        if orders.rank[scratch[place]] > orders.rank[last]:
            last = scratch[place]
    return (
        int(orders.previous[slot_of(arrays, first, device)]),
        int(orders.following[slot_of(arrays, last, device)]),
    )


@compiled_leaf
def _can_swap(arrays: InstanceArrays, orders: Orders, task: int, anchor: int, is_right: bool) -> bool:
    """Whether two tasks are neighbours on every device that both hold, and may change places there."""
    left, right = (task, anchor) if is_right else (anchor, task)
    block = left % arrays.num_blocks
    other = arrays.memory[right % arrays.num_blocks]
    for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
        device = arrays.device[place]
        slot = slot_of(arrays, right, device)
        if slot < 0:
            continue
        if orders.previous[slot] != left:
            return False
        before = orders.previous[slot_of(arrays, left, device)]
        level = 0 if before < 0 else orders.level[slot_of(arrays, before, device)]
        if level + other > arrays.limit[device]:
            return False
    return True


@compiled_leaf
def _may_close_cycle(arrays: InstanceArrays, orders: Orders, task: int, anchor: int, is_right: bool) -> bool:
    """Whether the times leave room for a path that the move would turn into a cycle."""
    num_blocks = arrays.num_blocks
    block, first = task % num_blocks, task // num_blocks * num_blocks
    if is_right:
        for place in range(arrays.after_start[block], arrays.after_start[block + 1]):
            target = first + arrays.after[place]
            if orders.rank[target] < 0:
                continue
            span = arrays.span[arrays.after[place]]
            if (
                orders.head[anchor] >= orders.head[target] + span
                and orders.tail[target] >= orders.tail[anchor] + span
            ):
                return True
        return False
    span = arrays.span[anchor % num_blocks]
    for place in range(arrays.before_start[block], arrays.before_start[block + 1]):
        source = first + arrays.before[place]
        if orders.rank[source] < 0:
            continue
        if (
            orders.head[source] >= orders.head[anchor] + span
            and orders.tail[anchor] >= orders.tail[source] + span
        ):
            return True
    return False


@compiled_leaf
def _pair(one: int, other: int) -> int:
    return ((one * 40503 + other * 30011 + 7) ^ (one >> 3)) & ((1 << TABU_BITS) - 1)


@compiled_leaf
def _is_tabu(orders: Orders, task: int, anchor: int, is_right: bool, turn: int) -> bool:
    """Whether putting the two into that order is forbidden."""
    pair = _pair(anchor, task) if is_right else _pair(task, anchor)
    return bool(orders.tabu[pair] >= turn)


@compiled_leaf
def _forbid(orders: Orders, task: int, anchor: int, is_right: bool, until: int) -> None:
    """Forbid putting the two into that order."""
    pair = _pair(anchor, task) if is_right else _pair(task, anchor)
    orders.tabu[pair] = until


@compiled_leaf
def _move(
    arrays: InstanceArrays,
    orders: Orders,
    task: int,
    anchor: int,
    device: int,
    is_right: bool,
    is_marked: IntArray,
    buffer: IntArray,
    turn: int,
    state: int,
) -> bool:
    """Carry a move out and time everything again; undo it and return False if it closes a cycle."""
    num_blocks = arrays.num_blocks
    block = task % num_blocks
    origin = orders.previous[slot_of(arrays, task, device)]
    is_pair = arrays.device_start[block + 1] - arrays.device_start[block] > 1
    if is_pair:
        swap_everywhere(arrays, orders, task, anchor, is_right)
    else:
        relink(
            arrays,
            orders,
            task,
            anchor if is_right else orders.previous[slot_of(arrays, anchor, device)],
            device,
        )
    begin = orders.rank[task] if is_right else orders.rank[anchor]
    end = orders.rank[anchor] if is_right else orders.rank[task]
    if not repair_sequence(arrays, orders, begin, end, is_marked, buffer):
        if is_pair:
            swap_everywhere(arrays, orders, task, anchor, not is_right)
        else:
            relink(arrays, orders, task, origin, device)
        return False
    _forbid_return(arrays, orders, task, origin, device, is_right, turn + MIN_TENURE + below(state, 10))
    is_marked[:] = 0
    update_heads(arrays, orders, begin, end, is_marked)
    is_marked[:] = 0
    update_tails(arrays, orders, begin, end, is_marked)
    return True


@compiled_leaf
def _forbid_return(
    arrays: InstanceArrays, orders: Orders, task: int, origin: int, device: int, is_right: bool, until: int
) -> None:
    """Forbid each pair that changed its order to change back for a while; `origin` came before the task."""
    passed = task
    while True:
        slot = slot_of(arrays, passed, device)
        passed = orders.previous[slot] if is_right else orders.following[slot]
        if passed < 0 or (is_right and passed == origin):
            break
        _forbid(orders, task, passed, not is_right, until)
        if not is_right and passed == origin:
            break
