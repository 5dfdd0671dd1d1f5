"""A placement with fewer blocks and devices, of which no schedule is longer: for bounds that look at a part.

- *Last blocks*, for which nothing waits, such as the weight gradients of a split backward, are left out, and
  what they free is freed with the block before them:

      f .. i .. w    2 units, i and w free 1 each        f .. i'     i' frees 2

  A schedule without those blocks keeps the order and the starts of the others; at each time it holds what it
  held before, less the units that a last block has yet to free when its predecessor has started. So it is a
  schedule of the smaller placement, and ends no later: bounds on the smaller one hold for the placement. Only
  those are left out that add nothing and that, where they free something, come after exactly one block on
  exactly the same devices.
- *Other devices* are left out by keeping the blocks of some, and the longest paths between them as lags.

How often either loses what matters differs: `tessel.search.makespan.exact.device_subsets` looks for the best.
Checked in tests/tessel/search/test_every_bound.py against CP-SAT.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tessel.placement import MAX_SPAN, Block, Edge, Placement
from tessel.search.model.problem import UNREACHABLE, make_problem


def without_last_blocks(placement: Placement, kept: Collection[int]) -> Placement:
    """Return the placement without its last blocks, but for those that hold one of some devices.

    Args:
        placement: one without choices.
        kept: devices whose blocks all stay.
    """
    before: dict[str, list[str]] = {block.name: [] for block in placement.blocks}
    for edge in placement.edges:
        before[edge.target].append(edge.source)
    waited_for = {edge.source for edge in placement.edges}
    by_name = {block.name: block for block in placement.blocks}
    memory = {block.name: block.memory for block in placement.blocks}
    left_out = set()
    for block in placement.blocks:
        if block.name in waited_for or block.memory > 0 or set(kept) & set(block.devices):
            continue
        if block.memory < 0:
            sources = before[block.name]
            if len(sources) != 1 or by_name[sources[0]].devices != block.devices:
                continue
            memory[sources[0]] += block.memory
        left_out.add(block.name)
    if len(left_out) == len(placement.blocks):
        return placement
    return Placement(
        devices=placement.devices,
        blocks=tuple(
            _changed(block, block.devices, memory[block.name])
            for block in placement.blocks
            if block.name not in left_out
        ),
        edges=tuple(edge for edge in placement.edges if edge.target not in left_out),
    )


def on_devices(placement: Placement, devices: Sequence[int]) -> Placement:
    """Return the blocks of some devices, renumbered in this order, with the paths between them as lags.

    Args:
        placement: one without choices.
        devices: the devices to keep, each once, with at least one block.
    """
    problem = make_problem(placement, memory=None)
    number = {device: place for place, device in enumerate(devices)}
    paths, blocks = problem.paths, placement.blocks
    kept = [block for block in problem.order if set(blocks[block].devices) & number.keys()]
    edges = []
    for place, source in enumerate(kept):
        for at in range(place + 1, len(kept)):
            target = kept[at]
            if paths[source, target] > UNREACHABLE and not any(
                paths[source, between] > UNREACHABLE
                and paths[between, target] > UNREACHABLE
                and paths[source, between] + paths[between, target] >= paths[source, target]
                for between in kept[place + 1 : at]
            ):
                lag = int(paths[source, target]) - blocks[source].span
                edges.append(Edge(blocks[source].name, blocks[target].name, min(lag, MAX_SPAN)))
    return Placement(
        devices=len(devices),
        blocks=tuple(
            _changed(
                blocks[block],
                tuple(sorted(number[device] for device in blocks[block].devices if device in number)),
                blocks[block].memory,
            )
            for block in kept
        ),
        edges=tuple(edges),
    )


def _changed(block: Block, devices: tuple[int, ...], memory: int) -> Block:
    return Block(name=block.name, kind=block.kind, devices=devices, span=block.span, memory=memory)
