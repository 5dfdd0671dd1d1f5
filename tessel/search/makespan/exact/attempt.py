"""Go through all layers of partial schedules below a makespan, within a limit on states, some at a time.

Checked in tests/tessel/search/makespan/exact/test_exact_search.py against exhaustive search and CP-SAT.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tessel.search.makespan.exact.count_layers import Layer, empty_layer, expand
from tessel.search.makespan.exact.count_model import CountModel
from tessel.search.model.instance import IntArray

STATES_AT_A_TIME = 256
"""States that are expanded between two looks at the budget: some milliseconds."""

OPERATIONS_A_LOOK = 4
"""Charged for an elementary look."""

OPERATIONS_A_LAYER = 50_000
"""Charged for a layer, whatever is in it."""


@dataclass(slots=True)
class Attempt:
    """The layers under one makespan.

    Attributes:
        known: the makespan to stay below at first.
        layer: the last complete layer.
        later: the one under way.
        place: states of `layer` that are expanded.
        history: by layer, parents and added blocks.
        completion: layer, state and block of the soonest complete schedule.
        is_too_large: a layer has too many states.
        is_over: all is done.
        keeps_history: whether the soonest complete schedule is to be read back.
        merges: whether states with equal counts become one, for a bound alone.
        proven: no schedule is shorter, by the layers so far: each passes through a state of the last one.
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
    keeps_history: bool = True
    merges: bool = False
    proven: int = field(init=False, default=0)
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

    def advance(self, makespan: int) -> int:
        """Expand some states, below a makespan that may have become shorter; return operations to charge."""
        self._least[0] = min(self.least, makespan)
        size = int(self.layer.size[0])
        end = min(self.place + STATES_AT_A_TIME, size)
        looks, completion = expand(
            self.model, self.layer, self.later, self.place, end, self._least, self.merges
        )
        charged = OPERATIONS_A_LAYER + abs(looks) * OPERATIONS_A_LOOK
        if completion >= 0:
            state, block = divmod(completion, len(self.model.span))
            self.completion = (len(self.history), state, block)
        self.place = end
        if looks < 0:
            self.is_too_large = self.is_over = True
        elif end == size:
            self._next_layer()
        return charged

    def sequence(self) -> list[int]:
        """Return the blocks of the soonest complete schedule in the order of their starts."""
        assert self.completion is not None
        assert self.keeps_history
        depth, state, block = self.completion
        found = [block]
        for parents, added in reversed(self.history[:depth]):
            found.append(int(added[state]))
            state = int(parents[state])
        return found[::-1]

    def _next_layer(self) -> None:
        size = int(self.later.size[0])
        self.is_over = size == 0
        self.proven = min(self.least, int(self.later.times[:size, 1].min(initial=self.least)))
        if self.keeps_history:
            self.history.append((self.later.parent[:size].copy(), self.later.added[:size].copy()))
        self.layer, self.place = self.later, 0
        if not self.is_over:
            self.later = empty_layer(self.model, self._room(size))

    def _room(self, size: int) -> int:
        return min(self.states, size * len(self.model.span))
