"""Balancers: groups of equal size whose sums of work are alike, without a look at any pipeline.

They are where exchanges begin (`tessel.search.batches.assignment`), and what those are held against. Checked
in tests/tessel/search/batches/test_assignment.py.

Source: Graham (1969) for the longest first; Karmarkar and Karp, "The differencing method of set partitioning"
(1982), in the form for parts of equal size of Michiels, Korst and Aarts (2003).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple


def in_turns(work: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """Return groups of equal size: the longest to the first replica, …, and back again from the last one."""
    groups: list[list[int]] = [[] for _ in range(replicas)]
    for place, each in enumerate(sorted(range(len(work)), key=lambda each: (-work[each], each))):
        turn, position = divmod(place, replicas)
        groups[position if turn % 2 == 0 else replicas - 1 - position].append(each)
    return [tuple(group) for group in groups]


def longest_first(work: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """Return groups of equal size: the longest that is left to the least loaded replica with room."""
    size = len(work) // replicas
    groups: list[list[int]] = [[] for _ in range(replicas)]
    load = [0] * replicas
    for each in sorted(range(len(work)), key=lambda each: (-work[each], each)):
        row = min(
            (row for row in range(replicas) if len(groups[row]) < size), key=lambda row: (load[row], row)
        )
        groups[row].append(each)
        load[row] += work[each]
    return [tuple(group) for group in groups]


class _Partial(NamedTuple):
    """A partial partition: by part its sum and members, the largest sum first; ordered by its spread."""

    spread: int
    number: int
    parts: tuple[tuple[int, tuple[int, ...]], ...]


def largest_differencing(work: Sequence[int], replicas: int) -> list[tuple[int, ...]]:
    """Return groups of equal size by differencing: partial partitions are joined, largest part to smallest.

    Each partial partition begins as the next `replicas` micro-batches by work, one a part; of all, the two
    whose parts differ most are joined until one is left.
    """
    order = sorted(range(len(work)), key=lambda each: (-work[each], each))
    heap: list[_Partial] = []
    for number in range(len(work) // replicas):
        parts = tuple((work[each], (each,)) for each in order[number * replicas : (number + 1) * replicas])
        heap.append(_Partial(parts[-1][0] - parts[0][0], number, parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        joined = sorted(
            (
                (one[0] + other[0], (*one[1], *other[1]))
                for one, other in zip(first.parts, reversed(second.parts), strict=True)
            ),
            key=lambda part: (-part[0], part[1]),
        )
        heapq.heappush(heap, _Partial(joined[-1][0] - joined[0][0], first.number, tuple(joined)))
    return [members for _, members in heap[0].parts]
