"""Makespans that no schedule can beat, from work, from paths and from memory.

- Path: the longest chain of one micro-batch.
- Work: on one device take the blocks with at least some head (steps before) and tail (steps after their end).
  All their work happens there one after the other, behind the least head and before the least tail.
- Memory: a device's limit times the time in which it holds anything is at least what its activations take up,
  units times steps, over all micro-batches. Each unit lives at least as long as the longest way from the
  block that adds it to one that frees it, and to the end of that one: nothing else runs there meanwhile.

      head   |  N x work of these blocks  |   tail       <= makespan

Each number is a proof by itself; the largest counts. They take milliseconds;
`tessel.search.makespan.decision_diagram` proves more. Choices take the option that makes the number smallest.
Checked in tests/tessel/search/makespan/test_lower_bounds.py against exhaustive search.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tessel.placement import Block, Placement
from tessel.search.model.distances import (
    least_distances_from,
    least_distances_from_start,
    least_distances_to_end,
)

MAX_COMBINATIONS = 256
"""Combinations of options on one device that are looked at; the memory bound is left out beyond."""


def makespan_lower_bound(
    placement: Placement, *, micro_batches: int, memory: Sequence[int] | None = None
) -> int:
    """Return a makespan that no schedule under the limits can beat.

    Args:
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one a device; None for none.
    """
    heads = least_distances_from_start(placement)
    tails = least_distances_to_end(placement)
    bounds = [_path_bound(placement, heads, tails)]
    for device in range(placement.devices):
        bounds.append(_work_bound(placement, device, heads, tails, micro_batches))
        if memory is not None:
            bounds.append(_memory_bound(placement, device, heads, tails, micro_batches, memory[device]))
    return max(bounds)


def _path_bound(placement: Placement, heads: Sequence[int], tails: Sequence[int]) -> int:
    """A micro-batch runs every block outside choices, and one option of each choice."""
    through = [head + tail for head, tail in zip(heads, tails, strict=True)]
    index = placement.index_by_name
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    fixed = [through[index[block.name]] for block in placement.blocks if block.name not in optional]
    chosen = [
        min(max(through[index[name]] for name in option) for option in choice.options)
        for choice in placement.choices
    ]
    return max(fixed + chosen)


def _work_bound(
    placement: Placement, device: int, heads: Sequence[int], tails: Sequence[int], micro_batches: int
) -> int:
    """The best pair of thresholds for head and tail; O(blocks²) on the device."""
    index = placement.index_by_name
    here = [block for block in placement.blocks if device in block.devices]
    head = {block.name: heads[index[block.name]] for block in here}
    tail = {block.name: tails[index[block.name]] - block.span for block in here}
    best = 0
    for least_head in sorted(set(head.values())):
        for least_tail in sorted(set(tail.values())):
            inside = {
                block.name: block
                for block in here
                if head[block.name] >= least_head and tail[block.name] >= least_tail
            }
            work = _least_work(placement, inside)
            if work:
                best = max(best, least_head + micro_batches * work + least_tail)
    return best


def _least_work(placement: Placement, inside: dict[str, Block]) -> int:
    """Steps that one micro-batch spends in these blocks at least."""
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    fixed = sum(block.span for name, block in inside.items() if name not in optional)
    return fixed + sum(
        min(sum(inside[name].span for name in option if name in inside) for option in choice.options)
        for choice in placement.choices
    )


def _memory_bound(
    placement: Placement,
    device: int,
    heads: Sequence[int],
    tails: Sequence[int],
    micro_batches: int,
    limit: int,
) -> int:
    """Unit-steps of all micro-batches over the limit, and the time before the first and after the last."""
    here = [block for block in placement.blocks if device in block.devices and block.memory]
    names = {block.name for block in here}
    choices = [
        [[name for name in option if name in names] for option in choice.options]
        for choice in placement.choices
        if any(name in names for option in choice.options for name in option)
    ]
    optional = {name for options in choices for option in options for name in option}
    combinations = list(itertools.islice(itertools.product(*choices), MAX_COMBINATIONS + 1))
    if len(combinations) > MAX_COMBINATIONS or limit <= 0:
        return 0
    least = None
    # where an adding block takes no time, it may start when a freeing one does
    is_lived_out = all(block.span > 0 for block in here if block.memory > 0)
    for chosen in combinations:
        kept = set(itertools.chain.from_iterable(chosen))
        run = [block for block in here if block.name not in optional or block.name in kept]
        lived = _least_unit_steps(placement, run)
        if lived and is_lived_out:
            lived += sum(-block.memory * block.span for block in run if block.memory < 0)
        least = lived if least is None else min(least, lived)
    if not least:
        return 0
    index = placement.index_by_name
    before = min(heads[index[block.name]] for block in here if block.memory > 0)
    after = min(tails[index[block.name]] - block.span * is_lived_out for block in here if block.memory < 0)
    return before + -(-micro_batches * least // limit) + after


def _least_unit_steps(placement: Placement, blocks: Sequence[Block]) -> int:
    """Return what one micro-batch's memory takes up at least, or 0 where that cannot be said.

    The unit-steps are the starts of the frees minus the starts of the adds, weighted by their units. Any way
    of matching frees to adds that must come before them proves a bound; the farthest pairs are matched first.
    """
    adds = {block.name: block.memory for block in blocks if block.memory > 0}
    frees = {block.name: -block.memory for block in blocks if block.memory < 0}
    if sum(adds.values()) != sum(frees.values()):
        return 0
    distance = {source: least_distances_from(placement, source) for source in adds}
    pairs = sorted(
        (-distance[source][target], source, target)
        for source in adds
        for target in frees
        if target in distance[source]
    )
    total = 0
    for steps, source, target in pairs:
        units = min(adds[source], frees[target])
        adds[source] -= units
        frees[target] -= units
        total -= steps * units
    return total if not any(adds.values()) else 0
