"""Schedules of pairs and of classes as plain blocks, each with what it takes and holds: an oracle.

Every block of every micro-batch becomes one of its own, so that one micro-batch of the result is the whole
schedule. Of a pair both take the steps of the pair: its forward stays on its device, its backward moves to a
device of its own, and what either holds is added or freed by a block without a span at the right step.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import msgspec

from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule.overlap import Overlap
from tessel.schedule.schedule import Schedule, Start
from tests.oracles.schedule_rules import makespan, peaks

AMPLE = 10**9


def unrolled(schedule: Schedule) -> Schedule:
    """Return the schedule of plain blocks; devices beyond the placement's are those of pairs' backwards."""
    placement, batch = schedule.placement, schedule.classes
    step = {(each.block, each.micro_batch): each.start for each in schedule.starts}
    pair_of = _pairs(schedule)
    blocks, edges, starts = [], [], []
    for micro_batch in range(schedule.micro_batches):
        own = None if batch is None else batch.classes[batch.sequence[micro_batch]]
        for place, block in enumerate(placement.blocks):
            span = block.span if own is None else own.spans[place]
            memory = block.memory if own is None else own.memory[place]
            name, devices = f"{block.name}/{micro_batch}", block.devices
            start = step[block.name, micro_batch]
            if (block.name, micro_batch) in pair_of:
                number, span = pair_of[block.name, micro_batch]
                blocks.append(Block(name=f"{name}/held", devices=devices, span=0, memory=memory))
                starts.append(Start(blocks[-1].name, 0, start + span if memory < 0 else start))
                memory = 0
                if block.kind is BlockKind.BACKWARD:
                    devices = (placement.devices + number,)
            blocks.append(Block(name=name, devices=devices, span=span, memory=memory))
            starts.append(Start(name, 0, start))
        for place, edge in enumerate(placement.edges):
            lag = edge.lag if own is None else own.lags[place]
            edges.append(Edge(f"{edge.source}/{micro_batch}", f"{edge.target}/{micro_batch}", lag))
    num_pairs = len(pair_of) // 2
    found = msgspec.structs.replace(
        schedule,
        placement=Placement(devices=placement.devices + num_pairs, blocks=tuple(blocks), edges=tuple(edges)),
        micro_batches=1,
        memory=None if schedule.memory is None else (*schedule.memory, *(AMPLE for _ in range(num_pairs))),
        starts=tuple(starts),
        schema_version=1,
        batch=msgspec.UNSET,
        overlap=msgspec.UNSET,
    )
    return msgspec.structs.replace(found, makespan=makespan(found))


def figured(schedule: Schedule) -> Schedule:
    """Return the schedule with the figures that its starts have by the definitions."""
    plain, num_devices = unrolled(schedule), schedule.placement.devices
    busy = sum(
        block.span for block in plain.placement.blocks for device in block.devices if device < num_devices
    )
    return msgspec.structs.replace(
        schedule,
        makespan=plain.makespan,
        lower_bound=0,
        peak_memory=peaks(plain)[:num_devices],
        bubble_ratio=1 - busy / (plain.makespan * num_devices),
    )


def _pairs(schedule: Schedule) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the number and the steps of the pair of each block that is in one."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    if not isinstance(schedule.overlap, Overlap):
        return found
    for number, pair in enumerate(schedule.overlap.pairs):
        ends = (pair.forward, pair.forward_micro_batch), (pair.backward, pair.backward_micro_batch)
        spans = [schedule.placement.block(name).span for name, _ in ends]
        steps = max(*spans, ceil(Fraction(str(schedule.overlap.factor)) * sum(spans)))
        found |= dict.fromkeys(ends, (number, steps))
    return found
