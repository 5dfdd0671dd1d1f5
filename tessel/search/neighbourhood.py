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

from typing import NamedTuple

import numpy as np

from tessel.search.compiled import compiled, compiled_leaf
from tessel.search.instance import Instance, IntArray
from tessel.search.lottery import below, next_state

TABU_BITS = 16
"""The tabu list is a table of 2¹⁶ pairs; two pairs in one place only forbid a little more."""

MAX_LENGTH = 64
"""Most steps that a move passes; longer ones cost more than they were seen to bring."""


CYCLE_TENURE = 20
"""Rounds for which a move that closes a cycle is not tried again."""

LEAST_TENURE = 6
"""Fewest rounds for which a move may not be taken back; the lottery adds up to ten."""


class Orders(NamedTuple):
    """The orders of all devices, with what follows from them; all int64.

    A slot is a step on one of its devices: slot `m·S + j` is the j-th of the S (block, device) pairs of
    micro-batch m, in the order of `Instance.device`. -1 stands for no step.

    Attributes:
        previous: step before, by slot.
        following: step after, by slot.
        level: units held on the device after the step starts, by slot.
        first: first step, by device.
        sequence: steps in a topological order.
        rank: place in `sequence` by step, -1 for steps not run.
        head: start by step.
        tail: longest way from the start to the end of all, by step.
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


def orders_of(instance: Instance, start: IntArray) -> Orders:
    """Return the orders of a valid schedule, and its times when all steps start as early as they allow.

    Args:
        instance: the arrays.
        start: start by step, -1 where a step is not run.
    """
    num_steps = instance.num_blocks * instance.micro_batches
    num_slots = len(instance.device)
    steps = np.flatnonzero(start >= 0)
    block = steps % instance.num_blocks
    topological = np.empty(instance.num_blocks, dtype=np.int64)
    topological[instance.serial_order] = np.arange(instance.num_blocks)
    # Of steps that start together, those of span 0 come first.
    by_time = np.lexsort(
        (topological[block], steps // instance.num_blocks, instance.span[block] > 0, start[steps])
    )
    sequence = steps[by_time].astype(np.int64)
    rank = np.full(num_steps, -1, dtype=np.int64)
    rank[sequence] = np.arange(len(sequence))
    orders = Orders(
        previous=np.full(num_slots * instance.micro_batches, -1, dtype=np.int64),
        following=np.full(num_slots * instance.micro_batches, -1, dtype=np.int64),
        level=np.zeros(num_slots * instance.micro_batches, dtype=np.int64),
        first=np.full(instance.num_devices, -1, dtype=np.int64),
        sequence=sequence,
        rank=rank,
        head=np.full(num_steps, -1, dtype=np.int64),
        tail=np.zeros(num_steps, dtype=np.int64),
        tabu=np.zeros(1 << TABU_BITS, dtype=np.int64),
        best=start.copy(),
    )
    _link(instance, orders)
    return orders


def earliest_starts(instance: Instance, orders: Orders) -> IntArray:
    """Return the earliest start by step that the orders allow; -1 for steps not run."""
    _time_heads(instance, orders, 0)
    return orders.head.copy()


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
    _time_heads(instance, orders, 0)
    _time_tails(instance, orders, len(orders.sequence) - 1)
    makespan = _makespan(instance, orders)
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
            makespan = _makespan(instance, orders)
        else:
            _forbid(orders, step, anchor, is_right, turn + CYCLE_TENURE)
    if makespan < best:
        best = makespan
        orders.best[:] = orders.head
    return int(best), int(state)


@compiled
def _link(instance: Instance, orders: Orders) -> None:
    """Fill in the orders and levels from the sequence."""
    num_slots = len(instance.device)
    last = np.full(instance.num_devices, -1, dtype=np.int64)
    held = np.zeros(instance.num_devices, dtype=np.int64)
    for step in orders.sequence:
        block, micro_batch = step % instance.num_blocks, step // instance.num_blocks
        for place in range(instance.device_start[block], instance.device_start[block + 1]):
            device, slot = instance.device[place], micro_batch * num_slots + place
            held[device] += instance.memory[block]
            orders.level[slot] = held[device]
            before = last[device]
            orders.previous[slot] = before
            if before < 0:
                orders.first[device] = step
            else:
                orders.following[_slot(instance, before, device)] = step
            last[device] = step


@compiled_leaf
def _slot(instance: Instance, step: int, device: int) -> int:
    """The slot of a step on a device, or -1 if it does not hold it."""
    block, micro_batch = step % instance.num_blocks, step // instance.num_blocks
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        if instance.device[place] == device:
            return int(micro_batch * len(instance.device) + place)
    return -1


@compiled_leaf
def _outer_head(instance: Instance, orders: Orders, step: int, device: int) -> int:
    """The earliest start that everything but the order of one device allows; -1 as device leaves none out."""
    block, micro_batch = step % instance.num_blocks, step // instance.num_blocks
    first = micro_batch * instance.num_blocks
    earliest = 0
    for place in range(instance.before_start[block], instance.before_start[block + 1]):
        source = first + instance.before[place]
        if orders.rank[source] >= 0:
            earliest = max(earliest, orders.head[source] + instance.before_delay[place])
    slots = micro_batch * len(instance.device)
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        before = orders.previous[slots + place]
        if before >= 0 and instance.device[place] != device:
            earliest = max(earliest, orders.head[before] + instance.span[before % instance.num_blocks])
    return int(earliest)


@compiled_leaf
def _outer_tail(instance: Instance, orders: Orders, step: int, device: int) -> int:
    """The longest way from the start of a step to the end that does not go on along one device."""
    block, micro_batch = step % instance.num_blocks, step // instance.num_blocks
    first = micro_batch * instance.num_blocks
    span = instance.span[block]
    longest = span
    for place in range(instance.after_start[block], instance.after_start[block + 1]):
        target = first + instance.after[place]
        if orders.rank[target] >= 0:
            longest = max(longest, instance.after_delay[place] + orders.tail[target])
    slots = micro_batch * len(instance.device)
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        after = orders.following[slots + place]
        if after >= 0 and instance.device[place] != device:
            longest = max(longest, span + orders.tail[after])
    return int(longest)


@compiled
def _time_heads(instance: Instance, orders: Orders, begin: int) -> None:
    for place in range(begin, len(orders.sequence)):
        step = orders.sequence[place]
        orders.head[step] = _outer_head(instance, orders, step, -1)


@compiled_leaf
def _time_tails(instance: Instance, orders: Orders, begin: int) -> None:
    for place in range(begin, -1, -1):
        step = orders.sequence[place]
        orders.tail[step] = _outer_tail(instance, orders, step, -1)


@compiled_leaf
def _update_heads(instance: Instance, orders: Orders, begin: int, end: int, is_dirty: IntArray) -> None:
    """Time the steps of a window of the sequence again, and beyond it those that a change reaches."""
    num_blocks, num_slots = instance.num_blocks, len(instance.device)
    farthest, place = end, begin
    while place <= farthest:
        step = orders.sequence[place]
        in_window = place <= end
        place += 1
        if not in_window and is_dirty[step] == 0:
            continue
        is_dirty[step] = 0
        block, micro_batch = step % num_blocks, step // num_blocks
        head = _outer_head(instance, orders, step, -1)
        # Behind the window a step may have a new neighbour even where no time has changed.
        if head == orders.head[step] and not in_window:
            continue
        orders.head[step] = head
        for at in range(instance.after_start[block], instance.after_start[block + 1]):
            target = micro_batch * num_blocks + instance.after[at]
            if orders.rank[target] >= 0:
                is_dirty[target] = 1
                farthest = max(farthest, orders.rank[target])
        for at in range(instance.device_start[block], instance.device_start[block + 1]):
            target = orders.following[micro_batch * num_slots + at]
            if target >= 0:
                is_dirty[target] = 1
                farthest = max(farthest, orders.rank[target])


@compiled_leaf
def _update_tails(instance: Instance, orders: Orders, begin: int, end: int, is_dirty: IntArray) -> None:
    """The same for tails, backwards."""
    num_blocks, num_slots = instance.num_blocks, len(instance.device)
    farthest, place = begin, end
    while place >= farthest:
        step = orders.sequence[place]
        in_window = place >= begin
        place -= 1
        if not in_window and is_dirty[step] == 0:
            continue
        is_dirty[step] = 0
        block, micro_batch = step % num_blocks, step // num_blocks
        tail = _outer_tail(instance, orders, step, -1)
        if tail == orders.tail[step] and not in_window:
            continue
        orders.tail[step] = tail
        for at in range(instance.before_start[block], instance.before_start[block + 1]):
            source = micro_batch * num_blocks + instance.before[at]
            if orders.rank[source] >= 0:
                is_dirty[source] = 1
                farthest = min(farthest, orders.rank[source])
        for at in range(instance.device_start[block], instance.device_start[block + 1]):
            source = orders.previous[micro_batch * num_slots + at]
            if source >= 0:
                is_dirty[source] = 1
                farthest = min(farthest, orders.rank[source])


@compiled_leaf
def _makespan(instance: Instance, orders: Orders) -> int:
    makespan = 0
    for step in orders.sequence:
        makespan = max(makespan, orders.head[step] + instance.span[step % instance.num_blocks])
    return int(makespan)


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
    before = orders.previous[_slot(instance, step, device)]
    after = orders.following[_slot(instance, step, device)]
    for place in range(distance):
        slot = _slot(instance, current, device)
        if is_right:
            current = orders.following[slot]
            scratch[place] = current
            after = orders.following[_slot(instance, current, device)]
        else:
            current = orders.previous[slot]
            scratch[count - 1 - place] = current
            before = orders.previous[_slot(instance, current, device)]
        if current % num_blocks == block:
            return -1
        level = orders.level[_slot(instance, current, device)]
        if is_right and amount < 0 and level - amount > limit:
            return -1
        if not is_right and amount > 0 and level + amount > limit:
            return -1
    scratch[count - 1 if is_right else 0] = step
    if not is_right and amount > 0:
        level = 0 if before < 0 else orders.level[_slot(instance, before, device)]
        if level + amount > limit:
            return -1
    if num_held > 1 and not _can_swap(instance, orders, step, anchor, is_right):
        return -1
    if distance > 1 and _may_close_cycle(instance, orders, step, anchor, is_right):
        return -1
    time = 0 if before < 0 else orders.head[before] + instance.span[before % num_blocks]
    for place in range(count):
        moved = scratch[place]
        time = max(time, _outer_head(instance, orders, moved, device))
        heads[place] = time
        time += instance.span[moved % num_blocks]
    longest = 0
    behind = 0 if after < 0 else orders.tail[after]
    for place in range(count - 1, -1, -1):
        moved = scratch[place]
        behind = max(_outer_tail(instance, orders, moved, device), instance.span[moved % num_blocks] + behind)
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
        slot = _slot(instance, right, device)
        if slot < 0:
            continue
        if orders.previous[slot] != left:
            return False
        before = orders.previous[_slot(instance, left, device)]
        level = 0 if before < 0 else orders.level[_slot(instance, before, device)]
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
    origin = orders.previous[_slot(instance, step, device)]
    is_pair = instance.device_start[block + 1] - instance.device_start[block] > 1
    if is_pair:
        _swap_everywhere(instance, orders, step, anchor, is_right)
    else:
        _relink(
            instance,
            orders,
            step,
            anchor if is_right else orders.previous[_slot(instance, anchor, device)],
            device,
        )
    begin = orders.rank[step] if is_right else orders.rank[anchor]
    end = orders.rank[anchor] if is_right else orders.rank[step]
    if not _repair_sequence(instance, orders, begin, end, is_marked, buffer):
        if is_pair:
            _swap_everywhere(instance, orders, step, anchor, not is_right)
        else:
            _relink(instance, orders, step, origin, device)
        return False
    _forbid_return(instance, orders, step, origin, device, is_right, turn + LEAST_TENURE + below(state, 10))
    is_marked[:] = 0
    _update_heads(instance, orders, begin, end, is_marked)
    is_marked[:] = 0
    _update_tails(instance, orders, begin, end, is_marked)
    return True


@compiled_leaf
def _forbid_return(
    instance: Instance, orders: Orders, step: int, origin: int, device: int, is_right: bool, until: int
) -> None:
    """Forbid each pair that changed its order to change back for a while; `origin` came before the step."""
    passed = step
    while True:
        slot = _slot(instance, passed, device)
        passed = orders.previous[slot] if is_right else orders.following[slot]
        if passed < 0 or (is_right and passed == origin):
            break
        _forbid(orders, step, passed, not is_right, until)
        if not is_right and passed == origin:
            break


@compiled_leaf
def _swap_everywhere(instance: Instance, orders: Orders, step: int, anchor: int, is_right: bool) -> None:
    """Let two neighbours change places on every device that both hold."""
    left, right = (step, anchor) if is_right else (anchor, step)
    block = left % instance.num_blocks
    for place in range(instance.device_start[block], instance.device_start[block + 1]):
        if _slot(instance, right, instance.device[place]) >= 0:
            _relink(instance, orders, left, right, instance.device[place])


@compiled_leaf
def _relink(instance: Instance, orders: Orders, step: int, target: int, device: int) -> None:
    """Take a step out of a device's order and put it behind another one, or first where that is -1."""
    slot = _slot(instance, step, device)
    before, after = orders.previous[slot], orders.following[slot]
    if before < 0:
        orders.first[device] = after
    else:
        orders.following[_slot(instance, before, device)] = after
    if after >= 0:
        orders.previous[_slot(instance, after, device)] = before
    if target < 0:
        behind = orders.first[device]
        orders.first[device] = step
    else:
        behind = orders.following[_slot(instance, target, device)]
        orders.following[_slot(instance, target, device)] = step
    orders.previous[slot], orders.following[slot] = target, behind
    if behind >= 0:
        orders.previous[_slot(instance, behind, device)] = step
    _set_levels(instance, orders, device)


@compiled_leaf
def _set_levels(instance: Instance, orders: Orders, device: int) -> None:
    held, step = 0, orders.first[device]
    while step >= 0:
        slot = _slot(instance, step, device)
        held += instance.memory[step % instance.num_blocks]
        orders.level[slot] = held
        step = orders.following[slot]


@compiled_leaf
def _repair_sequence(
    instance: Instance, orders: Orders, begin: int, end: int, is_marked: IntArray, buffer: IntArray
) -> bool:
    """Put the step at `end`, and what it waits for, before that at `begin`; False if it waits for that."""
    sequence, rank = orders.sequence, orders.rank
    num_blocks, num_slots = instance.num_blocks, len(instance.device)
    for place in range(begin, end + 1):
        is_marked[sequence[place]] = 0
    is_marked[sequence[end]] = 1
    for place in range(end, begin, -1):
        step = sequence[place]
        if is_marked[step] == 0:
            continue
        block, micro_batch = step % num_blocks, step // num_blocks
        for at in range(instance.before_start[block], instance.before_start[block + 1]):
            source = micro_batch * num_blocks + instance.before[at]
            if rank[source] >= begin:
                is_marked[source] = 1
        for at in range(instance.device_start[block], instance.device_start[block + 1]):
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
