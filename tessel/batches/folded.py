"""Several micro-batches of different classes as one, so that what searches equal ones searches these.

Every micro-batch of a part becomes blocks of their own; nothing waits from one to the other, so that their
order is as free as it is between micro-batches. A batch of equal parts is then a number of equal
micro-batches of the folded placement, and a batch without two equal parts is one of them. It is the same
problem: a folded schedule is one of the batch and the other way round, with the same makespan and memory.
Checked in tests/tessel/batches/test_batch.py and tests/tessel/search/batches/test_find_batch_schedule.py.

    batch ABAB, blocks f, b        two folded micro-batches of f.0 (A), b.0 (A), f.1 (B), b.1 (B)
"""

from __future__ import annotations

from collections.abc import Sequence

from tessel.batches.batch import Batch
from tessel.placement import Block, Choice, Edge, Placement


def folded_placement(placement: Placement, batch: Batch, part: Sequence[int]) -> Placement:
    """Return the blocks of some micro-batches as those of one.

    Args:
        placement: blocks of one micro-batch.
        batch: what they take by micro-batch.
        part: micro-batches; block b of the one at position p becomes block p·B + b.
    """
    blocks: list[Block] = []
    edges: list[Edge] = []
    choices: list[Choice] = []
    for position, micro_batch in enumerate(part):
        own = batch.class_placement(placement, batch.sequence[micro_batch])
        name = {block.name: f"{block.name}.{position}" for block in own.blocks}
        blocks += [
            Block(
                name=name[block.name],
                kind=block.kind,
                devices=block.devices,
                span=block.span,
                memory=block.memory,
            )
            for block in own.blocks
        ]
        edges += [Edge(name[edge.source], name[edge.target], edge.lag) for edge in own.edges]
        choices += [
            Choice(
                f"{choice.name}.{position}",
                tuple(tuple(name[each] for each in option) for option in choice.options),
            )
            for choice in own.choices
        ]
    return Placement(
        devices=placement.devices, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices)
    )
