"""A lower bound on when the slowest replica is done, whichever replica runs which micro-batches.

On a device a replica's blocks take the sum of their spans; before the first of them lies at least the
shortest way from a micro-batch's start to a block there, behind the last the shortest way to its end. Over
replicas the sums add up to a known total, so that one replica has at least its share; and where all have
equally many micro-batches, the one with the longest has at least the shortest others beside it. Any subset of
a device's blocks that lie so far from the start, and so far from the end, bounds alike. Where a placement has
choices, the bound is only the longest single block. Checked in
tests/tessel/search/batches/test_assignment.py against exhaustive search.
"""

from __future__ import annotations

import numpy as np

from tessel.batches.batch import Batch, IntArray
from tessel.placement import Placement


def assignment_bound(placement: Placement, batch: Batch, *, replicas: int, equal: bool) -> int:
    """Return steps that no assignment to so many replicas can fall below; O(devices × blocks² × tasks).

    Args:
        placement: blocks of one micro-batch.
        batch: all micro-batches.
        replicas: how many there are.
        equal: whether each has equally many.
    """
    if placement.choices:
        return int(_least_alone(placement, batch).max())
    heads, tails = _heads_and_tails(placement, batch)
    best = int((heads + batch.spans + tails).max())
    size = batch.micro_batches // replicas
    for device in range(placement.devices):
        here = [index for index, block in enumerate(placement.blocks) if device in block.devices]
        least_heads, least_tails = heads[:, here].min(axis=0), tails[:, here].min(axis=0)
        for least_head in np.unique(least_heads).tolist():
            for least_tail in np.unique(least_tails).tolist():
                inside = [
                    block
                    for block, head, tail in zip(here, least_heads, least_tails, strict=True)
                    if head >= least_head and tail >= least_tail
                ]
                if inside:
                    work = np.sort(batch.spans[:, inside].sum(axis=1))
                    share = -(-int(work.sum()) // replicas)
                    if equal:
                        share = max(share, int(work[-1] + work[: size - 1].sum()))
                    best = max(best, least_head + share + least_tail)
    return best


def _heads_and_tails(placement: Placement, batch: Batch) -> tuple[IntArray, IntArray]:
    """Return the longest way to each block's start, and from its end, by micro-batch and block."""
    index = placement.index_by_name
    order = [index[name] for name in placement.topological_order]
    before: dict[int, list[tuple[int, int]]] = {block: [] for block in order}
    after: dict[int, list[tuple[int, int]]] = {block: [] for block in order}
    for number, edge in enumerate(placement.edges):
        before[index[edge.target]].append((index[edge.source], number))
        after[index[edge.source]].append((index[edge.target], number))
    heads, tails = np.zeros_like(batch.spans), np.zeros_like(batch.spans)
    for block in order:
        for source, number in before[block]:
            arrival = heads[:, source] + batch.spans[:, source] + batch.lags[:, number]
            np.maximum(heads[:, block], arrival, out=heads[:, block])
    for block in reversed(order):
        for target, number in after[block]:
            left = batch.lags[:, number] + batch.spans[:, target] + tails[:, target]
            np.maximum(tails[:, block], left, out=tails[:, block])
    return heads, tails


def _least_alone(placement: Placement, batch: Batch) -> IntArray:
    """Return the longest block that a micro-batch runs in any case, by micro-batch."""
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    fixed = [index for index, block in enumerate(placement.blocks) if block.name not in optional]
    if not fixed:
        return np.zeros(batch.micro_batches, dtype=np.int64)
    longest: IntArray = batch.spans[:, fixed].max(axis=1)
    return longest
