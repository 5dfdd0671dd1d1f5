"""The best whole schedule that a search has seen, and who found it.

The one piece of state that the phases of a search share. A schedule is offered as starts by task; it is kept
if it is shorter, and the caller is told. Checked in tests/tessel/search/makespan/test_find_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.makespan.params import MakespanParams
from tessel.search.model.instance import Instance, InstanceArrays, IntArray


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """A schedule and who found it; replaced as a whole, so that another thread may read it at any time.

    Attributes:
        makespan: its last end, `NEVER` before there is one.
        start: its starts by task, -1 where a task is not run.
        operations: charged by the whole search when it was found.
    """

    makespan: int = NEVER
    start: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    found_by: str = ""
    operations: int = 0


@dataclass(slots=True)
class Incumbent:
    """The best schedule so far.

    Attributes:
        lower_bound: no schedule is shorter; phases that prove more raise it.
        budget: what the search may spend.
        params: how it divides that.
        on_better: told makespan, bound and method of each better schedule.
        proof: what is added to the method where another solver has proven the bound.
    """

    instance: Instance
    lower_bound: int
    budget: SearchBudget
    params: MakespanParams = field(default_factory=MakespanParams)
    on_better: Callable[[int, int, str], None] = lambda makespan, lower_bound, found_by: None
    best: FoundSchedule = field(default_factory=FoundSchedule)
    proof: str = ""

    @property
    def makespan(self) -> int:
        """The last end of the best schedule, `NEVER` before the first one."""
        return self.best.makespan

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to search: the makespan meets the bound, or the budget is used up."""
        return self.makespan <= self.lower_bound or self.budget.is_over

    def offer(self, start: IntArray, found_by: str) -> None:
        """Keep a schedule if it is shorter than the best.

        Args:
            start: starts by task, -1 where a task is not run; copied.
        """
        makespan = makespan_of(self.instance.arrays, start)
        if makespan >= self.makespan:
            return
        self.best = FoundSchedule(makespan, start.copy(), found_by, self.budget.operations)
        self.on_better(makespan, self.lower_bound, found_by)


def makespan_of(arrays: InstanceArrays, start: IntArray) -> int:
    """Return the last end of these starts by task."""
    spans = np.tile(arrays.span, arrays.micro_batches)
    return int(np.where(start >= 0, start + spans, 0).max())


def options_of(arrays: InstanceArrays, start: IntArray) -> IntArray:
    """Return the option that each micro-batch runs, by choice and micro-batch."""
    options = np.zeros((len(arrays.default_option), arrays.micro_batches), dtype=np.int64)
    is_run = start.reshape(arrays.micro_batches, arrays.num_blocks) >= 0
    for block in np.flatnonzero(arrays.choice >= 0):
        options[arrays.choice[block], is_run[:, block]] = arrays.option[block]
    return options
