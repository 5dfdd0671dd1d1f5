"""Bound on when some devices are done, when they must wait for the others no longer than paths say.

Keep only the blocks of one device, or of a few: one at a time on each, each at least the longest path after
those before it, under the memory limits, the rest of the schedule before and after as heads and tails. What
is left is to find an order, and that is a relaxation of the whole schedule. Micro-batches are alike, so a
state is how many of each block have started; it remembers the least times at which the devices are free and
at which each pending block may start. Several ways into one state are merged by taking the least of each,
which only lets more happen: a relaxed decision diagram.

    f f i w    2 units a forward, limit 3      counts (f, i, w):  (1,0,0) - (1,1,0) - (2,1,0) - ...
                                               the second f waits for the i of the first micro-batch

The last state's least end is a bound on the makespan. States from which no end before a known makespan can be
reached are dropped; if none is left, that makespan is least. Choices are relaxed before
(`tessel.search.makespan.bounds.choice_relaxation`); where blocks without a span hold memory on these devices,
nothing is said. Checked in tests/tessel/search/test_every_bound.py against CP-SAT.

Source: Andersen, Hadzic, Hooker and Tiedemann (CP 2007) and Bergman, Cire, van Hoeve and Hooker, "Decision
Diagrams for Optimization" (2016), for relaxed diagrams of sequencing problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import UNREACHABLE, IntArray, Problem

MAX_STATES = 1 << 14
"""States of one layer; beyond, the diagram is given up."""

MAX_PENDING = 24
"""Pending micro-batches of a block whose times are remembered; later ones may start at once."""

OPERATIONS_A_LAYER = 20_000
"""Charged for a layer, whatever is in it."""

OPERATIONS_A_NUMBER = 3
"""Charged for each number that a step from state to state looks at."""

MAX_KEY = 1 << 62
"""Counts are numbered in mixed radix; devices with more blocks than fit are given up."""


@dataclass(slots=True)
class RelaxedDiagram:
    """The diagram of some devices, a layer at a time.

    Attributes:
        devices: which.
        micro_batches: how many are run.
        bound: no schedule is shorter; 0 before the last layer, or where nothing is said.
        is_over: the last layer is reached, or the diagram was given up.
        layer: steps that have started.
        spans: int64, shape (blocks,), of the blocks kept; `memory`, `heads` and `tails` likewise.
        holds: int64, shape (blocks, devices): 1 where a block holds a device.
        needs: int64, shape (blocks, blocks): 1 where the one must come before the other.
        waits: int64, shape (blocks, blocks): from start to start, where that says more than `needs`; else 0.
        slot: int64, shape (blocks,): where in a row of `times` a block's pending times begin; 0: it has none.
        limits: int64, shape (devices,).
        counts: int64, shape (states, blocks): micro-batches of each block that have started.
        times: int64, shape (states, devices + 1 + waiting blocks x pending): when each device is free, the
            makespan at least, and by block when its next micro-batches may start.
    """

    devices: tuple[int, ...]
    micro_batches: int
    spans: IntArray
    memory: IntArray
    heads: IntArray
    tails: IntArray
    holds: IntArray
    needs: IntArray
    waits: IntArray
    slot: IntArray
    limits: IntArray
    counts: IntArray
    times: IntArray
    bound: int = 0
    is_over: bool = False
    layer: int = 0

    def advance(self, known: int) -> int:
        """Add a layer.

        Args:
            known: a makespan that a schedule reaches; ways that are no shorter are dropped.

        Returns:
            Operations to charge for it.
        """
        size, width = len(self.spans), self.times.shape[1]
        num_looks = len(self.counts) * size * (int(width) + 4 * size)
        self.counts, self.times = next_layer(
            self.counts,
            self.times,
            self.spans,
            self.memory,
            self.heads,
            self.tails,
            self.holds,
            self.needs,
            self.waits,
            self.slot,
            self.limits,
            self.micro_batches,
            known,
            MAX_STATES,
        )
        self.layer += 1
        if len(self.counts) > MAX_STATES:
            self.is_over = True
        elif len(self.counts) == 0:
            self.is_over, self.bound = True, known
        elif self.layer == len(self.spans) * self.micro_batches:
            self.is_over, self.bound = True, int(self.times[:, len(self.devices)].min())
        return OPERATIONS_A_LAYER + num_looks * OPERATIONS_A_NUMBER


def relaxed_diagram(problem: Problem, devices: Sequence[int], micro_batches: int) -> RelaxedDiagram | None:
    """Return the diagram of these devices, not begun, or None where nothing can be said.

    Args:
        problem: the blocks and limits, of a placement without choices.
        devices: the devices to keep, ascending.
        micro_batches: how many are run, >= 1.
    """
    place = {block: place for place, block in enumerate(problem.order)}
    kept = {block for device in devices for block in problem.blocks_by_device[device]}
    blocks = sorted(kept, key=place.__getitem__)
    is_instant = any(problem.spans[block] == 0 and problem.memory[block] for block in blocks)
    if not blocks or is_instant or (micro_batches + 1) ** len(blocks) >= MAX_KEY:
        return None
    holds = problem.on_device[np.ix_(blocks, devices)].astype(np.int64)
    needs, waits = _waits(problem, blocks, holds)
    pending = min(micro_batches, MAX_PENDING)
    is_waiting = waits.any(axis=0)
    slot = np.where(is_waiting, len(devices) + 1 + (np.cumsum(is_waiting) - 1) * pending, 0)
    return RelaxedDiagram(
        devices=tuple(devices),
        micro_batches=micro_batches,
        spans=problem.spans[blocks],
        memory=problem.memory[blocks],
        heads=problem.heads[blocks],
        tails=problem.tails[blocks],
        holds=holds,
        needs=needs,
        waits=waits,
        slot=slot,
        limits=problem.limits[list(devices)],
        counts=np.zeros((1, len(blocks)), dtype=np.int64),
        times=np.zeros((1, len(devices) + 1 + int(is_waiting.sum()) * pending), dtype=np.int64),
    )


def _waits(problem: Problem, blocks: Sequence[int], holds: IntArray) -> tuple[IntArray, IntArray]:
    """Return `needs` and `waits`; what follows by way of a third block is left out."""
    size = len(blocks)
    paths = problem.paths[np.ix_(blocks, blocks)]
    is_tied = paths > UNREACHABLE
    needs = np.zeros((size, size), dtype=np.int64)
    waits = np.zeros((size, size), dtype=np.int64)
    for u in range(size):
        for v in range(u + 1, size):
            between = [k for k in range(u + 1, v) if is_tied[u, k] and is_tied[k, v]]
            if not is_tied[u, v] or any(paths[u, k] + paths[k, v] >= paths[u, v] for k in between):
                continue
            needs[u, v] = 1
            is_together = bool((holds[u] & holds[v]).any())
            if paths[u, v] > problem.spans[blocks[u]] or not is_together:
                waits[u, v] = paths[u, v]
    return needs, waits


@compiled
def next_layer(
    counts: IntArray,
    times: IntArray,
    spans: IntArray,
    memory: IntArray,
    heads: IntArray,
    tails: IntArray,
    holds: IntArray,
    needs: IntArray,
    waits: IntArray,
    slot: IntArray,
    limits: IntArray,
    micro_batches: int,
    known: int,
    most_states: int,
) -> tuple[IntArray, IntArray]:
    """Start one more step in every state, in every way, and merge what ends in the same counts.

    Returns:
        Counts and times of the next layer; more than `most_states` rows where that was too many.
    """
    size, num_devices = holds.shape
    width = times.shape[1]
    pending = (width - num_devices - 1) // max(1, np.count_nonzero(slot))
    capacity = min(most_states + 1, len(counts) * size)
    table_size = 4
    while table_size < 4 * capacity:
        table_size *= 2
    table = np.full(table_size, -1, dtype=np.int64)
    keys = np.zeros(capacity, dtype=np.int64)
    new_counts = np.zeros((capacity, size), dtype=np.int64)
    new_times = np.zeros((capacity, width), dtype=np.int64)
    moved = np.zeros(width, dtype=np.int64)
    found = 0
    for state in range(len(counts)):
        key = np.int64(0)
        for block in range(size):
            key = key * (micro_batches + 1) + counts[state, block]
        radix = np.int64(1)
        for back in range(size):
            block = size - 1 - back
            new_key = key + radix
            radix *= micro_batches + 1
            if not may_start(counts[state], block, memory, holds, needs, limits, micro_batches):
                continue
            start_block(
                counts[state], times[state], block, pending,
                spans, heads, tails, holds, waits, slot, micro_batches, moved,
            )  # fmt: skip
            if least_end(counts[state], moved, block, spans, tails, holds, micro_batches) >= known:
                continue
            spot = (new_key % 2147483647) * 40503 % table_size
            while table[spot] >= 0 and keys[table[spot]] != new_key:
                spot = (spot + 1) % table_size
            if table[spot] < 0:
                if found == capacity:
                    return new_counts, new_times
                table[spot] = found
                keys[found] = new_key
                new_counts[found] = counts[state]
                new_counts[found, block] += 1
                new_times[found] = moved
                found += 1
            else:
                row = table[spot]
                for at in range(width):
                    new_times[row, at] = min(new_times[row, at], moved[at])
    return new_counts[:found].copy(), new_times[:found].copy()


@compiled
def may_start(
    count: IntArray,
    block: int,
    memory: IntArray,
    holds: IntArray,
    needs: IntArray,
    limits: IntArray,
    micro_batches: int,
) -> bool:
    """Return whether the next micro-batch of a block may come next."""
    size, num_devices = holds.shape
    if count[block] >= micro_batches:
        return False
    for source in range(size):
        if needs[source, block] and count[source] <= count[block]:
            return False
    if memory[block] <= 0:
        return True
    for device in range(num_devices):
        if holds[block, device]:
            held = memory[block]
            for other in range(size):
                held += count[other] * memory[other] * holds[other, device]
            if held > limits[device]:
                return False
    return True


@compiled
def start_block(
    count: IntArray,
    time: IntArray,
    block: int,
    pending: int,
    spans: IntArray,
    heads: IntArray,
    tails: IntArray,
    holds: IntArray,
    waits: IntArray,
    slot: IntArray,
    micro_batches: int,
    moved: IntArray,
) -> None:
    """Fill `moved` with the times after the next micro-batch of a block has started as soon as it may."""
    size, num_devices = holds.shape
    start = heads[block]
    if slot[block] > 0:
        start = max(start, time[slot[block]])
    for device in range(num_devices):
        if holds[block, device]:
            start = max(start, time[device])
    moved[:] = time
    for device in range(num_devices):
        if holds[block, device]:
            moved[device] = start + spans[block]
    if count[block] == micro_batches - 1:
        moved[num_devices] = max(moved[num_devices], start + tails[block])
    if slot[block] > 0:
        last = slot[block] + pending - 1
        for at in range(slot[block], last):
            moved[at] = moved[at + 1]
        moved[last] = 0
    for target in range(size):
        if slot[target] == 0:
            continue
        ahead = count[block] - count[target]
        if waits[block, target] > 0 and ahead < pending:
            moved[slot[target] + ahead] = max(moved[slot[target] + ahead], start + waits[block, target])
        free = np.int64(0)
        for device in range(num_devices):
            if holds[target, device]:
                free = max(free, moved[device])
        for at in range(slot[target], slot[target] + pending):
            if moved[at] < free:
                moved[at] = free


@compiled
def least_end(
    count: IntArray,
    moved: IntArray,
    block: int,
    spans: IntArray,
    tails: IntArray,
    holds: IntArray,
    micro_batches: int,
) -> int:
    """Return how soon the schedule can end once a block has started: by what each device has yet to do."""
    size, num_devices = holds.shape
    least = moved[num_devices]
    for device in range(num_devices):
        work = np.int64(0)
        tail = np.int64(-1)
        for other in range(size):
            left = micro_batches - count[other] - (1 if other == block else 0)
            if left > 0 and holds[other, device]:
                work += left * spans[other]
                after = tails[other] - spans[other]
                tail = after if tail < 0 else min(tail, after)
        least = max(least, moved[device] + work + max(tail, 0))
    return int(least)
