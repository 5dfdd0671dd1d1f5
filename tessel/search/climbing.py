"""Climb from block offsets to better ones: the search in what all micro-batches have in common.

The priority of block b of micro-batch m is offset[b] + m x stride, as in a periodic schedule, so that there
are as few numbers to search as blocks, however many micro-batches there are. A try moves one to three offsets
by up to a stride, schedules, and is kept unless that got worse. Good where tasks are many; what is special
about the ramps is left to `tessel.search.neighbourhood`. Checked in tests/tessel/search/test_makespan.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.placement import Placement
from tessel.search.incumbent import Incumbent
from tessel.search.instance import Instance, IntArray
from tessel.search.rules import busiest_work, option_presets
from tessel.search.serial import NEVER, list_schedule

ROUND_LOOKS = 600_000
"""Blocks looked at in one round between two looks at the budget: a few hundredths of a second."""

MOST_TRIES = 100
"""Most schedules of a round: small ones cost more to call than to make."""

MOST_MOVED = 3
"""Most offsets that a try moves."""


@dataclass(slots=True)
class _Climb:
    """One climb: where it stands, and the makespan there."""

    offset: IntArray
    options: IntArray
    makespan: int = NEVER


@dataclass(slots=True)
class Climber:
    """The climbs that are under way, one for each way to preset the options.

    Attributes:
        instance: what is scheduled.
        stride: tasks between micro-batches.
        climbs: taken in turn.
        rng: draws the tries.
        turn: rounds so far.
    """

    instance: Instance
    stride: int
    climbs: list[_Climb]
    rng: np.random.Generator
    turn: int = 0

    @classmethod
    def of(cls, placement: Placement, instance: Instance, *, seed: int) -> Climber:
        """Return a climber that starts from the urgencies of `tessel.search.rules`."""
        return cls(
            instance=instance,
            stride=busiest_work(placement),
            climbs=[_Climb(-instance.tail, options) for options in option_presets(instance)],
            rng=np.random.default_rng(seed),
        )

    def climb_round(self, best: Incumbent) -> None:
        """Climb one round and offer what is better."""
        climb = self.climbs[self.turn % len(self.climbs)]
        self.turn += 1
        looks = self.instance.num_blocks**2 * self.instance.micro_batches
        start = np.empty(self.instance.num_blocks * self.instance.micro_batches, dtype=np.int64)
        for _ in range(min(max(1, ROUND_LOOKS // looks), MOST_TRIES)):
            offset = self._try_from(climb)
            makespan = self._schedule(offset, climb.options, start, best)
            if 0 <= makespan <= climb.makespan:
                climb.offset, climb.makespan = offset, makespan
            if 0 <= makespan < best.makespan:
                best.offer(start, "climbing")

    def _try_from(self, climb: _Climb) -> IntArray:
        offset = climb.offset.copy()
        if climb.makespan < NEVER:
            moved = self.rng.integers(len(offset), size=self.rng.integers(1, MOST_MOVED + 1))
            offset[moved] += self.rng.integers(-self.stride, self.stride + 1, size=len(moved))
        return offset

    def _schedule(self, offset: IntArray, options: IntArray, start: IntArray, best: Incumbent) -> int:
        rhythm = np.arange(self.instance.micro_batches, dtype=np.int64)[:, None] * self.stride
        priority = (offset[None, :] + rhythm).reshape(-1)
        # One try in four lets no device idle for a more urgent task.
        is_active = bool(self.rng.integers(4))
        return list_schedule(self.instance, priority, options.copy(), is_active, start, best.budget)
