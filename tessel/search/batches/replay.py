"""Orders of positions, timed for many sequences of micro-batches: which one takes a position is left open.

Where all micro-batches are alike, a rule says which block of the first, the second, … runs when. With
micro-batches that differ, the same orders hold for positions, and a sequence says which micro-batch takes
which. Starts are the earliest that the orders, edges and lags allow, as in `tessel.orders`; here they are
computed on arrays: for many sets of durations at once (`makespans`), or compiled, for one sequence after the
other (`sequence_makespan`).

    orders   f[0] f[1] b[0] b[1]     sequence (5, 2)  →  f[5] f[2] b[5] b[2]

Memory depends on the orders alone: what a device holds is summed along its order. Checked in
tests/tessel/search/batches/test_replay.py against `tessel.orders.earliest_starts` and `Schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.batches.batch import Batch, IntArray
from tessel.orders import Orders, Task, earliest_starts
from tessel.placement import Placement
from tessel.search.jit.compiled import compiled

FloatArray = npt.NDArray[np.float64]

TOO_MUCH = 2**62
"""The makespan of a sequence that exceeds a limit of memory."""


class Replay(NamedTuple):
    """Tasks of positions, each after those that it waits for; all int64.

    Attributes:
        block: by task.
        position: by task.
        before_start: rows of `before` and `before_edge` by task.
        before: tasks that a task waits for.
        before_edge: the edge whose lag counts, or -1 for the one before on a device.
        held_start: rows of `held` by device.
        held: tasks that change a device's memory, in its order.
    """

    block: IntArray
    position: IntArray
    before_start: IntArray
    before: IntArray
    before_edge: IntArray
    held_start: IntArray
    held: IntArray


def replay_of(placement: Placement, orders: Orders) -> Replay:
    """Return the arrays of orders whose micro-batches are positions.

    Raises:
        DeadlockError: tasks wait for each other.
        ScheduleError: a task is missing on a device.
    """
    tasks = [Task(*task) for task in earliest_starts(placement, orders)]
    rank = {task: number for number, task in enumerate(tasks)}
    waits: list[list[tuple[int, int]]] = [[] for _ in tasks]
    for order in orders:
        for first, second in pairwise(order):
            waits[rank[second]].append((rank[first], -1))
    index = placement.index_by_name
    for number, edge in enumerate(placement.edges):
        source, target = index[edge.source], index[edge.target]
        for task in tasks:
            if task.block_index == target and (earlier := Task(source, task.micro_batch)) in rank:
                waits[rank[task]].append((rank[earlier], number))
    flat = [pair for own in waits for pair in own]
    return Replay(
        block=np.array([task.block_index for task in tasks], dtype=np.int64),
        position=np.array([task.micro_batch for task in tasks], dtype=np.int64),
        before_start=_starts_of_rows(waits),
        before=np.array([earlier for earlier, _ in flat], dtype=np.int64),
        before_edge=np.array([edge for _, edge in flat], dtype=np.int64),
        held_start=_starts_of_rows(orders),
        held=np.array([rank[task] for order in orders for task in order], dtype=np.int64),
    )


def replayed_starts(replay: Replay, spans: FloatArray, lags: FloatArray) -> FloatArray:
    """Return the earliest starts with each of several sets of durations; O(tasks) array operations.

    Args:
        replay: the orders.
        spans: float64, shape (sets, positions, blocks).
        lags: float64, shape (sets, positions, edges), of what arrives at the position.

    Returns:
        float64, shape (tasks, sets), in the unit of the durations.
    """
    starts = np.zeros((len(replay.block), len(spans)))
    ends = np.zeros_like(starts)
    begins = replay.before_start.tolist()
    before, edges = replay.before.tolist(), replay.before_edge.tolist()
    places = zip(replay.block.tolist(), replay.position.tolist(), strict=True)
    for task, (block, position) in enumerate(places):
        start = starts[task]
        for place in range(begins[task], begins[task + 1]):
            arrival = ends[before[place]]
            if edges[place] >= 0:
                arrival = arrival + lags[:, position, edges[place]]
            np.maximum(start, arrival, out=start)
        np.add(start, spans[:, position, block], out=ends[task])
    return starts


def makespans(replay: Replay, spans: FloatArray, lags: FloatArray) -> FloatArray:
    """Return the last end with each of several sets of durations; float64, shape (sets,)."""
    starts = replayed_starts(replay, spans, lags)
    run = spans[:, replay.position, replay.block].T
    longest: FloatArray = (starts + run).max(axis=0)
    return longest


def starts_of_sequence(replay: Replay, batch: Batch, sequence: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the start of each (block, micro-batch) where micro-batches take positions as a sequence says."""
    order = np.asarray(sequence, dtype=np.int64)
    start = np.zeros(len(replay.block), dtype=np.int64)
    sequence_makespan(replay, batch.spans, batch.lags, order, start)
    taken = order[replay.position].tolist()
    return dict(zip(zip(replay.block.tolist(), taken, strict=True), start.tolist(), strict=True))


@compiled
def sequence_makespan(
    replay: Replay, spans: IntArray, lags: IntArray, sequence: IntArray, start: IntArray
) -> int:
    """Return the last end where the micro-batches take positions as a sequence says; writes the starts.

    Args:
        replay: the orders.
        spans: by micro-batch and block.
        lags: by micro-batch and edge.
        sequence: the micro-batch at each position.
        start: by task, written.
    """
    last = 0
    for task in range(len(replay.block)):
        micro_batch = sequence[replay.position[task]]
        begin = 0
        for place in range(replay.before_start[task], replay.before_start[task + 1]):
            earlier = replay.before[place]
            arrival = start[earlier] + spans[sequence[replay.position[earlier]], replay.block[earlier]]
            if replay.before_edge[place] >= 0:
                arrival += lags[micro_batch, replay.before_edge[place]]
            begin = max(begin, arrival)
        start[task] = begin
        last = max(last, begin + spans[micro_batch, replay.block[task]])
    return last


@compiled
def keeps_limits(replay: Replay, memory: IntArray, limits: IntArray, sequence: IntArray) -> bool:
    """Return whether no device ever holds more than its limit; memory is by micro-batch and block."""
    for device in range(len(limits)):
        held = 0
        for place in range(replay.held_start[device], replay.held_start[device + 1]):
            task = replay.held[place]
            held += memory[sequence[replay.position[task]], replay.block[task]]
            if held > limits[device]:
                return False
    return True


def _starts_of_rows(rows: Sequence[Sequence[object]]) -> IntArray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
