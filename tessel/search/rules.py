"""Quick first schedules: one micro-batch after the other, hand-written rules, and urgencies.

An urgency is the priority α·m·T - tail(b): the longest way to the end first, with the micro-batches T steps
of the busiest device apart. α = 0 runs all forwards first, α = 1 keeps a steady rhythm, and a large α
finishes what was begun. Each is tried idle-free and with idling, and with every choice fixed to each of its
options. Checked in tests/tessel/search/test_makespan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tessel.errors import ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Placement
from tessel.search.incumbent import Incumbent
from tessel.search.instance import Instance, IntArray
from tessel.search.serial import list_schedule

RHYTHMS = (1.0, 0.5, 0.0, 0.25, 0.75, 2.0, 4.0)
"""Distances between micro-batches, as multiples of the busiest device's work; the usual winners first."""


def offer_rules(placement: Placement, best: Incumbent, *, memory: Sequence[int] | None) -> None:
    """Offer one schedule that always exists, then the hand-written ones that fit, then the urgencies."""
    best.offer(_one_after_the_other(best.instance), "serial")
    for name, start in _handwritten(placement, best.instance, memory):
        best.offer(start, name)
    stride = busiest_work(placement)
    for options in option_presets(best.instance):
        for rhythm in RHYTHMS:
            for is_active in (False, True):
                if best.is_over:
                    return
                _offer_urgency(best, options, stride=round(rhythm * stride), is_active=is_active)


def busiest_work(placement: Placement) -> int:
    """Return the steps that one micro-batch keeps the busiest device at work, at least 1."""
    return max(1, *(placement.work(device) for device in range(placement.devices)))


def option_presets(instance: Instance) -> Iterator[IntArray]:
    """Yield options by choice and micro-batch: all left open, then all the first one, all the second, …"""
    num_choices, micro_batches = len(instance.default_option), instance.micro_batches
    yield np.full((num_choices, micro_batches), -1, dtype=np.int64)
    for option in range(int(instance.option.max()) + 1):
        last = np.array(
            [instance.option[instance.choice == choice].max() for choice in range(num_choices)],
            dtype=np.int64,
        )
        yield np.repeat(np.minimum(option, last)[:, None], micro_batches, axis=1)


def _offer_urgency(best: Incumbent, options: IntArray, *, stride: int, is_active: bool) -> None:
    instance = best.instance
    rhythm = np.arange(instance.micro_batches, dtype=np.int64)[:, None] * stride
    priority = (rhythm - instance.tail[None, :]).reshape(-1)
    start = np.empty(len(priority), dtype=np.int64)
    if list_schedule(instance, priority, options.copy(), is_active, start) >= 0:
        best.offer(start, "list scheduling")


def _one_after_the_other(instance: Instance) -> IntArray:
    """Run each micro-batch alone, in the serial order; keeps every limit that can be kept so."""
    num_blocks = instance.num_blocks
    start = np.full(instance.micro_batches * num_blocks, -1, dtype=np.int64)
    once = _start_of_one(instance)
    length = int((once + instance.span)[once >= 0].max())
    for micro_batch in range(instance.micro_batches):
        row = start[micro_batch * num_blocks : (micro_batch + 1) * num_blocks]
        row[once >= 0] = once[once >= 0] + micro_batch * length
    return start


def _start_of_one(instance: Instance) -> IntArray:
    """Starts of one micro-batch's blocks in the serial order; -1 for those left out."""
    start = np.full(instance.num_blocks, -1, dtype=np.int64)
    free = [0] * instance.num_devices
    for block in map(int, instance.serial_order):
        choice = int(instance.choice[block])
        if choice >= 0 and instance.option[block] != instance.default_option[choice]:
            continue
        devices = instance.device[instance.device_start[block] : instance.device_start[block + 1]]
        earliest = max(free[device] for device in devices)
        for place in range(instance.before_start[block], instance.before_start[block + 1]):
            source = instance.before[place]
            if start[source] >= 0:
                earliest = max(earliest, int(start[source] + instance.before_delay[place]))
        start[block] = earliest
        for device in devices:
            free[device] = earliest + int(instance.span[block])
    return start


def _handwritten(
    placement: Placement, instance: Instance, memory: Sequence[int] | None
) -> Iterator[tuple[str, IntArray]]:
    for rule in HANDWRITTEN:
        try:
            built = rule.build(placement, micro_batches=instance.micro_batches, memory=memory)
        except ScheduleError:  # it does not apply, or does not fit the limit
            continue
        start = np.full(instance.num_blocks * instance.micro_batches, -1, dtype=np.int64)
        for (block, micro_batch), when in built.start_by_block().items():
            start[micro_batch * instance.num_blocks + block] = when
        yield built.found_by, start
