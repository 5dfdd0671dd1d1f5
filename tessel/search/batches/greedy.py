"""A runtime that picks blocks as it goes, where durations vary.

A static order waits for its next block. A greedy runtime runs, on each device that is free, the first block
of the static order that can start, out of turn only where the rest can still follow within the same memory in
the static order: so it never deadlocks, and never holds more. It knows no future, and can be slower. Checked
in tests/tessel/search/batches/test_greedy.py.
"""

from __future__ import annotations

import numpy as np

from tessel.batches.batch import IntArray
from tessel.search.batches.replay import FloatArray, Replay
from tessel.search.jit.compiled import compiled


@compiled
def greedy_starts(
    replay: Replay, spans: FloatArray, lags: FloatArray, memory: IntArray, limits: IntArray, start: FloatArray
) -> None:
    """Write the starts of a greedy runtime; O(tasks² on a device) for each of them.

    Args:
        replay: the static order; each block on one device.
        spans: by position and block.
        lags: by position and edge.
        memory: by position and block.
        limits: by device, at least what the static order holds.
        start: by task, written.
    """
    count, devices = len(replay.block), len(limits)
    is_done = np.zeros(count, dtype=np.bool_)
    end = np.zeros(count)
    free = np.zeros(devices)
    held = np.zeros(devices, dtype=np.int64)
    for _ in range(count):
        chosen, on, soonest = -1, 0, np.inf
        for device in range(devices):
            is_first = True
            for place in range(replay.held_start[device], replay.held_start[device + 1]):
                task = replay.held[place]
                if is_done[task]:
                    continue
                is_ready, ready = True, free[device]
                position = replay.position[task]
                for wait in range(replay.before_start[task], replay.before_start[task + 1]):
                    edge = replay.before_edge[wait]
                    if edge >= 0:
                        earlier = replay.before[wait]
                        is_ready = is_ready and is_done[earlier]
                        ready = max(ready, end[earlier] + lags[position, edge])
                if is_ready and ready < soonest:
                    rest = held[device] + memory[position, replay.block[task]]
                    fits = is_first or rest <= limits[device]
                    if fits and not is_first:
                        for later in range(replay.held_start[device], replay.held_start[device + 1]):
                            other = replay.held[later]
                            if other != task and not is_done[other]:
                                rest += memory[replay.position[other], replay.block[other]]
                                fits = fits and rest <= limits[device]
                    if fits:
                        chosen, on, soonest = task, device, ready
                is_first = False
        start[chosen] = soonest
        end[chosen] = soonest + spans[replay.position[chosen], replay.block[chosen]]
        free[on] = end[chosen]
        held[on] += memory[replay.position[chosen], replay.block[chosen]]
        is_done[chosen] = True
