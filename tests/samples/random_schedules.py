"""Random schedules: any valid order of a placement, or list schedules by random priorities."""

from __future__ import annotations

import numpy as np

from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search.makespan.device_orders import orders_of
from tessel.search.makespan.list_scheduling import by_priority, list_schedule
from tessel.search.makespan.window_rebuild import Timed, timed_of
from tessel.search.model.instance import Instance


def draw_schedule(placement: Placement, micro_batches: int, rng: np.random.Generator) -> Schedule:
    """Return a schedule that runs blocks one after another, drawn among those that may run next."""
    runs = [
        placement.chosen({c.name: int(rng.integers(len(c.options))) for c in placement.choices})
        for _ in range(micro_batches)
    ]
    pending = {
        (block.name, m): set(run.waits_for[block.name]) for m, run in enumerate(runs) for block in run.blocks
    }
    free = [0] * placement.devices
    lag_of = {
        pair: max(edge.lag for edge in placement.edges if (edge.source, edge.target) == pair)
        for pair in {(edge.source, edge.target) for edge in placement.edges}
    }
    ends: dict[tuple[str, int], int] = {}
    starts: dict[tuple[int, int], int] = {}
    while pending:
        ready = [step for step, waits in pending.items() if all((wait, step[1]) in ends for wait in waits)]
        name, m = ready[int(rng.integers(len(ready)))]
        block = placement.block(name)
        waits = pending.pop((name, m))
        lags = [ends[wait, m] + lag_of[wait, name] for wait in waits]
        start = max([*lags, *(free[device] for device in block.devices)])
        starts[placement.index_by_name[name], m] = start
        ends[name, m] = start + block.span
        for device in block.devices:
            free[device] = start + block.span
    return Schedule.of(placement, starts, micro_batches=micro_batches)


def listed(instance: Instance, seed: int) -> Timed:
    """Return a list schedule by random priorities and a random option of each choice."""
    arrays = instance.arrays
    rng = np.random.default_rng(seed)
    start = np.empty(instance.num_tasks, dtype=np.int64)
    options = rng.integers(0, 2, (len(arrays.default_option), arrays.micro_batches))
    priority = rng.integers(0, 1000, instance.num_tasks)
    assert list_schedule(arrays, by_priority(arrays, priority), options, start) is not None
    return timed_of(arrays, orders_of(arrays, start).sequence)


def copy_of(timed: Timed) -> Timed:
    """Return a schedule to be overwritten."""
    return Timed(*(row.copy() for row in timed))
