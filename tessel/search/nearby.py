"""Search near good schedules in turn: every other round near the best, the rest near the other elites.

The first visit to a schedule goes straight down; later ones start with some random moves, or they would end
where the last one did. What is found takes the place of the schedule it was found near, unless it is worse.
Checked in tests/tessel/search/test_makespan.py.

Source: Lourenço, Martin and Stützle, "Iterated local search" (2003), for kicks.
"""

from __future__ import annotations

from tessel.search.incumbent import Elite, Incumbent
from tessel.search.lottery import below, next_state
from tessel.search.neighbourhood import orders_of, search_neighbourhood

ROUND_STEPS = 200_000
"""Steps timed in one round between two looks at the clock: a few hundredths of a second."""

MOST_KICKS = 16
"""Most random moves at the start of a visit."""


def search_near(best: Incumbent, turn: int, state: int) -> int:
    """Search one round near the elite whose turn it is, and return the lottery's state."""
    elite = _elite_of(best, turn)
    state = next_state(state)
    num_kicks = 0 if elite.visits == 0 else 2 + below(state, MOST_KICKS)
    elite.visits += 1
    orders = orders_of(best.instance, elite.start)
    num_rounds = min(max(ROUND_STEPS // len(orders.sequence), 20), 2000)
    makespan, state = search_neighbourhood(
        best.instance, orders, num_rounds, num_kicks, best.lower_bound, state
    )
    if makespan < best.makespan:
        best.offer(orders.best, "neighbourhood search")
    if makespan <= elite.makespan:
        elite.makespan, elite.start = makespan, orders.best.copy()
        best.elites.sort(key=lambda elite: elite.makespan)
    return state


def _elite_of(best: Incumbent, turn: int) -> Elite:
    if turn % 2 == 0:
        return best.elites[0]
    return best.elites[turn // 2 % len(best.elites)]
