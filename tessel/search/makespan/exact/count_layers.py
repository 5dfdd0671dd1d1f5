"""Layers of partial schedules, each with one task more than the one before; only undominated ones stay.

Tasks are added in the order of their starts, each as early as the device, the queues of
`tessel.search.makespan.exact.count_model` and the task added last allow. A state is what that leaves: counts
by block, the start of the last task, when devices are free, and the queues. Times that can no longer matter
are raised to the first time that can. Of two states with equal counts the one that is nowhere later makes the
other one superfluous, whatever follows. A state is dropped where

    soonest start of a set of tasks + their work on a device + longest path from there to the end

does not stay below a known makespan, for each device, with the soonest starts and the paths to the end as
thresholds; and, where work may move, for each set of devices. Nor is a task added where its device would
idle for long enough to run another one that could come next, holds only this device and adds no memory: to
run that one in the gap, as its next task wherever it came later, delays nothing and holds no more, so that
some best completion of each state begins without such a gap (active schedules).

Where states with equal counts are merged, by taking the least of each time, only more can happen: a layer has
few states, and the least end is a bound (a relaxed decision diagram).

Source: Held and Karp (1962) for sets as states; Baker and Su (1974) and Jackson (1955) for the bound of one
machine with heads and tails; Giffler and Thompson (1960) for active schedules; Andersen, Hadzic, Hooker and
Tiedemann (CP 2007) and Bergman, Cire, van Hoeve and Hooker, "Decision Diagrams for Optimization" (2016), for
relaxed diagrams.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.makespan.exact.count_model import CountModel
from tessel.search.model.precedence import IntArray

MANY = 1 << 60


class Layer(NamedTuple):
    """States with equally many tasks; all int64.

    Attributes:
        counts: by state and block, micro-batches that have started it.
        times: by state: start of the last task, least end, when each device is free, and the queues.
        parent: by state, the one in the layer before.
        added: by state, the block that was added to it.
        chained: by state, the next one with an equal hash, or -1.
        table: by hash, the first state, or -1.
        size: of one number: states.
    """

    counts: IntArray
    times: IntArray
    parent: IntArray
    added: IntArray
    chained: IntArray
    table: IntArray
    size: IntArray


def width_of(model: CountModel) -> int:
    """Return the numbers in a row of times."""
    return 2 + len(model.limit) + int(model.queue_start[-1]) * model.pending


def empty_layer(model: CountModel, capacity: int) -> Layer:
    """Return a layer with room for so many states, and none in it."""
    table_size = 1 << max(4, (2 * capacity - 1).bit_length())
    return Layer(
        counts=np.zeros((capacity, len(model.span)), dtype=np.int64),
        times=np.zeros((capacity, width_of(model)), dtype=np.int64),
        parent=np.zeros(capacity, dtype=np.int64),
        added=np.zeros(capacity, dtype=np.int64),
        chained=np.full(capacity, -1, dtype=np.int64),
        table=np.full(table_size, -1, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )


@compiled
def expand(
    model: CountModel, layer: Layer, later: Layer, begin: int, end: int, least: IntArray, merges: bool
) -> tuple[int, int]:
    """Add one task to each of some states, in every way, and keep what may end before a known makespan.

    Args:
        later: the next layer, which they are added to.
        begin: first state.
        end: state after the last.
        least: of one number: the makespan to stay below, lowered where a complete schedule is found.
        merges: whether states with equal counts become one with the least of their times.

    Returns:
        Elementary looks, and the state of `layer` whose completion is `least`, with the block that completes
        it as `state·blocks + block`, or -1; looks are negative, less one, where there was no room.
    """
    num_blocks, num_groups, num_devices = len(model.span), len(model.owner), len(model.limit)
    width = layer.times.shape[1]
    count = np.zeros(num_blocks, dtype=np.int64)
    moved = np.zeros(width, dtype=np.int64)
    total = np.zeros(num_groups, dtype=np.int64)
    left = np.zeros(num_groups, dtype=np.int64)
    free = np.zeros(num_groups, dtype=np.int64)
    soonest = np.zeros(num_groups, dtype=np.int64)
    heads = np.zeros(num_groups, dtype=np.int64)
    held = np.zeros(num_devices, dtype=np.int64)
    gap_end = np.full(num_devices, MANY, dtype=np.int64)
    looks = np.int64(0)
    completion = np.int64(-1)
    bounding = len(model.here) if merges else 2 * len(model.in_group) + 4 * len(model.here)
    cost = np.int64(width + bounding + 2 * num_blocks)
    for state in range(begin, end):
        # Since it was kept, a shorter schedule may have been found.
        if layer.times[state, 1] >= least[0]:
            continue
        count[:] = layer.counts[state]
        set_totals(model, count, total, held)
        if not merges:  # merged times are no schedule's, so that a gap in them proves nothing
            set_gap_ends(model, count, total, held, layer.times[state], gap_end)
        looks += 4 * num_groups
        last = np.int64(-1)
        for block in range(num_blocks):
            looks += 6
            if last >= 0:  # taken back
                count[last] -= 1
                total[model.group[last]] -= 1
                last = np.int64(-1)
            if not may_start(model, count, total, held, block):
                continue
            moved[:] = layer.times[state]
            start_block(model, count, total, moved, block)
            if leaves_gap(model, block, moved[0], gap_end):
                continue
            last = np.int64(block)
            count[block] += 1
            total[model.group[block]] += 1
            looks += cost
            is_complete = set_left(model, count, total, left)
            if is_complete:
                if moved[1] < least[0]:
                    least[0] = moved[1]
                    completion = np.int64(state * num_blocks + block)
                continue
            clamp(model, total, moved, free)
            if merges:
                bound = soonest_end(model, left, moved)
            else:
                bound = least_end(model, count, total, left, moved, free, soonest, heads)
            if bound >= least[0]:
                continue
            moved[1] = bound
            found = keep(later, count, moved, state, block, merges)
            if found < 0:
                return -int(looks) - 1, int(completion)
            looks += found
    return int(looks), int(completion)


@compiled_leaf
def set_gap_ends(
    model: CountModel,
    count: IntArray,
    total: IntArray,
    held: IntArray,
    times: IntArray,
    gap_end: IntArray,
) -> None:
    """Fill `gap_end` with the least end, by device, of a task that could come next there and adds nothing."""
    gap_end[:] = MANY
    for group in range(len(total)):
        block = model.member[model.member_start[group]]
        is_single = model.member_start[group + 1] - model.member_start[group] == 1
        is_alone = model.device_start[block + 1] - model.device_start[block] == 1
        if not is_single or not is_alone or model.span[block] == 0 or model.memory[block] > 0:
            continue
        if may_start(model, count, total, held, block):
            device = model.device[model.device_start[block]]
            when = soonest_start(model, times, block)
            gap_end[device] = min(gap_end[device], when + model.span[block])


@compiled_leaf
def leaves_gap(model: CountModel, block: int, when: int, gap_end: IntArray) -> bool:
    """Return whether another task would fit between a device's last one and a block that starts then."""
    for place in range(model.device_start[block], model.device_start[block + 1]):
        if when >= gap_end[model.device[place]]:
            return True
    return False


