"""What a memory limit must at least be, and the sentence that says so when it is not.

When block b starts, its micro-batch holds what the blocks started so far have added. Those are a set that
contains b and everything before it, and nothing whose predecessors it lacks; the least sum of such a set is a
minimum closure, one minimum cut. The most over the blocks of a device is what the device needs for one
micro-batch, in any order. Checked in tests/tessel/search/test_instance.py.

Source: Picard, "Maximal closure of a graph and applications to combinatorial problems" (1976).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx

from tessel.placement import Placement

NEVER_AMPLE = 1 << 61
"""More than any device has room, one without a limit included."""

MAX_COMBINATIONS = 64
"""Combinations of options looked at; beyond, the sentence names the limits without a number."""


def least_memory_needed(placement: Placement, device: int) -> int:
    """Return the units without which the device cannot run one micro-batch, whatever the order.

    Args:
        placement: blocks of one micro-batch, without choices.
        device: device number.
    """
    here = [block.name for block in placement.blocks if device in block.devices]
    return max((_least_held(placement, device, name) for name in here), default=0)


def ample_room(placement: Placement, device: int) -> int:
    """Return room with which every micro-batch under way can be finished, one after the other.

    That is all that one micro-batch adds, provided that each gives back what it took and never more. Where
    that is not so, or there are too many options to tell, the answer is `NEVER_AMPLE`.
    """
    here = {block.name for block in placement.blocks if device in block.devices}
    sizes = [
        range(len(choice.options) if any(here.intersection(option) for option in choice.options) else 1)
        for choice in placement.choices
    ]
    names = [choice.name for choice in placement.choices]
    most = 0
    for count, options in enumerate(itertools.product(*sizes)):
        fixed = placement.chosen(dict(zip(names, options, strict=True)))
        changes = {block.name: block.memory for block in fixed.blocks if device in block.devices}
        gain = {name: -amount for name, amount in changes.items()}
        is_returned = (
            sum(changes.values()) == 0 and _largest_closure(fixed.graph, list(fixed.graph), gain) == 0
        )
        if not is_returned or count == MAX_COMBINATIONS:
            return NEVER_AMPLE
        most = max(most, sum(amount for amount in changes.values() if amount > 0))
    return most


def explain_infeasible(placement: Placement, *, micro_batches: int, memory: Sequence[int]) -> str:
    """Return the sentence for limits under which no schedule exists: device, need, limit, what to do."""
    needs = _needs(placement, micro_batches)
    for device, (need, limit) in enumerate(zip(needs, memory, strict=True)):
        if need > limit:
            return (
                f"device {device} needs at least {need} units for {_count(micro_batches)}, its limit is "
                f"{limit}; raise the limit, recompute, or spread the blocks over more devices"
            )
    device = min(range(placement.devices), key=lambda device: memory[device] - needs[device])
    return (
        f"no order of the blocks keeps the limits of all devices at once (device {device} is tightest: it "
        f"needs at least {needs[device]} units, its limit is {memory[device]}); raise the limits"
    )


def _count(micro_batches: int) -> str:
    return "one micro-batch" if micro_batches == 1 else f"{micro_batches} micro-batches, one after the other"


def _needs(placement: Placement, micro_batches: int) -> list[int]:
    """Least need by device over the combinations of options."""
    sizes = (range(len(choice.options)) for choice in placement.choices)
    names = [choice.name for choice in placement.choices]
    combinations = itertools.islice(itertools.product(*sizes), MAX_COMBINATIONS)
    fixed = [placement.chosen(dict(zip(names, options, strict=True))) for options in combinations]
    return [
        min(_need_of(each, device, micro_batches) for each in fixed) for device in range(placement.devices)
    ]


def _need_of(placement: Placement, device: int, micro_batches: int) -> int:
    """Finished micro-batches may leave something behind; the last one needs its room beside it."""
    left = sum(block.memory for block in placement.blocks if device in block.devices)
    return least_memory_needed(placement, device) + max(0, left) * (micro_batches - 1)


def _least_held(placement: Placement, device: int, name: str) -> int:
    """Least units held by a micro-batch on the device right after the block starts."""
    graph = placement.graph
    started = nx.ancestors(graph, name) | {name}
    later = nx.descendants(graph, name)
    gain = {
        block.name: -block.memory
        for block in placement.blocks
        if device in block.devices and block.name not in started and block.name not in later
    }
    optional = [other for other in graph if other not in started and other not in later]
    held = sum(placement.block(other).memory for other in started if device in placement.block(other).devices)
    return held - _largest_closure(graph, optional, gain)


def _largest_closure(graph: nx.DiGraph, names: Sequence[str], gain: dict[str, int]) -> int:
    """Return the most that a set can gain that holds, with each block, the blocks before it."""
    if all(gain.get(name, 0) <= 0 for name in names):
        return 0
    network = nx.DiGraph()
    inside = set(names)
    for name in names:
        worth = gain.get(name, 0)
        if worth > 0:
            network.add_edge("source", ("block", name), capacity=worth)
        elif worth < 0:
            network.add_edge(("block", name), "sink", capacity=-worth)
        for before in graph.pred[name]:
            if before in inside:
                network.add_edge(("block", name), ("block", before))
    if "sink" not in network:
        network.add_node("sink")
    cut, _ = nx.minimum_cut(network, "source", "sink")
    return int(sum(worth for name, worth in gain.items() if worth > 0 and name in inside) - cut)
