"""Exchanges of micro-batches between the slowest replica and others, timed by their pipelines.

Compiled: an exchange times two replicas, some microseconds. Checked in
tests/tessel/search/batches/test_assignment.py.
"""

from __future__ import annotations

import numpy as np

from tessel.batches.batch import IntArray
from tessel.search.batches.replay import TOO_MUCH, Replay, keeps_limits, sequence_makespan
from tessel.search.jit.compiled import compiled
from tessel.search.jit.random_generator import below, next_state


@compiled
def exchange(
    replay: Replay,
    spans: IntArray,
    lags: IntArray,
    memory: IntArray,
    limits: IntArray,
    rows: IntArray,
    trials: int,
    state: int,
) -> tuple[int, int]:
    """Exchange members of the slowest row for members of others; return the state and the slowest makespan.

    Args:
        replay: the orders that every row runs.
        spans: by micro-batch and block; micro-batches are numbered from the shortest to the longest.
        lags: by micro-batch and edge.
        memory: by micro-batch and block.
        limits: units by device.
        rows: micro-batches by replica, ascending; changed in place.
        trials: exchanges tried.
        state: of the random generator.
    """
    replicas, size = rows.shape
    start = np.zeros(len(replay.block), dtype=np.int64)
    order = np.zeros(size, dtype=np.int64)
    makespan = np.zeros(replicas, dtype=np.int64)
    for row in range(replicas):
        makespan[row] = row_makespan(replay, spans, lags, memory, limits, rows[row], order, start)
    one, other = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    for _ in range(trials if replicas > 1 else 0):
        slowest = int(np.argmax(makespan))
        state = next_state(state)
        row = below(state, replicas - 1)
        row += row >= slowest
        state = next_state(state)
        first = below(state, size)
        state = next_state(state)
        second = below(state, size)
        one[:] = rows[slowest]
        other[:] = rows[row]
        one[first], other[second] = rows[row, second], rows[slowest, first]
        one.sort()
        other.sort()
        after = row_makespan(replay, spans, lags, memory, limits, one, order, start)
        if after >= makespan[slowest]:
            continue
        there = row_makespan(replay, spans, lags, memory, limits, other, order, start)
        if there < makespan[slowest]:
            makespan[slowest], makespan[row] = after, there
            rows[slowest] = one
            rows[row] = other
    return state, int(makespan.max())


@compiled
def row_makespan(
    replay: Replay,
    spans: IntArray,
    lags: IntArray,
    memory: IntArray,
    limits: IntArray,
    row: IntArray,
    order: IntArray,
    start: IntArray,
) -> int:
    """Return the shortest makespan of a row: longest first, shortest first, or shortest at both ends.

    Args:
        replay: the orders.
        spans: by micro-batch and block.
        lags: by micro-batch and edge.
        memory: by micro-batch and block.
        limits: units by device.
        row: micro-batches, from the shortest to the longest.
        order: room for a sequence.
        start: room for starts.
    """
    size = len(row)
    best = TOO_MUCH
    for form in range(3):
        for place in range(size):
            if form == 0:
                order[place] = row[size - 1 - place]
            elif form == 1:
                order[place] = row[place]
            elif place % 2 == 0:
                order[place // 2] = row[place]
            else:
                order[size - 1 - place // 2] = row[place]
        if keeps_limits(replay, memory, limits, order):
            best = min(best, sequence_makespan(replay, spans, lags, order, start))
    return best
