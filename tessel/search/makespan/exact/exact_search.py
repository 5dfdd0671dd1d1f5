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

from dataclasses import dataclass, field

import numpy as np

from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.search.makespan.exact.count_layers import Layer, empty_layer, expand, width_of
from tessel.search.makespan.exact.count_model import CountModel, count_model
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.option_flips import start_in_sequence
from tessel.search.makespan.params import Phase
from tessel.search.model.instance import Instance, IntArray

MAX_TASKS = 1_000
"""Tasks up to which it is tried; of the larger ones few are closed, and each attempt takes longer."""

STATES_AT_A_TIME = 256
"""States that are expanded between two looks at the budget: some milliseconds."""

FIRST_STATES = 1 << 11
"""States of a layer at first."""

MAX_NUMBERS = 1 << 23
"""Numbers in the rows of a layer, 64 MiB, beyond which its limit on states is not raised."""

OPERATIONS_A_LOOK = 3
"""Charged for an elementary look."""

OPERATIONS_AN_ATTEMPT = 2_000_000
"""Charged for the arrays of an attempt."""

MAX_ALONE = 16
"""Devices up to which each is looked at alone first."""

OPERATIONS_A_LAYER = 50_000
"""Charged for a layer, whatever is in it."""

FINEST_STEP = 0.001
"""Part of the bound by which a lower makespan is to raise it at least."""


@dataclass(slots=True)
class ExactSearch:
    """Attempts under falling makespans and rising limits on states.

    Attributes:
        best: the incumbent that is to be improved or proven least.
        model: the instance, or some of its devices, as counts; None where nothing is left to do.
        waiting: devices still to do alone, each once, the next one last: their bounds are quick.
        states: limit on the states of a layer.
        too_much: the least makespan known to need more states, None at first.
        attempt: the one under way.
        used: operations used.
    """

    best: Incumbent
    model: CountModel | None
    waiting: list[int]
    states: int = FIRST_STATES
    too_much: int | None = None
    attempt: _Attempt | None = None
    used: int = 0

    @classmethod
    def of(cls, best: Incumbent) -> ExactSearch:
        """Return a search that has not begun; it is over where it cannot begin."""
        is_left_out = Phase.EXACT in best.params.left_out or best.instance.num_tasks > MAX_TASKS
        model = None if is_left_out else count_model(best.instance)
        num_devices = best.instance.arrays.num_devices
        return cls(best, model, list(range(num_devices)) if 1 < num_devices <= MAX_ALONE else [])

    def run(self) -> None:
        """Go on as long as there is something to do and the share of the work is not used up."""
        best, budget, params = self.best, self.best.budget, self.best.params
        while self.model is not None and not best.is_over:
            before = budget.operations
            if self.used >= params.first_exact_work * OPERATIONS_A_UNIT + params.exact_share * before:
                return
            self._advance(self.model)
            self.used += budget.operations - before

    def _advance(self, model: CountModel) -> None:
        """Expand some states of the attempt under way, or begin the next one."""
        best = self.best
        if self.attempt is None or self.attempt.known > best.makespan:
            best.budget.charge(OPERATIONS_AN_ATTEMPT)
            self.attempt = self._next_attempt(model)
            return
        attempt = self.attempt
        best.budget.charge(attempt.advance())
        if attempt.is_too_large:
            self.too_much = attempt.known if attempt.model is model else self.too_much
            self.attempt = None
        elif attempt.is_over:
            self.attempt = None
            if attempt.completion is not None and attempt.model is model:
                start = _start_of(best.instance, model, attempt.sequence())
                if start is not None:
                    best.offer(start, "exact search", is_new=False)
            best.lower_bound = max(best.lower_bound, min(attempt.least, best.makespan))

    def _next_attempt(self, model: CountModel) -> _Attempt | None:
        best = self.best
        if self.waiting:
            alone = count_model(best.instance, [self.waiting.pop()])
            return None if alone is None else _Attempt(alone, best.makespan, self.states)
        if self.too_much is not None:
            step = max(1, int(FINEST_STEP * best.lower_bound))
            known = (best.lower_bound + min(self.too_much, best.makespan) + 1) // 2
            if self.too_much <= best.makespan and known <= best.lower_bound + step:
                self.too_much = None
                self.states *= 4
            else:
                return _Attempt(model, known, self.states)
        if self.states * (width_of(model) + len(model.span)) > MAX_NUMBERS:
            self.model = None
            return None
        return _Attempt(model, best.makespan, self.states)


@dataclass(slots=True)
class _Attempt:
    """The layers under one makespan.

    Attributes:
        model: the instance.
        known: the makespan to stay below.
        states: limit on the states of a layer.
        layer: the last complete layer.
        later: the one under way.
        place: states of `layer` that are expanded.
        least: `known`, lowered where a complete schedule is found.
        history: by layer, parents and added blocks.
        completion: layer, state and block of the soonest complete schedule.
        is_too_large: a layer has too many states.
        is_over: all is done.
    """

    model: CountModel
    known: int
    states: int
    layer: Layer = field(init=False)
    later: Layer = field(init=False)
    place: int = 0
    history: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    completion: tuple[int, int, int] | None = None
    is_too_large: bool = False
    is_over: bool = False
    _least: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.layer = empty_layer(self.model, 1)
        self.layer.size[0] = 1
        self.later = empty_layer(self.model, self._room(1))
        self._least = np.array([self.known], dtype=np.int64)

    @property
    def least(self) -> int:
        """No schedule is shorter, once all is done."""
        return int(self._least[0])

    def advance(self) -> int:
        """Expand some states; return the operations to charge."""
        size = int(self.layer.size[0])
        end = min(self.place + STATES_AT_A_TIME, size)
        looks, completion = expand(self.model, self.layer, self.later, self.place, end, self._least)
        charged = OPERATIONS_A_LAYER + abs(looks) * OPERATIONS_A_LOOK
        if completion >= 0:
            state, block = divmod(completion, len(self.model.span))
            self.completion = (len(self.history), state, block)
        self.place = end
        if looks < 0:
            self.is_too_large = True
        elif end == size:
            self._next_layer()
        return charged

    def sequence(self) -> list[int]:
        """Return the blocks of the soonest complete schedule in the order of their starts."""
        assert self.completion is not None
        depth, state, block = self.completion
        found = [block]
        for parents, added in reversed(self.history[:depth]):
            found.append(int(added[state]))
            state = int(parents[state])
        return found[::-1]

    def _next_layer(self) -> None:
        size = int(self.later.size[0])
        self.is_over = size == 0
        self.history.append((self.later.parent[:size].copy(), self.later.added[:size].copy()))
        self.layer, self.place = self.later, 0
        if not self.is_over:
            self.later = empty_layer(self.model, self._room(size))

    def _room(self, size: int) -> int:
        return min(self.states, size * len(self.model.span))


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
