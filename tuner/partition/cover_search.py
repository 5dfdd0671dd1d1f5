"""A* search for the cheapest exact cover of a graph by options, in integer arithmetic.

A state is the set of covered nodes; a step adds an option that holds the first uncovered node and is
disjoint from what is covered, so that each cover is reached in exactly one order. Two things reach beyond the
covered set and are part of the state where they matter:

*Order.* Options may be chosen before what they read is covered, and two convex options can wait for each
other: with a1 → b2 and b1 → a2, {a1, a2} and {b1, b2} each are convex, yet neither can run first. A chosen
option with something before it and something after it that could yet be chosen together is
*order-constraining*; the state keeps what must run before and after it, and a step that would close a circle
is not taken. An option with one exit and no taps never constrains the order: every path through it passes
through its exit.

*Transitions.* Where data that changes backend costs something, the state keeps which backend made the values
that uncovered nodes read, and which backends read values that are not yet made.

The order of expansion is A*: with prices p from `tuner.partition.cover_bound`, a step costs cost − Σ p over
its nodes, which is >= 0, so that this is Dijkstra's algorithm on reduced costs. Ties go to the state that
covers more, then to the one found first. Where no option crosses from a prefix of the nodes to the rest, the
two are searched one after the other, so that a loose bound here does not reopen what was settled there. Where
the limit of states ends the proof, the cheaper of a beam's cover and an integer program's is the answer.
Checked against exhaustive search in tests/tuner/partition/test_cover_search.py.

Source: TVM RFC 62 ("Partitioner", Dijkstra over covered index sets); A* on dual prices is ours.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.partition.cover_bound import raised_prices
from tuner.partition.cover_program import solve_cover_program

OrderConstraints = tuple[tuple[int, int], ...]
"""For each order-constraining option, bits of uncovered nodes that run before it and after it; sorted."""

Producers = tuple[tuple[int, int, int], ...]
"""Covered values still to be read: bits of their uncovered users, the backend that made them, and how
many there are. Values with the same users are alike, so branches that meet in one node make few states."""

PROGRESS_EVERY_STATES = 1000

_ROUNDED_STATES, _ROUNDED_STATES_A_NODE = 5000, 4
"""States to expand, of a segment, before prices are raised and it is searched anew: the larger of both."""

BEAM_WIDTH = 64
"""States kept for each first uncovered node, where the proof is given up."""

_MAX_FORBIDDEN = 50
"""Covers of the integer program that cannot run, each forbidden, before it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to cover some nodes.

    Attributes:
        inside: bits of the nodes.
        reads: bits of the outside nodes that inside nodes read.
        cost: whole number >= 0.
        backend: number of who runs it; -1 where transitions to and from it are free.
    """

    inside: int
    reads: int
    cost: int
    backend: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverProblem:
    """What to cover and with what.

    Attributes:
        ancestors: for each node, bits of the nodes it depends on.
        descendants: for each node, bits of the nodes that depend on it.
        users: for each node, bits of the nodes that read it.
        options: the ways to cover nodes.
        prices: lower bounds a node, see `tuner.partition.cover_bound.node_prices`.
        transition_cost: cost of each value that an option reads from another backend.
    """

    ancestors: Sequence[int]
    descendants: Sequence[int]
    users: Sequence[int]
    options: Sequence[Option]
    prices: Sequence[int]
    transition_cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """An exact cover.

    Attributes:
        chosen: positions of the options, in order of their first nodes.
        cost: their costs and the transitions between them.
        lower_bound: no cover costs less; equal to `cost` where it is proven to be the cheapest.
        states: how many states were expanded.
    """

    chosen: tuple[int, ...]
    cost: int
    lower_bound: int
    states: int


class StuckError(Exception):
    """No exact cover exists; `node` is the furthest that could not be covered."""

    def __init__(self, node: int) -> None:
        super().__init__(f"node {node} cannot be covered")
        self.node = node


def search_cover(
    problem: CoverProblem,
    *,
    max_states: int | None = None,
    beam_width: int | None = None,
    on_progress: Callable[[int, int], None] = lambda states, covered: None,
) -> Cover:
    """Return the cheapest exact cover, or a good one where more than `max_states` states would be needed.

    Args:
        max_states: states to expand before the proof is given up; no limit if None.
        beam_width: states kept for each first uncovered node once it is; `BEAM_WIDTH` if None.
        on_progress: told, now and then, the states expanded and the most nodes covered in one.

    Raises:
        StuckError: there is no exact cover whose options can run in some order.
    """
    return _Search(problem, on_progress).run(max_states, beam_width or BEAM_WIDTH)


@dataclass(frozen=True, slots=True)
class _State:
    """What the rest of a cover depends on.

    Attributes:
        covered: bits of covered nodes.
        order_constraints: what order-constraining options impose.
        producers: what was made for uncovered nodes, and by which backend; sorted.
        consumers: for options that read uncovered nodes, bits of these, and the backend; sorted.
    """

    covered: int
    order_constraints: OrderConstraints = ()
    producers: Producers = ()
    consumers: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Visit:
    """The best way known to a state."""

    bound: int
    parent: _State | None
    option: int


class _Search:
    def __init__(self, problem: CoverProblem, on_progress: Callable[[int, int], None]) -> None:
        self._problem = problem
        self._on_progress = on_progress
        self._everything = (1 << len(problem.prices)) - 1
        self._insides = [_indices(option.inside) for option in problem.options]
        self._set_prices(problem.prices)
        self._before = [
            _union(problem.ancestors, option.inside) & ~option.inside for option in problem.options
        ]
        self._after = [
            _union(problem.descendants, option.inside) & ~option.inside for option in problem.options
        ]
        self._constrains_order = [
            self._is_order_constraining(number) for number in range(len(problem.options))
        ]
        self._by_first: list[list[int]] = [[] for _ in problem.prices]
        for number, option in enumerate(problem.options):
            self._by_first[_first(option.inside)].append(number)
        self._visits: dict[_State, _Visit] = {}
        self._leaders: dict[tuple[int, OrderConstraints], _State] = {}
        self._furthest = 0
        self._states = 0

    def run(self, max_states: int | None, beam_width: int) -> Cover:
        """Search segment by segment; what was chosen in one does not depend on any other."""
        state = _State(0)
        cost = lower_bound = sum(self._problem.prices)
        chosen: list[int] = []
        for end in self._segment_ends():
            self._visits = {state: _Visit(cost, None, -1)}
            self._leaders = {}
            soon = self._states + max(_ROUNDED_STATES, _ROUNDED_STATES_A_NODE * len(self._prices))
            goal, bound = self._expand_by_bound(
                state, end, soon if max_states is None else min(soon, max_states)
            )
            if goal is None and (max_states is None or self._states < max_states):
                # Covers may differ by less than rounding took from the prices.
                raised = self._raise_prices(state)
                cost, lower_bound = cost + raised, lower_bound + raised
                self._visits = {state: _Visit(cost, None, -1)}
                self._leaders = {}
                goal, bound = self._expand_by_bound(state, end, max_states)
            if goal is None:
                goal, found_bound = self._expand_without_proof(state, end, beam_width)
                bound = max(bound, found_bound)
            lower_bound += bound - cost
            cost = self._visits[goal].bound
            chosen += self._path(goal)
            state = goal
        return Cover(chosen=tuple(chosen), cost=cost, lower_bound=lower_bound, states=self._states)

    def _raise_prices(self, state: _State) -> int:
        """Raise all prices as far as they go; return by how much those of a state's uncovered nodes."""
        costs = [option.cost for option in self._problem.options]
        raised = raised_prices(self._prices, self._insides, costs)
        uncovered = _indices(self._everything & ~state.covered)
        more = sum(raised[index] - self._prices[index] for index in uncovered)
        self._set_prices(raised)
        return more

    def _set_prices(self, prices: Sequence[int]) -> None:
        self._prices = prices
        self._slack = [
            option.cost - sum(prices[index] for index in inside)
            for option, inside in zip(self._problem.options, self._insides, strict=True)
        ]

    def _segment_ends(self) -> list[int]:
        """Return covered sets that every cover passes through: prefixes that no option crosses.

        With transitions a prefix is reached in several states, which the rest depends on: one segment then.
        """
        if self._problem.transition_cost:
            return [self._everything]
        ends, reach = [], 0
        for index, options in enumerate(self._by_first):
            lasts = [self._problem.options[number].inside.bit_length() for number in options]
            reach = max(reach, index + 1, *lasts)
            if reach == index + 1:
                ends.append((1 << reach) - 1)
        return ends

    def _expand_by_bound(self, start: _State, end: int, max_states: int | None) -> tuple[_State | None, int]:
        """Return the goal and its cost, or None and a lower bound once there were too many states."""
        sequence = 0
        heap = [(self._visits[start].bound, 0, sequence, start)]
        expanded: set[_State] = set()
        while heap:
            bound, _, _, state = heapq.heappop(heap)
            if state in expanded:
                continue
            if state.covered == end:
                return state, bound
            if max_states is not None and self._states >= max_states:
                return None, bound
            expanded.add(state)
            for successor in self._expand(state):
                sequence += 1
                visit = self._visits[successor]
                heapq.heappush(heap, (visit.bound, -successor.covered.bit_count(), sequence, successor))
        raise StuckError(self._furthest)

    def _expand_by_position(self, start: _State, end: int, beam_width: int) -> None:
        """Reach the goal, keeping for each first uncovered node only the most promising states."""
        self._visits = {start: self._visits[start]}
        self._leaders = {}
        first, last = _first(~start.covered), end.bit_length()
        order_constraints: dict[int, dict[_State, None]] = {
            position: {} for position in range(first, last + 1)
        }
        order_constraints[first][start] = None
        for position in range(first, last):
            ranked = sorted(order_constraints[position], key=lambda state: self._visits[state].bound)
            for state in ranked[:beam_width]:
                for successor in self._expand(state):
                    order_constraints[_first(~successor.covered)][successor] = None
        if not order_constraints[last]:
            raise StuckError(self._furthest)

    def _expand_without_proof(self, start: _State, end: int, beam_width: int) -> tuple[_State, int]:
        """Return the goal as cheaply as a beam and an integer program reach it, and a lower bound."""
        stuck = None
        try:
            self._expand_by_position(start, end, beam_width)
        except StuckError as error:  # of the beam: there may be a cover
            stuck = error
        bound = self._expand_by_program(start, end)
        goal = _State(end)
        if goal not in self._visits:
            raise stuck or StuckError(self._furthest)
        return goal, min(bound, self._visits[goal].bound)

    def _expand_by_program(self, start: _State, end: int) -> int:
        """Reach the goal as an integer program does, where that is cheaper; return a lower bound on its cost.

        What transitions cost is no sum over options, so that the program's cover is not the cheapest then.
        """
        first, last = _first(~start.covered), end.bit_length()
        reached, known = self._visits[start].bound, self._visits.get(_State(end))
        # Costing more than a whole cover does, an option is in no cheaper one.
        numbers = [
            number
            for position in range(first, last)
            for number in self._by_first[position]
            if known is None or reached + self._slack[number] <= known.bound
        ]
        insides = [[index - first for index in self._insides[number]] for number in numbers]
        forbidden: list[tuple[int, ...]] = []
        while len(forbidden) <= _MAX_FORBIDDEN:
            found = solve_cover_program(
                insides,
                [self._slack[number] for number in numbers],
                num_nodes=last - first,
                forbidden=forbidden,
            )
            if found is None:
                break
            num_taken = self._take(start, [numbers[position] for position in found.chosen])
            if num_taken == len(found.chosen):
                return reached + found.lower_bound
            forbidden.append(found.chosen[: num_taken + 1])
        return reached

    def _take(self, start: _State, chosen: Sequence[int]) -> int:
        """Reach what options, in order of their first nodes, lead to; return how many can be taken."""
        state = start
        for count, number in enumerate(chosen):
            step = self._step(state, number)
            if step is None:
                return count
            successor, transitions = step
            reached = self._visits[state].bound + self._slack[number] + transitions
            known = self._visits.get(successor)
            if known is None or reached < known.bound:
                self._visits[successor] = _Visit(reached, state, number)
            state = successor
        return len(chosen)

    def _expand(self, state: _State) -> list[_State]:
        """Return the states one option further that are now reached more cheaply than before."""
        self._states += 1
        first = _first(~state.covered)
        self._furthest = max(self._furthest, first)
        if self._states % PROGRESS_EVERY_STATES == 0:
            self._on_progress(self._states, self._furthest)
        bound = self._visits[state].bound
        improved = []
        for number in self._by_first[first]:
            if self._problem.options[number].inside & state.covered:
                continue
            step = self._step(state, number)
            if step is None:
                continue
            successor, transitions = step
            reached = bound + self._slack[number] + transitions
            known = self._visits.get(successor)
            if (known is None or reached < known.bound) and not self._is_dominated(successor, reached):
                self._visits[successor] = _Visit(reached, state, number)
                improved.append(successor)
        return improved

    def _is_dominated(self, state: _State, bound: int) -> bool:
        """Say whether another state with the same nodes covered does better whatever follows.

        Whatever follows costs that state at most a transition more for each use of a value that another
        backend made there, and for each value still wanted by an option that is only there.
        """
        if not self._problem.transition_cost:
            return False
        key = state.covered, state.order_constraints
        leader = self._leaders.get(key)
        if leader is None or bound < self._visits[leader].bound:
            self._leaders[key] = state
            return False
        if leader == state:
            return False
        uses = sum(
            wanted.bit_count()
            for wanted, backend in leader.consumers
            if (wanted, backend) not in state.consumers
        )
        made_here = {(users, backend): count for users, backend, count in state.producers}
        for users, backend, count in leader.producers:
            uses += max(count - made_here.get((users, backend), 0), 0) * users.bit_count()
        return bound >= self._visits[leader].bound + uses * self._problem.transition_cost

    def _step(self, state: _State, number: int) -> tuple[_State, int] | None:
        """Return the state after an option and the cost of its transitions; None where it closes a circle."""
        covered = state.covered | self._problem.options[number].inside
        order_constraints: OrderConstraints | None = state.order_constraints
        if state.order_constraints or self._constrains_order[number]:
            order_constraints = self._wait(state.order_constraints, number, covered)
            if order_constraints is None:
                return None
        if not self._problem.transition_cost:
            return _State(covered, order_constraints or ()), 0
        producers, consumers, transitions = self._transit(state, number, covered)
        return _State(covered, order_constraints or (), producers, consumers), transitions

    def _wait(
        self, order_constraints: OrderConstraints, number: int, covered: int
    ) -> OrderConstraints | None:
        """Return what order-constraining options impose after one more option; None where a circle would
        close."""
        inside = self._problem.options[number].inside
        before, after = self._before[number], self._after[number]
        for earlier, later in order_constraints:
            if inside & earlier and inside & later:
                return None
            if inside & later:
                before |= earlier
            if inside & earlier:
                after |= later
        entries = [
            (earlier | (before if inside & earlier else 0), later | (after if inside & later else 0))
            for earlier, later in order_constraints
        ]
        entries.append((before, after))
        uncovered = {(earlier & ~covered, later & ~covered) for earlier, later in entries}
        return tuple(sorted(entry for entry in uncovered if all(entry)))

    def _is_order_constraining(self, number: int) -> bool:
        """Say whether something before an option and something after it could yet be chosen together.

        They cannot where a path between them passes through the option: whatever holds both is not convex
        then. It is enough to look at what the option reads: paths from further up pass through more of it.
        """
        option = self._problem.options[number]
        return any(
            self._after[number]
            & ~_union(self._problem.descendants, option.inside & self._problem.descendants[read])
            for read in _indices(option.reads)
        )

    def _transit(
        self, state: _State, number: int, covered: int
    ) -> tuple[Producers, tuple[tuple[int, int], ...], int]:
        """Return producers and consumers after an option, and what its values that change backend cost."""
        option = self._problem.options[number]
        made: Counter[tuple[int, int]] = Counter()
        consumers = []
        values = 0
        for users, backend, count in state.producers:
            if users & option.inside and 0 <= option.backend != backend:
                values += count
            made[users & ~covered, backend] += count
        for wanted, backend in state.consumers:
            if 0 <= option.backend != backend:
                values += (wanted & option.inside).bit_count()
            consumers.append((wanted & ~covered, backend))
        if option.backend >= 0:
            for index in _indices(option.inside):
                made[self._problem.users[index] & ~covered, option.backend] += 1
            consumers.append((option.reads & ~covered, option.backend))
        producers = tuple(
            sorted((users, backend, count) for (users, backend), count in made.items() if users)
        )
        return (
            producers,
            tuple(sorted(each for each in consumers if each[0])),
            values * self._problem.transition_cost,
        )

    def _path(self, goal: _State) -> tuple[int, ...]:
        chosen = []
        state: _State | None = goal
        while state is not None:
            visit = self._visits[state]
            if visit.option >= 0:
                chosen.append(visit.option)
            state = visit.parent
        return tuple(reversed(chosen))


def _union(neighbours: Sequence[int], inside: int) -> int:
    union = 0
    for index in _indices(inside):
        union |= neighbours[index]
    return union


def _first(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _indices(bits: int) -> list[int]:
    indices = []
    while bits:
        lowest = bits & -bits
        indices.append(lowest.bit_length() - 1)
        bits ^= lowest
    return indices
