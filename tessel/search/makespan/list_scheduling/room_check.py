"""Whether a task that adds memory may be taken: whether the open micro-batches can still be finished.

They are to be finished oldest first, each in the instance's serial order, which is the same on every device:
so a slot for a later chunk is never given away, and it is enough to look at the devices of the task, O(open
micro-batches) there. Small instances are looked at as a whole, where each open micro-batch may first give
back what it can. Checked in tests/tessel/search/makespan/test_list_scheduling.py.

Source: Dijkstra, EWD 623 (the banker's algorithm).
"""

from __future__ import annotations

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.makespan.list_scheduling.listing import Listing
from tessel.search.model.instance import InstanceArrays, IntArray
from tessel.search.model.problem import UNLIMITED


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
