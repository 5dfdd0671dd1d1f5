"""A lower bound on when the slowest replica is done, whichever replica runs which micro-batches.

On a device a replica's blocks take the sum of their spans; before the first of them lies the shortest way
from some micro-batch's start to a block there, behind the last the shortest way to some one's end. Each
number is a proof by itself; the largest counts.

- Share: over replicas work adds up to a known total, and each has a first and a last micro-batch of its own:
  the slowest has at least the mean.
- Pigeonhole, of equally many micro-batches each: of the k·R + 1 longest some replica has k + 1.
- Sums, of equally many each: the slowest has at least the mean work, and a sum that so many micro-batches can
  have: of a few lengths these lie far apart.

Any subset of a device's blocks that lie so far from the start, and so far from the end, bounds alike. Where a
placement has choices, the bound is only the longest single block. Checked in
tests/tessel/search/batches/test_assignment.py against exhaustive search.

Source: pigeonholes after Dell'Amico and Martello, "Optimal scheduling of tasks on identical parallel
processors" (1995), here with equal numbers of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.batches.batch import Batch, IntArray
from tessel.placement import Placement

MOST_SUMS = 4
"""Devices and blocks of which sums are looked at, those with the largest share first."""

MOST_BITS = 2**34
"""Bits that a look at sums may shift: about a second."""


def assignment_bound(placement: Placement, batch: Batch, *, replicas: int, equal: bool) -> int:
    """Return steps that no assignment to so many replicas can fall below; O(devices × blocks² × tasks).

    Args:
        placement: blocks of one micro-batch.
        batch: all micro-batches.
        equal: whether each has equally many.
    """
    if placement.choices:
        return int(_least_alone(placement, batch).max())
    heads, tails = _heads_and_tails(placement, batch)
    best = int((heads + batch.spans + tails).max())
    rows = []
    for device in range(placement.devices):
        here = [index for index, block in enumerate(placement.blocks) if device in block.devices]
        least_heads, least_tails = heads[:, here].min(axis=0), tails[:, here].min(axis=0)
        for least_head in np.unique(least_heads).tolist():
            for least_tail in np.unique(least_tails).tolist():
                is_inside = (least_heads >= least_head) & (least_tails >= least_tail)
                inside = [block for block, is_one in zip(here, is_inside, strict=True) if is_one]
                if inside:
                    each = (values[:, inside] for values in (heads, batch.spans, tails))
                    rows.append(_Row.of(*each, replicas=replicas))
    best = max([best, *(row.share() for row in rows)])
    if equal:
        best = max([best, *(row.pigeonhole() for row in rows)])
        for row in sorted(rows, key=lambda row: -row.share())[:MOST_SUMS]:
            best = max(best, row.reachable())
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Some blocks of a device: what each micro-batch has of them, in steps; int64, shape (micro-batches,).

    Attributes:
        work: sum of their spans, rising.
        heads: shortest way to one of them, rising.
        tails: shortest way from one of them to the end, rising.
    """

    work: IntArray
    heads: IntArray
    tails: IntArray
    replicas: int

    @classmethod
    def of(cls, heads: IntArray, spans: IntArray, tails: IntArray, *, replicas: int) -> _Row:
        """Return the row of columns of blocks."""
        work, least_heads, least_tails = spans.sum(axis=1), heads.min(axis=1), tails.min(axis=1)
        return cls(
            work=np.sort(work), heads=np.sort(least_heads), tails=np.sort(least_tails), replicas=replicas
        )

    @property
    def size(self) -> int:
        """Micro-batches of a replica, where all have equally many."""
        return len(self.work) // self.replicas

    @property
    def ends(self) -> int:
        """Steps before and behind the work of any replica."""
        return int(self.heads[0] + self.tails[0])

    def share(self) -> int:
        """Return the mean of the replicas."""
        every = self.work.sum() + self.heads[: self.replicas].sum() + self.tails[: self.replicas].sum()
        return -(-int(every) // self.replicas)

    def pigeonhole(self) -> int:
        """Return the most that some replica has where one of them has so many long micro-batches."""
        first = np.concatenate(([0], np.cumsum(self.work)))
        most = 0
        for beside in range(self.size):
            last = len(self.work) - beside * (self.replicas - 1)
            long = first[last] - first[last - beside - 1]
            most = max(most, int(long + first[self.size - beside - 1]))
        return self.ends + most

    def reachable(self) -> int:
        """Return the least sum of a replica's number of micro-batches that is no less than their mean."""
        mean = -(-int(self.work.sum()) // self.replicas)
        least, most = int(self.work[0]), int(self.work[-1]) - int(self.work[0])
        # A bit a sum: what micro-batches take beyond the least of them, in units that divide it.
        unit = int(np.gcd.reduce(self.work - least)) or 1
        if self.size * len(self.work) * (self.size * most // unit) > MOST_BITS:
            return 0
        sums = [1, *([0] * self.size)]
        for extra in ((self.work - least) // unit).tolist():
            for count in range(self.size, 0, -1):
                sums[count] |= sums[count - 1] << extra
        needed = max(0, -(-(mean - self.size * least) // unit))
        beyond = sums[self.size] >> needed
        found = needed + (beyond & -beyond).bit_length() - 1
        return self.ends + self.size * least + unit * found


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
