"""Chunks of any length, not of whole tokens: a linear program whose answer bounds those that exist.

All chunks of a number K together take `K · launch + (all tokens)`, however the prompt is cut. So their times
may be chosen freely with that sum, and the least end of the last stage is a linear program over times and
ends. More chunks with the same sum never take longer, as one may be empty; so the program of the most chunks
with the least sum bounds a whole range of numbers. Ranges are halved, the lowest bound first. Limits of a
chunk's tokens are left out; with decode steps nothing is said. Checked in
tests/tessel/search/batches/test_chunks.py.

Source: the linear program of a permutation flow shop with controllable processing times, as in Nowicki and
Zdrzałka, "A survey of results for sequencing problems with controllable processing times" (1990).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from tessel.batches.batch import IntArray
from tessel.search.batches.replay import FloatArray

MAX_BLOCKS = 4000
"""Chunks times stages of a program: it takes some tenths of a second."""

MAX_PROGRAMS = 24
"""Programs that are solved."""

CLOSE = 1e-3
"""Gap to the best chunks below which a range is left."""


def relaxed_bound(
    factors: Sequence[float],
    *,
    counts: tuple[int, int],
    launch_us: float,
    tokens_us: float,
    hop_us: float,
    longest_us: float,
    best_us: Callable[[FloatArray], float],
) -> float:
    """Return a time below which no chunks are, of any number in a range; 0 where programs would be too large.

    Args:
        factors: by stage.
        counts: least and most chunks.
        launch_us: of each chunk, on a stage of factor 1.
        hop_us: between stages.
        longest_us: that a chunk may take, on a stage of factor 1.
        best_us: is given the times of each program's chunks, and returns the best time found so far.
    """
    least, most = counts
    if most * len(factors) > MAX_BLOCKS:
        return 0.0

    def bound_of(first: int, last: int) -> tuple[float, FloatArray]:
        return _least_end(factors, last, first * launch_us + tokens_us, hop_us, longest_us)

    bound, times = bound_of(least, most)
    best, programs = best_us(times), 1
    ranges = [(bound, least, most)]
    while programs + 2 <= MAX_PROGRAMS:
        bound, first, last = ranges[0]
        if first == last or bound >= best * (1 - CLOSE):
            break
        heapq.heappop(ranges)
        middle = (first + last) // 2
        for part in ((first, middle), (middle + 1, last)):
            own, times = bound_of(*part)
            heapq.heappush(ranges, (max(bound, own), *part))
            if np.isfinite(own):
                best = best_us(times)
        programs += 2
    return ranges[0][0]


def _least_end(
    factors: Sequence[float], count: int, total_us: float, hop_us: float, longest_us: float
) -> tuple[float, FloatArray]:
    """Return the least end of the last stage, and the chunks' times; inf where they may not be so long."""
    stages = len(factors)
    times = np.arange(count)
    ends = count + np.arange(stages * count).reshape(stages, count)
    rows: list[IntArray] = []
    columns: list[IntArray] = []
    values: list[FloatArray] = []
    most: list[FloatArray] = []

    def needs(end: IntArray, before: IntArray | None, factor: float, wait: float) -> None:
        """Add `before + factor · time + wait <= end`, a row a chunk; the last chunks of what is given."""
        begin = sum(len(each) for each in most)
        row = begin + np.arange(len(end))
        for column, value in ((end, -1.0), (before, 1.0), (times[len(times) - len(end) :], factor)):
            if column is not None:
                rows.append(row)
                columns.append(column)
                values.append(np.full(len(end), value))
        most.append(np.full(len(end), -wait))

    for stage, factor in enumerate(factors):
        needs(ends[stage], ends[stage - 1] if stage else None, factor, hop_us if stage else 0.0)
        needs(ends[stage, 1:], ends[stage, :-1], factor, 0.0)
    variables = count * (stages + 1)
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(sum(len(each) for each in most), variables),
    ).tocsr()
    cost = np.zeros(variables)
    cost[-1] = 1.0
    total = coo_array((np.ones(count), (np.zeros(count, dtype=int), times)), shape=(1, variables)).tocsr()
    limit = None if longest_us == float("inf") else longest_us / total_us
    # In parts of the whole, as the solver's tolerances are absolute.
    found = linprog(
        cost,
        A_ub=matrix,
        b_ub=np.concatenate(most) / total_us,
        A_eq=total,
        b_eq=[1.0],
        bounds=[(0.0, limit)] * count + [(0.0, None)] * (stages * count),
        method="highs",
    )
    if found.status == 2:
        return float("inf"), np.zeros(count)
    if found.status != 0:
        return 0.0, np.full(count, total_us / count)
    return float(found.fun) * total_us * (1 - 1e-7), found.x[:count] * total_us
