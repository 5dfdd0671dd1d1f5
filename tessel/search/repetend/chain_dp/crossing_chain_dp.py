"""Whether a repetend of a given period exists for two crossing chains, by dynamic programming over devices.

    device 0   f . . g h . . b        the falling chain f…b is outermost on device 0, innermost on the last,
    device 1   . f g . . h b .        the rising chain g…h the other way round

The devices are taken from the last to the first: the falling chain is built from the inside out, the rising
one from the outside in. The state of a device is the slots of its four blocks, counted from f, and how many
periods g and h are apart; the value is the least steps from f to b. Less is never worse (see
`nested_chain_dp`), and the rising chain's steps are in the state, so the answer is exact.

To go on to the next device f starts earlier, b later, g later and h earlier, each by the steps of its edge
and any wait: four sweeps over the states. Cost: O(devices x periods in flight x period³). Checked in
tests/tessel/search/repetend/chain_dp/test_crossing_chain_dp.py against `branch_and_bound`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import UNLIMITED, IntArray
from tessel.search.repetend.branch_and_bound import Feasibility
from tessel.search.repetend.chain_dp.chain_structure import CrossingChains, StagePair
from tessel.search.repetend.cyclic_problem import CyclicProblem

MAX_STATES = 20_000_000
"""States of all devices together up to which a search is begun: 160 MB, and about a second."""

OPERATIONS_A_STATE = 60
"""Charged for each state of a device."""

_NEVER = 2**60


@dataclass(slots=True)
class CrossingSearch:
    """The search of one period; same interface as `OrderSearch`, but never set aside.

    Attributes:
        cyclic: the rules.
        crossing: the same as two chains.
        starts: int64, shape (num_nodes,), once the answer is `FEASIBLE`.
        is_stuck: whether there are too many states to begin.
        operations: to charge for what it has done so far.
    """

    cyclic: CyclicProblem
    crossing: CrossingChains
    period: int
    starts: IntArray | None = None
    is_stuck: bool = False
    operations: int = 0
    answer: Feasibility = Feasibility.UNKNOWN
    method: ClassVar[str] = "dynamic programming over crossing chains"

    def __post_init__(self) -> None:
        self.is_stuck = len(self.crossing.devices) * self._num_iterations * self.period**3 > MAX_STATES

    def run(self, max_work: int) -> Feasibility:
        """Search to the end if there is any work budget, and return what is known then."""
        if self.answer is Feasibility.UNKNOWN and not self.is_stuck and max_work > 0:
            self._search()
        return self.answer

    @property
    def _num_iterations(self) -> int:
        """Periods that g and h can be apart, with 0: what the first device's limit allows."""
        problem = self.cyclic.problem
        rising = self.crossing.rising[0]
        limit = int(problem.limits[self.crossing.devices[0]])
        longest = self.cyclic.longest_period // self.period + 2 * len(self.crossing.devices)
        return 1 + min(
            longest, limit // int(problem.memory[rising.opening]) if limit < UNLIMITED else longest
        )

    def _search(self) -> None:
        problem, period = self.cyclic.problem, self.period
        falling, rising = self.crossing.falling, self.crossing.rising
        count = len(falling)
        steps = np.full((count, self._num_iterations, period, period, period), _NEVER, dtype=np.int64)
        begin(steps[0], falling[0].path_in.steps[0], period)
        for place, device in enumerate(self.crossing.devices):
            self.operations += steps[place].size * OPERATIONS_A_STATE
            if place > 0:
                moves = _moves(falling[place], rising[place - 1])
                advance(steps[place - 1], steps[place], *moves, period)
            is_last = place == count - 1
            blocks = _blocks(falling[place], rising[place])
            fits = keep_fitting(
                steps[place],
                period,
                problem.spans[blocks],
                int(problem.memory[blocks[0]]),
                int(problem.memory[blocks[2]]),
                int(problem.limits[device]),
                rising[place].path_in.steps[0] if is_last else 0,
            )
            if not fits:
                self.answer = Feasibility.INFEASIBLE
                return
        self.starts = _starts(self.cyclic, self.crossing, steps, period)
        self.answer = Feasibility.FEASIBLE


def _blocks(falling: StagePair, rising: StagePair) -> list[int]:
    return [falling.opening, falling.closing, rising.opening, rising.closing]


def _moves(falling: StagePair, rising: StagePair) -> tuple[int, int, int, int]:
    """Return the least steps by which f comes earlier, b later, g later and h earlier on the next device."""
    if falling.path_out is None or rising.path_out is None:
        raise AssertionError("only the innermost stage_pair has no path out")
    return (
        falling.path_in.steps[0],
        falling.path_out.steps[0],
        rising.path_in.steps[0],
        rising.path_out.steps[0],
    )


def _starts(cyclic: CyclicProblem, crossing: CrossingChains, steps: IntArray, period: int) -> IntArray:
    """Go back from the last device to the first, choosing states from which its state is reached."""
    starts = np.zeros(cyclic.num_nodes, dtype=np.int64)
    last = len(crossing.devices) - 1
    iterations, a, b, c = np.unravel_index(np.argmin(steps[last]), steps[last].shape)
    f, g = 0, int(b)
    now = f, int(steps[last, iterations, a, b, c]), g, g + int(iterations) * period + int((c - b) % period)
    starts[_blocks(crossing.falling[last], crossing.rising[last])] = now
    for place in range(last - 1, -1, -1):
        moves = _moves(crossing.falling[place + 1], crossing.rising[place])
        now = _state_before(steps[place], now, moves, period)
        starts[_blocks(crossing.falling[place], crossing.rising[place])] = now
    return starts


