"""Any valid order of a placement at all, drawn step by step."""

from __future__ import annotations

import numpy as np

from tessel.placement import Placement
from tessel.schedule import Schedule


def draw_schedule(placement: Placement, micro_batches: int, rng: np.random.Generator) -> Schedule:
    """Return a schedule that runs blocks one after another, drawn among those that may run next."""
    runs = [
        placement.chosen({c.name: int(rng.integers(len(c.options))) for c in placement.choices})
        for _ in range(micro_batches)
    ]
    pending = {
        (block.name, m): set(run.graph.predecessors(block.name))
        for m, run in enumerate(runs)
        for block in run.blocks
    }
    free = [0] * placement.devices
    ends: dict[tuple[str, int], int] = {}
    starts: dict[tuple[int, int], int] = {}
    while pending:
        ready = [step for step, waits in pending.items() if all((wait, step[1]) in ends for wait in waits)]
        name, m = ready[int(rng.integers(len(ready)))]
        block = placement.block(name)
        waits = pending.pop((name, m))
        lags = [ends[wait, m] + placement.graph.edges[wait, name]["lag"] for wait in waits]
        start = max([*lags, *(free[device] for device in block.devices)])
        starts[placement.index_by_name[name], m] = start
        ends[name, m] = start + block.span
        for device in block.devices:
            free[device] = start + block.span
    return Schedule.of(placement, starts, micro_batches=micro_batches)
