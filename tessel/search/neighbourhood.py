"""Tabu search over device orders: change the order on the critical path, keep what helps, never dead-lock.

A schedule is the order of each device; times follow as longest paths (as in `tessel.orders`). The makespan is
the length of a critical path, and only a change on it can help: of steps that follow each other on one device
there, one moves before the first or behind the last.

    device 0   f0 f0 f0 w0 b0 ...      critical: f0 f0 f0 w0, then on device 1
    move       f0 f0 w0' ...           w0 behind b0 lets b0, and all that waits for it, start earlier

Each round takes the move whose estimated longest path is least, even when it is worse than before; what was
just moved may not move back for a while. The estimate is exact for paths through the moved steps as long as
what surrounds them stays, O(steps moved). Memory on a device depends on its order alone, so a move is allowed
if no running sum breaks the limit; a cycle is found while the topological order is repaired. Steps of one
block keep the order of their micro-batches. Checked in tests/tessel/search/test_neighbourhood.py.

Source: Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem" (1996); Balas and
Vazacopoulos (1998) for moving over several steps; Taillard (1994) for the estimates. Here blocks may hold
several devices and orders keep memory limits.
"""

from __future__ import annotations

import numpy as np

from tessel.search.compiled import compiled, compiled_leaf
from tessel.search.device_orders import (
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
from tessel.search.instance import Instance, IntArray
from tessel.search.lottery import below, next_state

MAX_LENGTH = 64
"""Most steps that a move passes; longer ones cost more than they were seen to bring."""


CYCLE_TENURE = 20
"""Rounds for which a move that closes a cycle is not tried again."""

LEAST_TENURE = 6
"""Fewest rounds for which a move may not be taken back; the lottery adds up to ten."""


@compiled
def search_neighbourhood(
    instance: Instance,
    orders: Orders,
    best: int,
    turn: int,
    num_rounds: int,
    num_kicks: int,
    target: int,
    state: int,
) -> tuple[int, int]:
    """Move for some rounds, keeping the best schedule in `orders.best`; return its makespan and the state.

    Args:
        instance: the arrays.
        orders: where to go on; changed.
        best: makespan of the schedule in `orders.best`.
        turn: rounds made on these orders before.
        num_rounds: moves tried, O(steps) each.
        num_kicks: random moves made first, whatever they cost.
        target: the search ends at a makespan that is not above it.
        state: state of the lottery.
    """
    num_steps = len(orders.rank)
    path = np.empty(num_steps, dtype=np.int64)
    via = np.empty(num_steps, dtype=np.int64)
    is_marked = np.zeros(num_steps, dtype=np.int64)
    buffer = np.empty(num_steps, dtype=np.int64)
    scratch = np.empty(MAX_LENGTH + 2, dtype=np.int64)
    heads = np.empty(MAX_LENGTH + 2, dtype=np.int64)
    time_heads(instance, orders, 0)
    time_tails(instance, orders, len(orders.sequence) - 1)
    makespan = makespan_in_order(instance, orders)
    for done in range(num_rounds + num_kicks):
        if makespan < best:
            best = makespan
            orders.best[:] = orders.head
        if best <= target:
            break
        turn += 1
        state = next_state(state)
        length = _critical_path(instance, orders, makespan, path, via, state)
        state, step, anchor, device, is_right = _choose(
            instance, orders, path, via, length, turn, best, done < num_kicks, scratch, heads, state
        )
        if step < 0:
            orders.tabu[:] = 0
        elif _move(instance, orders, step, anchor, device, is_right, is_marked, buffer, turn, state):
            makespan = makespan_in_order(instance, orders)
        else:
            _forbid(orders, step, anchor, is_right, turn + CYCLE_TENURE)
    if makespan < best:
        best = makespan
        orders.best[:] = orders.head
    return int(best), int(state)


@compiled_leaf
def _critical_path(
    instance: Instance, orders: Orders, makespan: int, path: IntArray, via: IntArray, state: int
) -> int:
    """Write one critical path, drawn by lot where it branches; return its length.

    via[i] is the device along which path[i] follows path[i - 1], or -1 where an edge is tight as well.
    """
    num_blocks, num_slots = instance.num_blocks, len(instance.device)
    step, found = -1, 0
    for candidate in orders.sequence:
        if orders.head[candidate] > 0:
            break
        if orders.tail[candidate] == makespan:
            found += 1
            state = next_state(state)
            if below(state, found) == 0:
                step = candidate
    length = 0
    arrived = -1
    while step >= 0:
        path[length], via[length] = step, arrived
        length += 1
        block, micro_batch = step % num_blocks, step // num_blocks
        upcoming, arrived, found = -1, -1, 0
        for place in range(instance.after_start[block], instance.after_start[block + 1]):
            target = micro_batch * num_blocks + instance.after[place]
            delay = instance.after_delay[place]
            if _is_tight(orders, step, target, delay, makespan):
                found += 1
                state = next_state(state)
                if below(state, found) == 0:
                    upcoming = target
        for place in range(instance.device_start[block], instance.device_start[block + 1]):
            target = orders.following[micro_batch * num_slots + place]
            if target >= 0 and _is_tight(orders, step, target, instance.span[block], makespan):
                found += 1
                state = next_state(state)
                if below(state, found) == 0:
                    upcoming, arrived = target, instance.device[place]
        step = upcoming
    return length


@compiled_leaf
def _is_tight(orders: Orders, step: int, target: int, delay: int, makespan: int) -> bool:
    return bool(
        orders.rank[target] >= 0
        and orders.head[target] == orders.head[step] + delay
        and orders.head[target] + orders.tail[target] == makespan
    )


@compiled_leaf
def _choose(
    instance: Instance,
    orders: Orders,
    path: IntArray,
    via: IntArray,
    length: int,
    turn: int,
    best: int,
    is_kick: bool,
    scratch: IntArray,
    heads: IntArray,
    state: int,
) -> tuple[int, int, int, int, bool]:
    """Return the best move on the path: state, step, the step to pass last, device, direction.

    The step is -1 if there is none.

    A tabu move counts only if it promises a new best; a kick is drawn by lot.
    """
    chosen, chosen_anchor, chosen_device, chosen_right = -1, -1, -1, False
    least, drawn = 1 << 60, 0
    begin = 0
    while begin < length:
        end = begin
        while end + 1 < length and via[end + 1] >= 0 and (end == begin or via[end + 1] == via[end]):
            end += 1
        if end > begin:
            device = via[begin + 1]
            stride = 1 + (end - begin) // 16
            state = next_state(state)
            shift = below(state, stride)
            for member in range(begin, end + 1):
                is_edge = member <= begin + 1 or member >= end - 1
                if not is_edge and (member - begin) % stride != shift:
                    continue
                for is_right in (True, False):
                    # At the ends of the whole path nothing is gained by moving outwards.
                    if (is_right and end == length - 1) or (not is_right and begin == 0):
                        continue
                    anchor = path[end] if is_right else path[begin]
                    distance = end - member if is_right else member - begin
                    if distance == 0 or distance > MAX_LENGTH:
                        continue
                    estimate = _estimate(
                        instance, orders, path[member], anchor, device, is_right, distance, scratch, heads
                    )
                    if estimate < 0:
                        continue
                    if is_kick:
                        drawn += 1
                        state = next_state(state)
                        if below(state, drawn) > 0:
                            continue
                    else:
                        if estimate >= best and _is_tabu(orders, path[member], anchor, is_right, turn):
                            continue
                        state = next_state(state)
                        if estimate > least or (estimate == least and below(state, 2) == 0):
                            continue
                    least = estimate
                    chosen, chosen_anchor, chosen_device, chosen_right = (
                        path[member],
                        anchor,
                        device,
                        is_right,
                    )
        begin = max(end, begin + 1)
    return int(state), int(chosen), int(chosen_anchor), int(chosen_device), bool(chosen_right)


@compiled_leaf
def _estimate(
    instance: Instance,
    orders: Orders,
    step: int,
    anchor: int,
    device: int,
    is_right: bool,
    distance: int,
    scratch: IntArray,
    heads: IntArray,
) -> int:
    """Return the longest path through the steps that change places, or -1 if the move is not allowed.

    `scratch` takes the steps in their new order, `heads` their estimated starts.
    """
    num_blocks = instance.num_blocks
    block = step % num_blocks
    num_held = instance.device_start[block + 1] - instance.device_start[block]
    if num_held > 1 and distance > 1:
        return -1
    amount = instance.memory[block]
    limit = instance.limit[device]
    count = distance + 1
    current = step
    before = orders.previous[slot_of(instance, step, device)]
    after = orders.following[slot_of(instance, step, device)]
    for place in range(distance):
        slot = slot_of(instance, current, device)
        if is_right:
            current = orders.following[slot]
            scratch[place] = current
            after = orders.following[slot_of(instance, current, device)]
        else:
            current = orders.previous[slot]
            scratch[count - 1 - place] = current
            before = orders.previous[slot_of(instance, current, device)]
        if current % num_blocks == block:
            return -1
        level = orders.level[slot_of(instance, current, device)]
        if is_right and amount < 0 and level - amount > limit:
            return -1
        if not is_right and amount > 0 and level + amount > limit:
            return -1
    scratch[count - 1 if is_right else 0] = step
    if not is_right and amount > 0:
        level = 0 if before < 0 else orders.level[slot_of(instance, before, device)]
        if level + amount > limit:
            return -1
    if num_held > 1 and not _can_swap(instance, orders, step, anchor, is_right):
        return -1
    if distance > 1 and _may_close_cycle(instance, orders, step, anchor, is_right):
        return -1
    time = 0 if before < 0 else orders.head[before] + instance.span[before % num_blocks]
    for place in range(count):
        moved = scratch[place]
        time = max(time, outer_head(instance, orders, moved, device))
        heads[place] = time
        time += instance.span[moved % num_blocks]
    longest = 0
    behind = 0 if after < 0 else orders.tail[after]
    for place in range(count - 1, -1, -1):
        moved = scratch[place]
        behind = max(outer_tail(instance, orders, moved, device), instance.span[moved % num_blocks] + behind)
        longest = max(longest, heads[place] + behind)
    return int(longest)


@compiled_leaf
def _can_swap(instance: Instance, orders: Orders, step: int, anchor: int, is_right: bool) -> bool:
    """Whether two steps are neighbours on every device that both hold, and may change places there."""
    left, right = (step, anchor) if is_right else (anchor, step)
    block = left % instance.num_blocks
    other = instance.memory[right % instance.num_blocks]
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        device = instance.device[place]
        slot = slot_of(instance, right, device)
        if slot < 0:
            continue
        if orders.previous[slot] != left:
            return False
        before = orders.previous[slot_of(instance, left, device)]
        level = 0 if before < 0 else orders.level[slot_of(instance, before, device)]
        if level + other > instance.limit[device]:
            return False
    return True


@compiled_leaf
def _may_close_cycle(instance: Instance, orders: Orders, step: int, anchor: int, is_right: bool) -> bool:
    """Whether the times leave room for a path that the move would turn into a cycle."""
    num_blocks = instance.num_blocks
    block, first = step % num_blocks, step // num_blocks * num_blocks
    if is_right:
        for place in range(instance.after_start[block], instance.after_start[block + 1]):
            target = first + instance.after[place]
            if orders.rank[target] < 0:
                continue
            span = instance.span[instance.after[place]]
            if (
                orders.head[anchor] >= orders.head[target] + span
                and orders.tail[target] >= orders.tail[anchor] + span
            ):
                return True
        return False
    span = instance.span[anchor % num_blocks]
    for place in range(instance.before_start[block], instance.before_start[block + 1]):
        source = first + instance.before[place]
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
def _is_tabu(orders: Orders, step: int, anchor: int, is_right: bool, turn: int) -> bool:
    """Whether putting the two into that order is forbidden."""
    pair = _pair(anchor, step) if is_right else _pair(step, anchor)
    return bool(orders.tabu[pair] >= turn)


@compiled_leaf
def _forbid(orders: Orders, step: int, anchor: int, is_right: bool, until: int) -> None:
    """Forbid putting the two into that order."""
    pair = _pair(anchor, step) if is_right else _pair(step, anchor)
    orders.tabu[pair] = until


@compiled_leaf
def _move(
    instance: Instance,
    orders: Orders,
    step: int,
    anchor: int,
    device: int,
    is_right: bool,
    is_marked: IntArray,
    buffer: IntArray,
    turn: int,
    state: int,
) -> bool:
    """Carry a move out and time everything again; undo it and return False if it closes a cycle."""
    num_blocks = instance.num_blocks
    block = step % num_blocks
    origin = orders.previous[slot_of(instance, step, device)]
    is_pair = instance.device_start[block + 1] - instance.device_start[block] > 1
    if is_pair:
        swap_everywhere(instance, orders, step, anchor, is_right)
    else:
        relink(
            instance,
            orders,
            step,
            anchor if is_right else orders.previous[slot_of(instance, anchor, device)],
            device,
        )
    begin = orders.rank[step] if is_right else orders.rank[anchor]
    end = orders.rank[anchor] if is_right else orders.rank[step]
    if not repair_sequence(instance, orders, begin, end, is_marked, buffer):
        if is_pair:
            swap_everywhere(instance, orders, step, anchor, not is_right)
        else:
            relink(instance, orders, step, origin, device)
        return False
    _forbid_return(instance, orders, step, origin, device, is_right, turn + LEAST_TENURE + below(state, 10))
    is_marked[:] = 0
    update_heads(instance, orders, begin, end, is_marked)
    is_marked[:] = 0
    update_tails(instance, orders, begin, end, is_marked)
    return True


@compiled_leaf
def _forbid_return(
    instance: Instance, orders: Orders, step: int, origin: int, device: int, is_right: bool, until: int
) -> None:
    """Forbid each pair that changed its order to change back for a while; `origin` came before the step."""
    passed = step
    while True:
        slot = slot_of(instance, passed, device)
        passed = orders.previous[slot] if is_right else orders.following[slot]
        if passed < 0 or (is_right and passed == origin):
            break
        _forbid(orders, step, passed, not is_right, until)
        if not is_right and passed == origin:
            break
