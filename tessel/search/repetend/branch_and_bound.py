"""Whether a repetend of a given period exists, decided exactly by branching on who is next on each device.

The state is the matrix of longest paths between starts (t_v - t_u >= distance[u, v]) and a range for the
integer h of each pair (see `tessel.search.repetend.cyclic_problem`). Distances narrow ranges, ranges add arcs
to the distances, and memory rows narrow ranges further; a positive cycle or an empty range is a proof that
nothing lies below. Otherwise one pair is split: its largest h first, which keeps the pair closest, then all
the smaller ones. The pair is the one with the fewest values left for the failures it has caused so far
(dom/wdeg, Boussemart et al., ECAI 2004). Before each split the earliest starts are tried as they are.

Nothing here depends on how long the spans are. The search is a value that can be run for a while, looked at,
and run on, so that its caller keeps the clock. Cost: O(num_nodes²) for each arc that tightens a distance.
Checked in tests/tessel/search/repetend/test_find_repetend.py.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.model.problem import IntArray
from tessel.search.repetend.cyclic_problem import CyclicProblem


class Feasibility(enum.IntEnum):
    """What a search knows so far."""

    UNKNOWN = 0
    FEASIBLE = 1
    INFEASIBLE = 2


FIRST_DEPTH = 4
"""Levels of the search tree that memory is set aside for at first; it doubles when they are used up."""

MAX_STACK_BYTES = 2**30
"""The search gives up (and says so: `is_stuck`) rather than hold more."""

OPERATIONS_A_WORK_UNIT = 2
"""Charged for a unit of the work that the search counts."""

OPERATIONS_A_BEGIN = 100_000
"""Charged for a search that begins; its first longest paths come on top."""

MAX_NODES = 2048
"""Blocks of one period up to which the search is begun: the first longest paths cost their cube."""


class Rules(NamedTuple):
    """What is searched, as `CyclicProblem` has it; all int64.

    Attributes:
        life_room: by device, unit-steps that its lifetimes may take together.
    """

    period: int
    spans: IntArray
    pairs: IntArray
    is_low: IntArray
    row_start: IntArray
    row_limits: IntArray
    term_pair: IntArray
    term_sign: IntArray
    term_memory: IntArray
    lifetime_start: IntArray
    life_room: IntArray
    life_nodes: IntArray
    life_units: IntArray


class Stack(NamedTuple):
    """The levels of the search tree; all int64.

    Attributes:
        distance: by level, the matrix of longest paths.
        lowest: by level and pair, the least h; `highest` likewise.
        branch: by level, the pair that is split.
        weight: by pair, the failures that it has caused, and one.
    """

    distance: IntArray
    lowest: IntArray
    highest: IntArray
    branch: IntArray
    weight: IntArray

    @classmethod
    def of(cls, nodes: int, pairs: int) -> Stack:
        """Return the first levels."""
        return cls(
            distance=np.zeros((FIRST_DEPTH, nodes, nodes), dtype=np.int64),
            lowest=np.zeros((FIRST_DEPTH, pairs), dtype=np.int64),
            highest=np.zeros((FIRST_DEPTH, pairs), dtype=np.int64),
            branch=np.zeros(FIRST_DEPTH, dtype=np.int64),
            weight=np.ones(pairs, dtype=np.int64),
        )


@dataclass(slots=True)
class OrderSearch:
    """The search of one period, which remembers where it stopped.

    Attributes:
        starts: int64, shape (num_nodes,), once the answer is `FEASIBLE`; the earliest start is 0.
        is_stuck: whether it gave up for want of memory or time.
        operations: to charge for what it has done so far.
    """

    cyclic: CyclicProblem
    period: int
    starts: IntArray | None = None
    is_stuck: bool = False
    operations: int = 0
    answer: Feasibility = Feasibility.UNKNOWN
    method: ClassVar[str] = "branching on device orders"
    _rules: Rules | None = None
    _stack: Stack = field(default_factory=lambda: Stack.of(0, 0))
    _depth: int = -1

    def run(self, max_work: int) -> Feasibility:
        """Continue within about this work budget, and return what is known then."""
        if self.answer is not Feasibility.UNKNOWN or self.is_stuck:
            return self.answer
        if self._rules is None:
            self._begin()
        while self.answer is Feasibility.UNKNOWN and max_work > 0 and not self.is_stuck:
            left = self._continue(max_work)
            self.operations += (max_work - left) * OPERATIONS_A_WORK_UNIT
            max_work = left
        return self.answer

    def _begin(self) -> None:
        cyclic = self.cyclic
        nodes = cyclic.num_nodes
        if nodes > MAX_NODES:
            self.is_stuck = True
            return
        self._rules = rules = _rules_of(cyclic, self.period)
        self._stack = stack = Stack.of(nodes, len(cyclic.pairs))
        self.operations += OPERATIONS_A_BEGIN + nodes**3
        is_consistent = first_distances(
            stack.distance[0], cyclic.arcs, cyclic.components, cyclic.spread, self.period
        )
        if is_consistent and cyclic.copies > 1:
            is_consistent = self._number_copies()
        if not is_consistent:
            self.answer = Feasibility.INFEASIBLE
            return
        first_ranges(rules, stack.distance[0], stack.lowest[0], stack.highest[0])

    def _number_copies(self) -> bool:
        """Let the longest wait between copies of one block be that between the first two.

        Copies can be renumbered in a circle, so that one wait of at least the mean may be taken for it.
        """
        copies, size = self.cyclic.copies, self.cyclic.problem.num_blocks
        block = self.cyclic.problem.order[0]
        return add_arc(self._stack.distance[0], block, size + block, -(-self.period // copies)) > 0

    def _continue(self, max_work: int) -> int:
        assert self._rules is not None  # `run` has begun
        status, self._depth, left, starts = search(self._rules, self._stack, self._depth, max_work)
        if status == _FULL:
            self._grow()
        elif status == _FOUND:
            self.starts = starts - starts.min()
            self.answer = Feasibility.FEASIBLE
        elif status == _EXHAUSTED:
            self.answer = Feasibility.INFEASIBLE
        return left

    def _grow(self) -> None:
        if 2 * self._stack.distance.nbytes > MAX_STACK_BYTES:
            self.is_stuck = True
            return
        distance, lowest, highest, branch = (
            np.concatenate([rows, np.zeros_like(rows)]) for rows in self._stack[:-1]
        )
        self._stack = Stack(distance, lowest, highest, branch, self._stack.weight)


def _rules_of(cyclic: CyclicProblem, period: int) -> Rules:
    return Rules(
        period=period,
        spans=cyclic.spans,
        pairs=cyclic.pairs,
        is_low=cyclic.is_low,
        row_start=cyclic.row_start,
        row_limits=cyclic.row_limits,
        term_pair=cyclic.term_pair,
        term_sign=cyclic.term_sign,
        term_memory=cyclic.term_memory,
        lifetime_start=cyclic.lifetime_start,
        life_room=cyclic.lifetime_limits[:, 0] * period - cyclic.lifetime_limits[:, 1],
        life_nodes=cyclic.life_nodes,
        life_units=cyclic.life_units,
    )


_OUT_OF_WORK, _FOUND, _EXHAUSTED, _FULL = range(4)


@compiled
def first_distances(
    distance: IntArray, arcs: IntArray, components: IntArray, spread: IntArray, period: int
) -> bool:
    """Fill the matrix with the longest paths of arcs and components; return whether no cycle is positive."""
    nodes = len(components)
    unbounded = np.int64(-(2**60))
    first = np.full(len(spread), -1, dtype=np.int64)
    for u in range(nodes):
        if first[components[u]] < 0:
            first[components[u]] = u
    for u in range(nodes):
        for v in range(nodes):
            bound = spread[components[u], 0] + spread[components[u], 1] * period
            distance[u, v] = -bound if components[u] == components[v] else unbounded
        distance[u, u] = 0
    for component in range(1, len(spread)):
        distance[first[0], first[component]] = 0
        distance[first[component], first[0]] = 1 - period
    for arc in range(len(arcs)):
        u, v = arcs[arc, 0], arcs[arc, 1]
        distance[u, v] = max(distance[u, v], arcs[arc, 2] - arcs[arc, 3] * period)
    for k in range(nodes):
        for i in range(nodes):
            via = distance[i, k]
            if via > unbounded:
                for j in range(nodes):
                    if distance[k, j] > unbounded and via + distance[k, j] > distance[i, j]:
                        distance[i, j] = via + distance[k, j]
    return bool(np.diag(distance).max() <= 0)


@compiled
def first_ranges(rules: Rules, distance: IntArray, lowest: IntArray, highest: IntArray) -> None:
    """Fill the ranges with what the distances allow."""
    period = rules.period
    for pair in range(len(rules.pairs)):
        u, v = rules.pairs[pair, 0], rules.pairs[pair, 1]
        highest[pair] = (period - rules.spans[v] - distance[u, v]) // period
        lowest[pair] = -((-rules.spans[u] - distance[v, u]) // period)


@compiled
def search(rules: Rules, stack: Stack, depth: int, max_work: int) -> tuple[int, int, int, IntArray]:
    """Run depth first from `depth` (-1: from the root) for about `max_work` units of work.

    The rows of the stacks up to `depth` are propagated states; `branch` holds the pair split at each.

    Returns:
        How it ended, the depth it stopped at, the work left, and the starts where some were found.
    """
    distance, lowest, highest, branch = stack.distance, stack.lowest, stack.highest, stack.branch
    nodes = len(rules.spans)
    starts = np.zeros(nodes, dtype=np.int64)
    is_consistent = True
    if depth < 0:
        depth = 0
        is_consistent, used = propagate(rules, distance[0], lowest[0], highest[0], stack.weight)
        max_work -= used
    while True:
        if not is_consistent:
            if depth == 0:
                return _EXHAUSTED, depth, max_work, starts
            depth -= 1
            highest[depth, branch[depth]] -= 1
            is_consistent, used = propagate(
                rules, distance[depth], lowest[depth], highest[depth], stack.weight
            )
            max_work -= used
            continue
        if earliest_fits(rules, distance[depth], starts):
            return _FOUND, depth, max_work, starts
        if max_work <= 0:
            return _OUT_OF_WORK, depth, max_work, starts
        if depth + 1 == len(branch):
            return _FULL, depth, max_work, starts
        split = select_branching_pair(lowest[depth], highest[depth], stack.weight)
        if split < 0:
            # Only blocks of span 0 that are each before the next in a circle, thus all together, get here.
            is_consistent = False
            continue
        branch[depth] = split
        distance[depth + 1] = distance[depth]
        lowest[depth + 1] = lowest[depth]
        highest[depth + 1] = highest[depth]
        depth += 1
        lowest[depth, split] = highest[depth, split]
        is_consistent, used = propagate(rules, distance[depth], lowest[depth], highest[depth], stack.weight)
        max_work -= used + nodes * nodes


@compiled_leaf
def select_branching_pair(lowest: IntArray, highest: IntArray, weight: IntArray) -> int:
    """Return the undecided pair with the fewest values for its weight; -1 where all are decided."""
    best = -1
    best_score = np.inf
    for pair in range(len(lowest)):
        if highest[pair] > lowest[pair]:
            score = (highest[pair] - lowest[pair]) / weight[pair]
            if score < best_score:
                best, best_score = pair, score
    return best


@compiled_leaf
def propagate(
    rules: Rules, distance: IntArray, lowest: IntArray, highest: IntArray, weight: IntArray
) -> tuple[bool, int]:
    """Narrow distances and ranges until nothing changes; return whether something is left, and work used."""
    period = rules.period
    work = 0
    changed = True
    while changed:
        changed = False
        for pair in range(len(rules.pairs)):
            u, v = rules.pairs[pair, 0], rules.pairs[pair, 1]
            work += 1
            high = min(highest[pair], (period - rules.spans[v] - distance[u, v]) // period)
            low = max(lowest[pair], -((-rules.spans[u] - distance[v, u]) // period))
            highest[pair] = high
            lowest[pair] = low
            if low > high:
                weight[pair] += 1
                return False, work
            if rules.spans[u] - high * period > distance[u, v]:
                changed = True
                used = add_arc(distance, u, v, rules.spans[u] - high * period)
                if used == 0:
                    weight[pair] += 1
                    return False, work
                work += used
            if rules.spans[v] - (1 - low) * period > distance[v, u]:
                changed = True
                used = add_arc(distance, v, u, rules.spans[v] - (1 - low) * period)
                if used == 0:
                    weight[pair] += 1
                    return False, work
                work += used
        for row in range(len(rules.row_limits)):
            work += rules.row_start[row + 1] - rules.row_start[row]
            slack = rules.row_limits[row]
            for term in range(rules.row_start[row], rules.row_start[row + 1]):
                slack -= least_term(
                    rules.term_sign[term], rules.term_memory[term], lowest, highest, rules.term_pair[term]
                )
            if slack < 0:
                for term in range(rules.row_start[row], rules.row_start[row + 1]):
                    weight[rules.term_pair[term]] += 1
                return False, work
            for term in range(rules.row_start[row], rules.row_start[row + 1]):
                pair = rules.term_pair[term]
                room = slack // abs(rules.term_memory[term])
                if (rules.term_memory[term] > 0) == (rules.term_sign[term] > 0):
                    if lowest[pair] + room < highest[pair]:
                        highest[pair] = lowest[pair] + room
                        changed = True
                elif highest[pair] - room > lowest[pair]:
                    lowest[pair] = highest[pair] - room
                    changed = True
        for device in range(len(rules.life_room)):
            used = bound_lifetimes(
                distance,
                rules.lifetime_start[device],
                rules.lifetime_start[device + 1],
                rules.life_room[device],
                rules.life_nodes,
                rules.life_units,
            )
            if used == 0:
                return False, work
            work += abs(used)
            changed = changed or used < 0
    return True, work


@compiled_leaf
def bound_lifetimes(
    distance: IntArray, begin: int, end: int, room: int, nodes: IntArray, units: IntArray
) -> int:
    """Let no life last longer than what the shortest of the others leave of a device's room.

    Returns:
        The work used, negative where a distance has changed, or 0 where there is no room.
    """
    slack = room
    for term in range(begin, end):
        slack -= units[term] * distance[nodes[term, 0], nodes[term, 1]]
    if slack < 0:
        return 0
    work = 1 + end - begin
    changed = False
    for term in range(begin, end):
        source, target = nodes[term, 0], nodes[term, 1]
        # A life that has become longer since the sum was taken only leaves more than is right.
        longest = distance[source, target] + slack // units[term]
        if -longest > distance[target, source]:
            used = add_arc(distance, target, source, -longest)
            if used == 0:
                return 0
            work += used
            changed = True
    return -work if changed else work


@compiled_leaf
def least_term(sign: int, memory: int, lowest: IntArray, highest: IntArray, pair: int) -> int:
    """Return the least value of `memory * h` (or of `memory * (1 - h)` for sign -1) in the pair's range."""
    if sign > 0:
        return memory * int(lowest[pair] if memory > 0 else highest[pair])
    return memory * (1 - int(highest[pair] if memory > 0 else lowest[pair]))


