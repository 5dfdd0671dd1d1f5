"""Tabu searches from the best schedule, one after the other, each for as long as it gets better.

Where two begin at the same schedule, random choices among equal moves and critical paths lead them apart.
Checked in tests/tessel/search/makespan/test_find_schedule.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessel.search.makespan.device_orders import Orders, orders_of
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.makespan.params import Phase
from tessel.search.makespan.tabu_search import tabu_search

ROUND_TASKS = 1_000_000
"""Tasks timed between two looks at the budget: a few hundredths of a second."""

OPERATIONS_A_LOOK = 80
"""Charged for each task that a round looks at."""


@dataclass(slots=True)
class LocalSearch:
    """The tabu search under way.

    Attributes:
        best: the incumbent, where it begins and what it improves.
        state: state of the random generator.
        orders: where it stands; None before it begins.
        makespan: the best that it has found.
        moves: moves so far.
        last_gain: moves so far when it last got better.
    """

    best: Incumbent
    state: int
    orders: Orders | None = None
    makespan: int = NEVER
    moves: int = 0
    last_gain: int = 0

    def search_round(self) -> None:
        """Go on with the search under way, or begin the next one, and offer what is better."""
        best = self.best
        if Phase.TABU_SEARCH in best.params.left_out:
            return
        if self.orders is None:
            self.orders = orders_of(best.instance.arrays, best.best.start)
            self.makespan, self.moves, self.last_gain = NEVER, 0, 0
        num_tasks = len(self.orders.sequence)
        patience = min(best.params.min_patience + 4 * len(best.best.start), best.params.max_patience)
        num_moves = min(max(ROUND_TASKS // num_tasks, 10), patience)
        makespan, self.state, num_looks = tabu_search(
            best.instance.arrays,
            self.orders,
            self.makespan,
            self.moves,
            num_moves,
            best.lower_bound,
            self.state,
        )
        best.budget.charge(num_looks * OPERATIONS_A_LOOK)
        self.moves += num_moves
        if makespan < self.makespan:
            self.makespan, self.last_gain = makespan, self.moves
        if makespan < best.makespan:
            best.offer(self.orders.best, "neighbourhood search")
        if self.moves - self.last_gain >= patience:
            self.orders = None
