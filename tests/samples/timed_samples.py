"""Schedules as topological orders, that the tests of the window search start from."""

from __future__ import annotations

import numpy as np

from tessel.search.makespan.device_orders import orders_of
from tessel.search.makespan.list_scheduling import by_priority, list_schedule
from tessel.search.makespan.window_rebuild import Timed, timed_of
from tessel.search.model.instance import Instance


def listed(instance: Instance, seed: int) -> Timed:
    """Return a list schedule by priorities drawn by lot, each choice by lot as well."""
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
