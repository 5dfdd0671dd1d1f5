"""Makespan that no schedule beats in which forwards and backwards of a device may run together.

That of each device by its work (`least_end`), where a choice counts as the option that takes
least, and that of one micro-batch's way. Checked in
tests/tessel/search/overlap/test_find_overlapped.py against CP-SAT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tessel.placement import Block, BlockKind, Placement
from tessel.schedule.overlap import DeviceWork, least_end
from tessel.search.model.instance import Instance

ROUNDING = 1e-6
"""Steps that rounding errors of floating point may add; a bound is rounded up above them."""


def paired_bound(instance: Instance, factor: float) -> int:
    """Return a makespan that no schedule beats, in steps; O(blocks × edges)."""
    arrays = instance.arrays
    longest = float((arrays.head + arrays.tail).max())
    for device in range(instance.placement.devices):
        longest = max(longest, _least_end(instance, device, factor))
    return math.ceil(longest - ROUNDING)


def _least_end(instance: Instance, device: int, factor: float) -> float:
    placement, arrays, count = instance.placement, instance.arrays, instance.micro_batches
    here = [block for block in placement.blocks if device in block.devices]
    if not here:
        return 0.0
    place = placement.index_by_name
    heads = {block.name: int(arrays.head[place[block.name]]) for block in here}
    tails = {block.name: int(arrays.tail[place[block.name]]) - block.span for block in here}
    head, tail = min(heads.values()), min(tails.values())
    forwards = {block.name: block.span for block in here if _is_paired(block, BlockKind.FORWARD)}
    backwards = _backwards(placement, device)
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    work = placement.work(device)
    if not forwards or not backwards or optional & set(forwards):
        return head + factor * work * count + tail
    forward, backward = sum(forwards.values()), sum(backwards.values())
    rest = (work - forward - backward) * count
    are_apart = _are_apart_once(placement, forwards, backwards)
    pieces = [name for names in backwards for name in names]
    found = DeviceWork(
        forward=forward * count,
        backward=backward * count,
        shortest_forward=min(forwards.values()) if are_apart else 0,
        shortest_backward=min(backwards.values()) if are_apart else 0,
        head=head + rest,
        backward_head=head + rest,
        tail=tail,
        forward_tail=tail,
    )
    if not rest:
        found = found._replace(
            backward_head=min(heads[name] for name in pieces),
            forward_tail=min(tails[name] for name in forwards),
        )
    return least_end(found, factor)


def _is_paired(block: Block, kind: BlockKind) -> bool:
    return block.kind is kind and len(block.devices) == 1


def _backwards(placement: Placement, device: int) -> Mapping[tuple[str, ...], int]:
    """Return the least steps of each backward that may be in a pair, by the blocks of all its options."""
    optional = {name for choice in placement.choices for option in choice.options for name in option}
    found: dict[tuple[str, ...], int] = {
        (block.name,): block.span
        for block in placement.blocks
        if block.devices == (device,) and block.kind is BlockKind.BACKWARD and block.name not in optional
    }
    for choice in placement.choices:
        options = [[placement.block(name) for name in option] for option in choice.options]
        blocks = [block for option in options for block in option]
        if any(_is_paired(block, BlockKind.BACKWARD) and block.devices == (device,) for block in blocks):
            least = min(sum(block.span for block in own if device in block.devices) for own in options)
            found[tuple(block.name for block in blocks)] = least
    return found


def _are_apart_once(
    placement: Placement, forwards: Iterable[str], backwards: Iterable[tuple[str, ...]]
) -> bool:
    """Whether each backward has a forward of its micro-batch ahead, and each forward a backward behind."""
    behind = [placement.reachable(name, by=placement.followers) for name in forwards]
    return all(any(set(own) <= later for later in behind) for own in backwards) and all(
        any(set(own) <= later for own in backwards) for later in behind
    )
