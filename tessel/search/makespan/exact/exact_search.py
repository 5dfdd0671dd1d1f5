"""Find and prove the least makespan of small problems by going through all states that matter.

The states of `tessel.search.makespan.exact.count_layers` are built layer by layer, under a makespan to stay
below and with a limit on the states of a layer. Where none is left, no schedule is shorter; where complete
ones are reached, the soonest is least, and its tasks are read back as a schedule (with choices it may turn
out not to be one: then its end is only a bound). Where a layer has too many states, lower makespans are
tried, which leave fewer and raise the bound step by step, halfway between what is proven and what was too
much each time (destructive bounds); then the limit on states is raised. Each device alone, with the rest as
distances, comes first: its states are few.

    bound ├──── proven ────┤ halfway ├──── too many states ────┤ best schedule

Rounds have a fixed share of the work done, charged by elementary looks. Nothing here knows what a pipeline
is.
Checked in tests/tessel/search/makespan/exact/test_exact_search.py against exhaustive search and CP-SAT.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.search.makespan.exact.attempt import Attempt
from tessel.search.makespan.exact.count_layers import width_of
from tessel.search.makespan.exact.count_model import MAX_BLOCKS, CountModel, count_model
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.option_search import start_in_sequence
from tessel.search.makespan.params import Phase
from tessel.search.model.instance import Instance, IntArray

MAX_TASKS = 1_000
"""Tasks up to which it is tried; of the larger ones few are closed, and each attempt takes longer."""

FIRST_STATES = 1 << 11
"""States of a layer at first."""

MAX_NUMBERS = 1 << 23
"""Numbers in the rows of a layer, 64 MiB, beyond which its limit on states is not raised."""

OPERATIONS_AN_ATTEMPT = 2_000_000
"""Charged for the arrays of an attempt."""

OPERATIONS_A_TRIPLE = 1_000
"""Charged for each three blocks when it is seen which waits follow from others."""

MAX_ALONE = 16
"""Devices up to which each is looked at alone first."""

FINEST_STEP = 0.001
"""Part of the bound by which a lower makespan is to raise it at least."""


@dataclass(slots=True)
class ExactSearch:
    """Attempts under falling makespans and rising limits on states.

    Attributes:
        best: the incumbent that is to be improved or proven optimal.
        waiting: sets of devices that are not begun, the next one last: each device alone, then all.
        model: all devices as counts, None before.
        too_much: the least makespan known to need more states, None at first.
        attempt: the one under way.
        is_done: whether nothing is left to do.
    """

    best: Incumbent
    waiting: list[tuple[int, ...]]
    model: CountModel | None = None
    states: int = FIRST_STATES
    too_much: int | None = None
    attempt: Attempt | None = None
    used: int = 0
    is_done: bool = False

    @classmethod
    def of(cls, best: Incumbent) -> ExactSearch:
        """Return a search that has not begun; it is over where it cannot begin."""
        instance = best.instance
        devices = range(instance.arrays.num_devices)
        alone = [(device,) for device in devices if 1 < len(devices) <= MAX_ALONE]
        is_left_out = Phase.EXACT in best.params.left_out or instance.num_tasks > MAX_TASKS
        return cls(best, [tuple(devices), *alone], is_done=is_left_out)

    def run(self, *, yields: bool = False) -> None:
        """Go on as long as there is something to do and the share of the work is not used up.

        Args:
            yields: whether nothing is done once states have turned out to be too many.
        """
        if yields and self.too_much is not None:
            return
        best, budget, params = self.best, self.best.budget, self.best.params
        while not self.is_done and not best.is_over:
            before = budget.operations
            if self.used >= params.first_exact_work * OPERATIONS_A_UNIT + params.exact_share * before:
                return
            self._advance()
            self.used += budget.operations - before

    def _advance(self) -> None:
        """Expand some states of the attempt under way, or begin the next one."""
        best, attempt = self.best, self.attempt
        if attempt is None:
            self.attempt = self._next_attempt()
            return
        best.budget.charge(attempt.advance(best.makespan))
        if not attempt.is_over:
            return
        self.attempt = None
        if attempt.is_too_large:
            self.too_much = attempt.known if attempt.model is self.model else None
            return
        if attempt.completion is not None and attempt.model is self.model:
            # Nothing shorter is left, and where this is no schedule, nothing tells which others are.
            self.is_done = True
            start = _start_of(best.instance, attempt.model, attempt.sequence())
            if start is not None:
                best.offer(start, "exact search")
        best.lower_bound = max(best.lower_bound, min(attempt.least, best.makespan))

    def _next_attempt(self) -> Attempt | None:
        best = self.best
        if self.waiting:
            devices = self.waiting.pop()
            model = count_model(best.instance, devices)
            num_blocks = MAX_BLOCKS if model is None else len(model.span)
            best.budget.charge(OPERATIONS_AN_ATTEMPT + OPERATIONS_A_TRIPLE * num_blocks**3)
            if not self.waiting:
                self.model, self.is_done = model, model is None
            return None if model is None else Attempt(model, best.makespan, self.states)
        assert self.model is not None  # otherwise all was done
        best.budget.charge(OPERATIONS_AN_ATTEMPT)
        if self.too_much is not None:
            step = max(1, int(FINEST_STEP * best.lower_bound))
            if self.too_much > best.makespan:
                return Attempt(self.model, best.makespan, self.states)
            known = (best.lower_bound + self.too_much + 1) // 2
            if known > best.lower_bound + step:
                return Attempt(self.model, known, self.states)
            self.too_much = None
            self.states *= 4
        self.is_done = self.states * (width_of(self.model) + len(self.model.span)) > MAX_NUMBERS
        return None if self.is_done else Attempt(self.model, best.makespan, self.states)


def _start_of(instance: Instance, model: CountModel, sequence: list[int]) -> IntArray | None:
    """Return the starts by task of blocks in this order, micro-batches in turn; None if it breaks."""
    arrays = instance.arrays
    options = np.zeros((len(arrays.default_option), arrays.micro_batches), dtype=np.int64)
    started = [0] * len(model.owner)
    by_block: list[list[int]] = [[] for _ in range(arrays.num_blocks)]
    tasks = []
    for block in sequence:
        group, owner = int(model.group[block]), int(model.owner[model.group[block]])
        micro_batch = started[group] if owner < 0 else by_block[owner][started[group]]
        if owner < 0 and arrays.choice[block] >= 0:
            options[arrays.choice[block], micro_batch] = arrays.option[block]
        by_block[block].append(micro_batch)
        started[group] += 1
        tasks.append(micro_batch * arrays.num_blocks + block)
    start = np.full(instance.num_tasks, -1, dtype=np.int64)
    is_valid = start_in_sequence(arrays, np.array(tasks, dtype=np.int64), options, start)
    return start if is_valid else None