@compiled_leaf
def soonest_start(model: CountModel, times: IntArray, block: int) -> int:
    """Return when the next micro-batch of a block may start."""
    group = model.group[block]
    when = max(times[0], model.head[block])
    for place in range(model.device_start[block], model.device_start[block + 1]):
        when = max(when, times[2 + model.device[place]])
    for queue in range(model.queue_start[group], model.queue_start[group + 1]):
        when = max(when, times[2 + len(model.limit) + queue * model.pending])
    return int(when)


@compiled_leaf
def set_totals(model: CountModel, count: IntArray, total: IntArray, held: IntArray) -> None:
    """Fill `total` with the starts of each group, and `held` with the units on each device."""
    total[:] = 0
    held[:] = 0
    for block in range(len(count)):
        total[model.group[block]] += count[block]
        for place in range(model.device_start[block], model.device_start[block + 1]):
            held[model.device[place]] += count[block] * model.memory[block]


@compiled_leaf
def set_left(model: CountModel, count: IntArray, total: IntArray, left: IntArray) -> bool:
    """Fill `left` with the starts of each group that are known to be missing; return whether none is."""
    is_complete = True
    for group in range(len(total)):
        owner = model.owner[group]
        due = model.micro_batches if owner < 0 else count[owner]
        left[group] = due - total[group]
        if left[group] > 0:
            is_complete = False
    return is_complete