@compiled
def add_arc(distance: IntArray, u: int, v: int, length: int) -> int:
    """Tighten all distances by an arc; return the work used, or 0 where it closes a positive cycle."""
    nodes = len(distance)
    if length + distance[v, u] > 0:
        return 0
    work = nodes
    for i in range(nodes):
        via = distance[i, u] + length
        if via > distance[i, v]:
            work += nodes
            for j in range(nodes):
                if via + distance[v, j] > distance[i, j]:
                    distance[i, j] = via + distance[v, j]
    return work


@compiled
def earliest_fits(rules: Rules, distance: IntArray, starts: IntArray) -> bool:
    """Set `starts` to the earliest ones after node 0; return whether they keep all rules."""
    period = rules.period
    starts[:] = distance[0]
    chosen = np.zeros(len(rules.pairs), dtype=np.int64)
    for pair in range(len(rules.pairs)):
        u, v = rules.pairs[pair, 0], rules.pairs[pair, 1]
        apart = starts[v] - starts[u]
        if rules.is_low[pair] > 0:
            chosen[pair] = -((apart - rules.spans[u]) // period)
        else:
            chosen[pair] = (period - rules.spans[v] - apart) // period
        if apart + chosen[pair] * period < rules.spans[u]:
            return False
    for row in range(len(rules.row_limits)):
        held = 0
        for term in range(rules.row_start[row], rules.row_start[row + 1]):
            iterations = chosen[rules.term_pair[term]]
            held += rules.term_memory[term] * (iterations if rules.term_sign[term] > 0 else 1 - iterations)
        if held > rules.row_limits[row]:
            return False
    return True
