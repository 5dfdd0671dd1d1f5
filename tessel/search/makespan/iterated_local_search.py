"""Search near good schedules in turn: each once, then the best every other time, and the others between.

A visit is a tabu search that goes on as long as it gets better. The first one to a schedule goes straight
down; later ones start with some random moves, or they would end where the last one did. What is found takes
the place of the schedule it was found near, unless it is worse.
Checked in tests/tessel/search/makespan/test_find_schedule.py.

Source: Lourenço, Martin and Stützle, "Iterated local search" (2003), for kicks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessel.search.jit.random_generator import below, next_state
from tessel.search.makespan.device_orders import Orders, orders_of
from tessel.search.makespan.incumbent import Elite, Incumbent
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.makespan.params import Phase
from tessel.search.makespan.tabu_search import tabu_search

ROUND_TASKS = 1_000_000
"""Tasks timed between two looks at the budget: a few hundredths of a second."""

OPERATIONS_A_LOOK = 80
"""Charged for each task that a round looks at."""

LARGE_TASKS = 2_000
"""Tasks of a schedule above which the best is visited every other time from the beginning.

A first visit to a large schedule that is far behind takes a second, and there are ten of them: with 16
devices and 64 micro-batches the best came to 2047.5 steps after 4 s instead of 2067.5 after 20 s.
"""


@dataclass(slots=True)
class _LocalSearch:
    """A tabu search under way.

    Attributes:
        elite: the schedule it started from.
        orders: where it stands.
        kicks: random moves still to make.
        patience: moves without an improvement after which it ends.
        makespan: the best it has found.
        moves: moves so far.
        last_gain: moves so far when it last got better.
    """

    elite: Elite
    orders: Orders
    kicks: int
    patience: int
    makespan: int = NEVER
    moves: int = 0
    last_gain: int = 0


@dataclass(slots=True)
class IteratedLocalSearch:
    """Visits to elites, one after the other.

    Attributes:
        best: the incumbent, whose elites are visited.
        state: state of the random generator.
        turn: visits so far.
    """

    best: Incumbent
    state: int
    turn: int = 0
    visit: _LocalSearch | None = None

    def search_round(self) -> None:
        """Go on with the visit under way, or begin the next one, and offer what is better."""
        best = self.best
        if Phase.TABU_SEARCH in best.params.left_out:
            return
        visit = self.visit or self._begin()
        num_moves = min(max(ROUND_TASKS // len(visit.orders.sequence), 10), visit.patience)
        makespan, self.state, num_looks = tabu_search(
            best.instance.arrays,
            visit.orders,
            visit.makespan,
            visit.moves,
            num_moves,
            visit.kicks,
            best.lower_bound,
            self.state,
        )
        best.budget.charge(num_looks * OPERATIONS_A_LOOK)
        visit.moves += num_moves + visit.kicks
        visit.kicks = 0
        if makespan < visit.makespan:
            visit.makespan, visit.last_gain = makespan, visit.moves
        if makespan < best.makespan:
            best.offer(visit.orders.best, "neighbourhood search", is_new=False)
        self.visit = visit
        if visit.moves - visit.last_gain >= visit.patience:
            self._end(visit)

    def _begin(self) -> _LocalSearch:
        params, elite = self.best.params, self._next_elite()
        self.turn += 1
        start, kicks = elite.start, 0
        patience = min(params.min_patience + 4 * len(start), params.max_patience)
        if elite.visits > 0:
            self.state = next_state(self.state)
            kicks = 0 if Phase.KICKS in params.left_out else 2 + below(self.state, params.max_kicks)
        elite.visits += 1
        return _LocalSearch(elite, orders_of(self.best.instance.arrays, start), kicks, patience)

    def _end(self, visit: _LocalSearch) -> None:
        if visit.makespan <= visit.elite.makespan:
            visit.elite.makespan, visit.elite.start = visit.makespan, visit.orders.best.copy()
            self.best.elites.sort(key=lambda elite: elite.makespan)
        self.visit = None

    def _next_elite(self) -> Elite:
        elites = self.best.elites
        is_large = len(elites[0].start) > LARGE_TASKS
        unvisited = next((elite for elite in elites if elite.visits == 0), None)
        if unvisited is not None and not is_large:
            return unvisited
        if self.turn % 2 == int(is_large) or elites[0].visits == 0:
            return elites[0]
        return elites[self.turn // 2 % len(elites)] if unvisited is None else unvisited