@compiled_leaf
def may_start(model: CountModel, count: IntArray, total: IntArray, held: IntArray, block: int) -> bool:
    """Return whether the next micro-batch of a block may come next."""
    group = model.group[block]
    if total[group] >= model.micro_batches:
        return False
    for at in range(model.in_start[group], model.in_start[group + 1]):
        source = model.in_block[at]
        ahead = total[model.in_group[at]] if source < 0 else count[source]
        if ahead <= total[group]:
            return False
    if model.memory[block] <= 0:
        return True
    for place in range(model.device_start[block], model.device_start[block + 1]):
        device = model.device[place]
        if held[device] + model.memory[block] > model.limit[device]:
            return False
    return True


@compiled_leaf
def start_block(model: CountModel, count: IntArray, total: IntArray, moved: IntArray, block: int) -> None:
    """Change times to those after the block has started; counts are those before."""
    group, num_devices, pending = model.group[block], len(model.limit), model.pending
    queues = 2 + num_devices
    when = soonest_start(model, moved, block)
    for queue in range(model.queue_start[group], model.queue_start[group + 1]):
        first = queues + queue * pending
        for at in range(first, first + pending - 1):
            moved[at] = moved[at + 1]
        moved[first + pending - 1] = 0
    moved[0] = when
    moved[1] = max(moved[1], when + model.tail[block])
    for place in range(model.device_start[block], model.device_start[block + 1]):
        moved[2 + model.device[place]] = when + model.span[block]
    for at in range(model.out_start[block], model.out_start[block + 1]):
        target = model.out_group[at]
        ahead = (count[block] if model.out_own[at] else total[group]) - total[target]
        first = queues + model.out_queue[at] * pending
        ready = when + model.out_delay[at]
        if model.out_sorted[at]:
            place = min(ahead, pending)
            if place == pending:
                if moved[first + pending - 1] <= ready:
                    continue
                place = pending - 1
            while place > 0 and moved[first + place - 1] > ready:
                moved[first + place] = moved[first + place - 1]
                place -= 1
            moved[first + place] = ready
        elif ahead < pending:
            moved[first + ahead] = max(moved[first + ahead], ready)


@compiled_leaf
def clamp(model: CountModel, total: IntArray, moved: IntArray, free: IntArray) -> None:
    """Raise times that no longer matter to the first time that does; fill `free` by `free_time`."""
    num_devices, pending = len(model.limit), model.pending
    for device in range(num_devices):
        moved[2 + device] = max(moved[2 + device], moved[0])
    for group in range(len(total)):
        free[group] = free_time(model, moved, group)
        missing = min(pending, model.micro_batches - total[group])
        for queue in range(model.queue_start[group], model.queue_start[group + 1]):
            first = 2 + num_devices + queue * pending
            for at in range(first, first + missing):
                moved[at] = max(moved[at], free[group])
            for at in range(first + missing, first + pending):
                moved[at] = 0


@compiled_leaf
def free_time(model: CountModel, moved: IntArray, group: int) -> int:
    """Return when the devices of some block of a group are free."""
    least = np.int64(MANY)
    for at in range(model.member_start[group], model.member_start[group + 1]):
        block = model.member[at]
        free = max(moved[0], model.head[block])
        for place in range(model.device_start[block], model.device_start[block + 1]):
            free = max(free, moved[2 + model.device[place]])
        least = min(least, free)
    return int(least)


@compiled_leaf
def soonest_end(model: CountModel, left: IntArray, moved: IntArray) -> int:
    """Return how soon a schedule can end that begins like this, by the work left on each device alone."""
    bound = moved[1]
    for device in range(len(model.limit)):
        work, after = np.int64(0), np.int64(MANY)
        for at in range(model.here_start[device], model.here_start[device + 1]):
            group = model.here[at]
            if left[group] > 0:
                work += left[group] * model.work[device, group]
                after = model.after[device, group]
        if work > 0:
            bound = max(bound, moved[2 + device] + work + after)
    return int(bound)


