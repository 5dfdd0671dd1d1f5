"""Climb from block offsets to better ones: the search in what all micro-batches have in common.

A schedule is made by priorities that repeat from micro-batch to micro-batch, so that there are as few numbers
to search as blocks, however many micro-batches there are. Good where steps are many; what is special about
the ramps is left to `tessel.search.neighbourhood`. Checked in tests/tessel/search/test_makespan.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessel.placement import Placement
from tessel.search.incumbent import Incumbent
from tessel.search.instance import Instance, IntArray
from tessel.search.rules import busiest_work, option_presets
from tessel.search.serial import improve_offsets

ROUND_LOOKS = 600_000
"""Blocks looked at in one round between two looks at the clock: a few hundredths of a second."""


@dataclass(slots=True)
class Climber:
    """The climbs that are under way, one for each way to preset the options.

    Attributes:
        stride: steps between micro-batches.
        num_tries: schedules made in one round.
        climbs: offsets by block, changed as they improve, and preset options.
        state: state of the lottery.
        turn: rounds so far.
    """

    stride: int
    num_tries: int
    climbs: list[tuple[IntArray, IntArray]]
    state: int
    turn: int = 0

    @classmethod
    def of(cls, placement: Placement, instance: Instance, *, state: int) -> Climber:
        """Return a climber that starts from the urgencies of `tessel.search.rules`."""
        return cls(
            stride=busiest_work(placement),
            num_tries=max(1, ROUND_LOOKS // (instance.num_blocks**2 * instance.micro_batches)),
            climbs=[(-instance.tail.copy(), options) for options in option_presets(instance)],
            state=state,
        )

    def climb_round(self, best: Incumbent) -> None:
        """Climb one round and offer what is better."""
        offset, options = self.climbs[self.turn % len(self.climbs)]
        self.turn += 1
        start = best.start.copy()
        makespan, self.state = improve_offsets(
            best.instance, offset, options, self.stride, self.num_tries, self.state, best.makespan, start
        )
        if makespan < best.makespan:
            best.offer(start, "climbing")
