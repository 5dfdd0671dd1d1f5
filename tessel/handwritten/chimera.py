"""Chimera: two copies of the model in opposite directions, with half of the micro-batches each.

    device 0   F0 F1 .  f0 b0 b0 f1 b1 b1 .  B0 B0 .  .  B1 B1      F and B: down, f and b: up
    device 1   .  F0 f0 F1 f1 .  b0 b0 B0 B0 b1 b1 B1 B1 .  .
    device 2   .  f0 F0 f1 F1 .  B0 B0 b0 b0 B1 B1 b1 b1 .  .
    device 3   f0 f1 .  F0 B0 B0 F1 B1 B1 .  b0 b0 .  .  b1 b1

It needs a placement whose micro-batch has a chain down the devices and one up (the X shape), so that one
micro-batch here is a pair there. The unit is P / 2 pairs: each direction runs 1F1B, and the two are merged in
the order they would have if a backward took as long as a forward. Further units follow at once, their
forwards in the holes that the unit before leaves. With forwards F and backwards B of one stage, B = F or B =
2F, and no hops, one unit takes P(F + B) + (P - 2)B steps.

Source: Li and Hoefler, Chimera (SC 2021), sections 3.1 and 3.5 (direct concatenation).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tessel.handwritten.construction.columns import Columns, Part
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import Pipeline
from tessel.handwritten.one_f_one_b import one_f_one_b, recompute_on_arrival
from tessel.instruction import Backward, Forward
from tessel.orders import Task, earliest_starts
from tessel.shapes import vshape

_BACKWARD_SLOTS = 1
"""Slots of a backward, a forward having one; with two, as backwards often take, later units fit less well."""


def _applies(pipeline: Pipeline, micro_batches: int) -> str | None:
    if not pipeline.has_backward:
        return "no stage has a backward"
    chains = _chains(pipeline)
    if chains is None:
        return "its stages are not two chains through the same devices in opposite directions"
    if len(chains[0]) % 2:
        return f"it needs an even number of devices, and there are {len(chains[0])}"
    return None


def _streams(pipeline: Pipeline, micro_batches: int) -> Streams:
    chains = _chains(pipeline)
    assert chains is not None  # `_applies` has looked
    num_stages = len(chains[0])
    times, numbers = _times(num_stages, micro_batches), np.arange(micro_batches)
    parts: list[list[Part]] = [[] for _ in range(pipeline.placement.devices)]
    for direction, chain in enumerate(chains):
        for position, stage in enumerate(chain):
            (device,) = pipeline.stages[stage].devices
            for kind, block in ((Forward, position), (Backward, 2 * num_stages - 1 - position)):
                # By time, then micro-batch, then direction.
                key = (times[block] * micro_batches + numbers) * 2 + direction
                parts[device].append((kind, stage, numbers, key))
    return [Columns.by_key(*own) for own in parts]


def _chains(pipeline: Pipeline) -> tuple[list[int], list[int]] | None:
    """The stages of the two chains, or None if there are no two such chains."""
    chains: list[list[int]] = []
    for first, stage in enumerate(pipeline.stages):
        if stage.before:
            continue
        chain = [first]
        while len(pipeline.stages[chain[-1]].after) == 1:
            chain.append(pipeline.stages[chain[-1]].after[0])
        chains.append(chain)
    if len(chains) != 2 or sorted(chains[0] + chains[1]) != list(range(len(pipeline.stages))):
        return None
    down, up = ([pipeline.stages[stage].devices for stage in chain] for chain in chains)
    if down != up[::-1] or any(len(devices) != 1 for devices in down) or len(set(down)) < len(down):
        return None
    return chains[0], chains[1]


def _times(num_stages: int, micro_batches: int) -> npt.NDArray[np.int64]:
    """Slots of one direction, int64, shape (blocks of a vshape, micro-batches), unit after unit."""
    unit_size = num_stages // 2
    unit_slots = 2 * unit_size * (1 + _BACKWARD_SLOTS)
    whole, rest = divmod(micro_batches, unit_size)
    found = [_unit_times(num_stages, unit_size) + unit * unit_slots for unit in range(whole)]
    found += [_unit_times(num_stages, rest) + whole * unit_slots] if rest else []
    return np.concatenate(found, axis=1)


@lru_cache(maxsize=64)
def _unit_times(num_stages: int, micro_batches: int) -> npt.NDArray[np.int64]:
    """Slots of a unit of one direction alone, int64, shape (blocks of a vshape, micro-batches)."""
    orders = [
        [
            Task(
                stage if isinstance(instruction, Forward) else 2 * num_stages - 1 - stage,
                instruction.micro_batch,
            )
            for instruction in one_f_one_b(stage, warm_up=num_stages - stage, micro_batches=micro_batches)
        ]
        for stage in range(num_stages)
    ]
    starts = earliest_starts(vshape(num_stages, backward_span=_BACKWARD_SLOTS), orders)
    found = np.zeros((2 * num_stages, micro_batches), dtype=np.int64)
    for task, start in starts.items():
        found[task] = start
    return found


CHIMERA = StreamRule(name="chimera", applies=_applies, streams=_streams, extra_edges=recompute_on_arrival)
