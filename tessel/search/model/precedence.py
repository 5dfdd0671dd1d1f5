"""Precedence among the blocks of one micro-batch, and the longest paths that follow.

The distance from block a to block b is the fewest steps from the start of a to the start of b if both are
run. Where a choice lies between them, the shortest of its options counts, so that the numbers are bounds for
every combination without trying them all; O(blocks + edges) each. With the choices fixed they are the longest
paths. All of the search takes its distances from here: heads (from the start of the micro-batch), tails (to
its end), and from one block to the others. Checked in tests/tessel/search/model/test_precedence.py against
every path of every combination.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.placement import Placement
from tessel.search.jit.compiled import compiled, compiled_leaf

IntArray = npt.NDArray[np.int64]

UNREACHABLE = -(2**60)
"""The distance to a block that nothing says must follow."""


class Precedence(NamedTuple):
    """Blocks and their edges; all int64.

    Lists of lists are flat, row b from `…_start[b]` to `…_start[b + 1]`.

    Attributes:
        order: blocks in a topological order; of those free to come next, the first in the placement.
        span: steps by block.
        before_start: rows of `before` and `before_delay` by block.
        before_delay: least steps from the start of the earlier block to the start of the later one.
        after_start: rows of `after` and `after_delay` by block.
        after_delay: as `before_delay`.
        choice: choice that a block belongs to, or -1.
        option: option of that choice, or -1.
        num_options: options by choice.
    """

    order: IntArray
    span: IntArray
    before_start: IntArray
    before: IntArray
    before_delay: IntArray
    after_start: IntArray
    after: IntArray
    after_delay: IntArray
    choice: IntArray
    option: IntArray
    num_options: IntArray


def precedence_of(placement: Placement) -> Precedence:
    """Return the precedence of all blocks of a placement, whatever options are taken; O(blocks + edges)."""
    index = placement.index_by_name
    choice, option = [-1] * len(placement.blocks), [-1] * len(placement.blocks)
    for choice_index, known in enumerate(placement.choices):
        for option_index, names in enumerate(known.options):
            for name in names:
                choice[index[name]], option[index[name]] = choice_index, option_index
    return make_precedence(
        [block.span for block in placement.blocks],
        [(index[edge.source], index[edge.target], edge.lag) for edge in placement.edges],
        choice,
        option,
        [len(known.options) for known in placement.choices],
    )


def make_precedence(
    spans: Sequence[int],
    edges: Iterable[tuple[int, int, int]],
    choice: Sequence[int],
    option: Sequence[int],
    num_options: Sequence[int],
) -> Precedence:
    """Return the precedence of numbered blocks; of parallel edges the longest counts.

    Args:
        spans: steps by block.
        edges: source, target and lag of each; they close no cycle.
        choice: choice by block, -1 where it belongs to none.
        option: option of that choice by block, or -1.
        num_options: options by choice.
    """
    delays: dict[tuple[int, int], int] = {}
    for source, target, lag in edges:
        delays[source, target] = max(delays.get((source, target), 0), spans[source] + lag)
    before: list[list[tuple[int, int]]] = [[] for _ in spans]
    after: list[list[tuple[int, int]]] = [[] for _ in spans]
    for (source, target), delay in delays.items():
        before[target].append((source, delay))
        after[source].append((target, delay))
    before_start, before_block, before_delay = _flat(before)
    after_start, after_block, after_delay = _flat(after)
    return Precedence(
        order=as_array(_topological_order(before, after)),
        span=as_array(spans),
        before_start=before_start,
        before=before_block,
        before_delay=before_delay,
        after_start=after_start,
        after=after_block,
        after_delay=after_delay,
        choice=as_array(choice),
        option=as_array(option),
        num_options=as_array(num_options),
    )


def least_heads(precedence: Precedence) -> IntArray:
    """Return, by block, the least steps from the start of its micro-batch to its start."""
    return longest_paths(precedence, False, np.zeros_like(precedence.span))


def least_tails(precedence: Precedence) -> IntArray:
    """Return, by block, the least steps from its start to the end of its micro-batch."""
    return longest_paths(precedence, True, precedence.span.copy())


def least_distances_from(precedence: Precedence, source: int) -> IntArray:
    """Return, by block, the least steps from the start of `source` to its start, or `UNREACHABLE`."""
    least = np.full_like(precedence.span, UNREACHABLE)
    least[source] = 0
    return longest_paths(precedence, False, least)


@compiled
def longest_paths(precedence: Precedence, is_backward: bool, least: IntArray) -> IntArray:
    """Return the longest distance of each block along the edges, or against them.

    Args:
        is_backward: whether the distances are those to the end rather than from the start.
        least: by block, the distance it has by itself, or `UNREACHABLE`; overwritten and returned.
    """
    size = len(precedence.order)
    rows, others, delays = precedence.before_start, precedence.before, precedence.before_delay
    if is_backward:
        rows, others, delays = precedence.after_start, precedence.after, precedence.after_delay
    for place in range(size):
        block = precedence.order[size - 1 - place if is_backward else place]
        choice, option = precedence.choice[block], precedence.option[block]
        for at in range(rows[block], rows[block + 1]):
            there = precedence.choice[others[at]]
            if there < 0 or (there == choice and precedence.option[others[at]] == option):
                if least[others[at]] > UNREACHABLE:
                    least[block] = max(least[block], least[others[at]] + delays[at])
            elif there != choice and _is_first(precedence, others, rows[block], at):
                found = _least_of_options(precedence, others, delays, rows[block], rows[block + 1], at, least)
                least[block] = max(least[block], found)
    return least


@compiled_leaf
def _is_first(precedence: Precedence, others: IntArray, begin: int, at: int) -> bool:
    """Whether no earlier edge of the row comes from the same choice: the first speaks for all of them."""
    for earlier in range(begin, at):
        if precedence.choice[others[earlier]] == precedence.choice[others[at]]:
            return False
    return True


@compiled_leaf
def _least_of_options(
    precedence: Precedence,
    others: IntArray,
    delays: IntArray,
    begin: int,
    end: int,
    at: int,
    known: IntArray,
) -> int:
    """The distance by way of the choice of one edge: its shortest option. One without a way says nothing."""
    choice = precedence.choice[others[at]]
    shortest = -UNREACHABLE
    for option in range(precedence.num_options[choice]):
        longest = UNREACHABLE
        for edge in range(begin, end):
            block = others[edge]
            is_here = precedence.choice[block] == choice and precedence.option[block] == option
            if is_here and known[block] > UNREACHABLE:
                longest = max(longest, known[block] + delays[edge])
        shortest = min(shortest, longest)
    return int(shortest)


def as_array(numbers: Sequence[int]) -> IntArray:
    """Return numbers as int64."""
    return np.array(numbers, dtype=np.int64)


def flat_rows(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return where each row begins, and where the last one ends, and all rows in one."""
    ends = itertools.accumulate((len(row) for row in rows), initial=0)
    return as_array(list(ends)), as_array([number for row in rows for number in row])


def _flat(rows: Sequence[Sequence[tuple[int, int]]]) -> tuple[IntArray, IntArray, IntArray]:
    starts, blocks = flat_rows([[block for block, _ in row] for row in rows])
    return starts, blocks, flat_rows([[delay for _, delay in row] for row in rows])[1]


def _topological_order(
    before: Sequence[Sequence[tuple[int, int]]], after: Sequence[Sequence[tuple[int, int]]]
) -> list[int]:
    pending = [len(row) for row in before]
    ready = [block for block, count in enumerate(pending) if count == 0]
    order: list[int] = []
    while ready:
        block = heapq.heappop(ready)
        order.append(block)
        for target, _ in after[block]:
            pending[target] -= 1
            if pending[target] == 0:
                heapq.heappush(ready, target)
    return order