@compiled_leaf
def least_end(
    model: CountModel,
    count: IntArray,
    total: IntArray,
    left: IntArray,
    moved: IntArray,
    free: IntArray,
    soonest: IntArray,
    heads: IntArray,
) -> int:
    """Return how soon a schedule that begins like this can end."""
    bound = set_soonest(model, count, total, left, moved, free, soonest)
    num_devices = len(model.limit)
    for device in range(num_devices):
        idle = moved[2 + device]
        first, last = model.here_start[device], model.here_start[device + 1]
        num_heads = 0
        for at in range(first, last):
            group = model.here[at]
            if left[group] > 0:
                head = max(idle, soonest[group])
                is_known = False
                for known in range(num_heads):
                    is_known = is_known or heads[known] == head
                if not is_known:
                    heads[num_heads] = head
                    num_heads += 1
        for known in range(num_heads):
            work = np.int64(0)
            for at in range(first, last):
                group = model.here[at]
                if left[group] > 0 and max(idle, soonest[group]) >= heads[known]:
                    work += left[group] * model.work[device, group]
                    bound = max(bound, heads[known] + work + model.after[device, group])
    for subset in range(len(model.subset)):
        size = np.int64(0)
        work = np.int64(0)
        for device in range(num_devices):
            if model.subset[subset, device]:
                size += 1
                work += moved[2 + device]
        for group in range(len(total)):
            work += left[group] * model.subset_work[subset, group]
        bound = max(bound, int(-(-work // size)))
    return int(bound)


@compiled_leaf
def set_soonest(
    model: CountModel,
    count: IntArray,
    total: IntArray,
    left: IntArray,
    moved: IntArray,
    free: IntArray,
    soonest: IntArray,
) -> int:
    """Fill `soonest` with the least start of each group's next micro-batch; return the least end."""
    bound = moved[1]
    num_devices, pending = len(model.limit), model.pending
    for place in range(len(total)):
        group = model.group_order[place]
        if left[group] == 0:
            soonest[group] = MANY
            continue
        when = free[group]
        for queue in range(model.queue_start[group], model.queue_start[group + 1]):
            when = max(when, moved[2 + num_devices + queue * pending])
        for at in range(model.in_start[group], model.in_start[group + 1]):
            source = model.in_block[at]
            before = model.in_group[at]
            ahead = total[before] if source < 0 else count[source]
            if ahead <= total[group]:
                when = max(when, soonest[before] + model.in_delay[at])
        soonest[group] = when
        tail = np.int64(MANY)
        for at in range(model.member_start[group], model.member_start[group + 1]):
            tail = min(tail, model.tail[model.member[at]])
        bound = max(bound, when + (left[group] - 1) * model.serial_span[group] + tail)
    return int(bound)


@compiled_leaf
def keep(later: Layer, count: IntArray, moved: IntArray, state: int, block: int, merges: bool) -> int:
    """Keep a state unless another is as good; return how many numbers were compared, or -1 for no room."""
    key = np.int64(0)
    for each in range(len(count)):
        key = (key * 1000003 + count[each]) & 0xFFFFFFFFFF
    spot = (key ^ (key >> 17)) & (len(later.table) - 1)
    at = later.table[spot]
    replaced = np.int64(-1)
    num_looks = np.int64(1)
    while at >= 0:
        is_equal = True
        for each in range(len(count)):
            num_looks += 1
            if later.counts[at, each] != count[each]:
                is_equal = False
                break
        if is_equal and merges:
            for each in range(len(moved)):
                later.times[at, each] = min(later.times[at, each], moved[each])
            return int(num_looks) + len(moved)
        if is_equal:
            is_no_later, is_no_sooner = True, True
            for each in range(len(moved)):
                num_looks += 1
                if moved[each] > later.times[at, each]:
                    is_no_later = False
                elif moved[each] < later.times[at, each]:
                    is_no_sooner = False
                if not is_no_later and not is_no_sooner:
                    break
            if is_no_sooner:
                return int(num_looks)
            if is_no_later:
                if replaced < 0:
                    replaced = at
                else:
                    # Dominated as well: never expanded, and dominates nothing that counts.
                    later.times[at, 1] = MANY
        at = later.chained[at]
    if replaced < 0:
        replaced = later.size[0]
        if replaced == len(later.counts):
            return -1
        later.size[0] += 1
        later.chained[replaced] = later.table[spot]
        later.table[spot] = replaced
        for each in range(len(count)):
            later.counts[replaced, each] = count[each]
    for each in range(len(moved)):
        later.times[replaced, each] = moved[each]
    later.parent[replaced] = state
    later.added[replaced] = block
    return int(num_looks)