def _state_before(
    steps: IntArray, now: tuple[int, int, int, int], moves: tuple[int, int, int, int], period: int
) -> tuple[int, int, int, int]:
    """Return starts of f, b, g and h on the device before from which these are reached."""
    iterations, a, b, c = np.nonzero(steps < _NEVER)
    lived = steps[iterations, a, b, c]
    apart = iterations * period + (c - b) % period
    for wait in range(period):
        f = now[0] + moves[0] + wait
        g = now[2] - moves[2] - (now[2] - moves[2] - f - b) % period
        fits = (f + lived + moves[1] <= now[1]) & (g + apart - moves[3] >= now[3])
        if fits.any():
            state = int(np.argmax(fits))
            found_g = int(g[state])
            return f, f + int(lived[state]), found_g, found_g + int(apart[state])
    raise AssertionError("the steps of a device come from those of the one before")


@compiled
def begin(steps: IntArray, least: int, period: int) -> None:
    """Set the states of the first device, where the falling chain is innermost and all else is open."""
    for iterations in range(len(steps)):
        for a in range(period):
            steps[iterations, a] = least + (a - least) % period


@compiled
def advance(
    before: IntArray, after: IntArray, f_move: int, b_move: int, g_move: int, h_move: int, period: int
) -> None:
    """Set the least steps of a device's states from those of the one before."""
    for iterations in range(len(before)):
        for a in range(period):
            for b in range(period):
                for c in range(period):
                    lived = before[iterations, a, b, c]
                    if lived >= _NEVER:
                        continue
                    apart = iterations * period + (c - b) % period - g_move - h_move
                    if apart < 0:
                        continue
                    new_a = (a + f_move + b_move) % period
                    new_b = (b + f_move + g_move) % period
                    new_c = (c + f_move - h_move) % period
                    lived += f_move + b_move
                    if lived < after[apart // period, new_a, new_b, new_c]:
                        after[apart // period, new_a, new_b, new_c] = lived
    for iterations in range(len(after)):
        wait_outwards(after[iterations], period)
    wait_inwards(after, period)


@compiled
def wait_outwards(steps: IntArray, period: int) -> None:
    """Let f start earlier and b later, a step at a time."""
    for b in range(period):
        for c in range(period):
            for a in range(1, 2 * period):
                here, before = a % period, (a - 1) % period
                steps[here, b, c] = min(steps[here, b, c], steps[before, b, c] + 1)
    for a in range(period):
        for b in range(period):
            for turn in range(1, 2 * period):
                x, y, z = (a + turn) % period, (b + turn) % period, turn % period
                earlier = steps[(x - 1) % period, (y - 1) % period, (z - 1) % period]
                steps[x, y, z] = min(steps[x, y, z], earlier + 1)


@compiled
def wait_inwards(steps: IntArray, period: int) -> None:
    """Let g start later and h earlier, a step at a time; each brings them closer."""
    for apart in range(len(steps) * period - 1, 0, -1):
        iterations, phase = apart // period, apart % period
        new_iterations, new_phase = (apart - 1) // period, (apart - 1) % period
        for b in range(period):
            c = (b + phase) % period
            later = (b + 1) % period
            earlier = (b + new_phase) % period
            for a in range(period):
                lived = steps[iterations, a, b, c]
                if lived < steps[new_iterations, a, later, c]:
                    steps[new_iterations, a, later, c] = lived
                if lived < steps[new_iterations, a, b, earlier]:
                    steps[new_iterations, a, b, earlier] = lived


@compiled
def keep_fitting(
    steps: IntArray,
    period: int,
    spans: IntArray,
    falling_units: int,
    rising_units: int,
    limit: int,
    least_apart: int,
) -> bool:
    """Rule out states in which blocks overlap or the limit is passed; return whether one is left."""
    is_any = False
    slots = np.zeros(4, dtype=np.int64)
    for a in range(period):
        for b in range(period):
            for c in range(period):
                slots[1], slots[2], slots[3] = a, b, c
                fits = not overlap(slots, spans, period)
                for iterations in range(len(steps)):
                    lived = steps[iterations, a, b, c]
                    if lived >= _NEVER:
                        continue
                    apart = iterations * period + (c - b) % period
                    at_f = falling_units * (1 + (lived - 1) // period) + rising_units * alive(
                        -b, apart, period
                    )
                    at_g = falling_units * alive(b, lived, period) + rising_units * (
                        1 + (apart - 1) // period
                    )
                    if fits and apart >= least_apart and max(at_f, at_g) <= limit:
                        is_any = True
                    else:
                        steps[iterations, a, b, c] = _NEVER
    return is_any


@compiled
def alive(since: int, lived: int, period: int) -> int:
    """Return how many micro-batches are alive `since` steps after a birth, if each lifetimes `lived`
    steps."""
    return since // period - (since - lived) // period


@compiled
def overlap(slots: IntArray, spans: IntArray, period: int) -> bool:
    """Return whether any two blocks run at once."""
    for i in range(len(slots)):
        for j in range(len(slots)):
            if i != j and (slots[j] - slots[i]) % period < spans[i]:
                return True
    return False
