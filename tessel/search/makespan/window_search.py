"""Large neighbourhood search over windows of the device orders: destroy, construct anew, keep what helps.

    │F0 F1 F2 b0 ...│ window by other urgencies │... b7│   the rest keeps its order, and moves up

Tabu search changes one place of one device at a time and stays where every such change is for the worse; a
window of some hundred tasks on all devices is another neighbourhood. A window ends anywhere and is any length
up to half of the schedule, short ones as often as long ones; its urgencies are, at random, the longest path
to the end in a steady rhythm or in the present orders, the present starts, or the mean of the last two, with
some noise and with blocks that nothing waits for moved up or down. What is as short as before is kept, too.

The end of a schedule is built anew first, from many places on: where the last micro-batches drain, nothing
new must be held back for, so that the longest path first is a good rule, and hand-written rules are not at
their best. That is one list schedule of a small part each. Checked in
tests/tessel/search/makespan/test_window_search.py.

Source: Shaw, "Using constraint programming and local search methods to solve vehicle routing problems"
(1998), for large neighbourhoods; Ruiz and Stützle (2007), for greedy construction in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.search.jit.compiled import compiled, compiled_leaf
from tessel.search.jit.random_generator import below, next_state
from tessel.search.makespan.device_orders import orders_of
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.makespan.window_rebuild import INFEASIBLE, Timed, rebuild, timed_of
from tessel.search.model.instance import InstanceArrays, IntArray

FOUND_BY = "window search"

ROUND_VISITS = 1_500_000
"""Tasks visited between two checks of the budget: a few hundredths of a second."""

OPERATIONS_A_VISIT = 20
"""Charged for each task visited."""

MIN_WINDOW = 8
"""Tasks of the shortest windows."""

RHYTHMS = 4
"""Distances between micro-batches tried: multiples of 1 / (RHYTHMS - 1) of the busiest device's work."""

END_CUTS = 32
"""Places from which the end is built anew: spread over twice the latency of a micro-batch. On a V of 64
devices the best one saves a percent, and those a tenth away from it most of that."""

ROUNDS_TO_SLOW_DOWN, MAX_WAIT = 8, 4
"""Rounds in a row without a gain after which one more turn is passed over each time, and most turns passed
over: a chain of 8 devices gained nothing from 90 000 windows, where tabu search still did."""

ACCEPTED_A_REFRESH = 16
"""Equally good schedules accepted before the longest paths to the end are computed again."""


@dataclass(slots=True)
class WindowSearch:
    """The search near the best schedule, a round at a time.

    Attributes:
        best: the incumbent, where it begins and what it improves.
        state: state of the random generator.
        current: the schedule that it stands at; None before the first round.
        rounds_without_gain: rounds since the last one that found something shorter.
        passed: turns passed over since the last round.
    """

    best: Incumbent
    state: int
    current: Timed | None = None
    makespan: int = 0
    rounds_without_gain: int = 0
    passed: int = 0

    def rebuild_ends(self) -> None:
        """Offer the best schedule so far with its end built anew, from many places on, until none helps."""
        best = self.best
        if Phase.WINDOWS in best.params.left_out:
            return
        arrays = best.instance.arrays
        latency = int((arrays.head + arrays.tail).max())
        while not best.is_over:
            before = best.makespan
            current = self._at(best.best.start)
            trial = Timed(*(row.copy() for row in current))
            starts = current.start[current.sequence]
            for cut in range(END_CUTS):
                step = best.makespan - 2 * latency * (cut + 1) // END_CUTS
                begin = int(np.searchsorted(starts, max(0, step)))
                if best.is_over:
                    return
                if begin == len(starts):
                    continue
                priority = -arrays.tail[current.sequence[begin:] % arrays.num_blocks]
                makespan = rebuild(arrays, current, begin, len(starts), priority, True, trial)
                best.budget.charge(
                    (len(starts) + (len(starts) - begin) * arrays.num_devices) * OPERATIONS_A_VISIT
                )
                if INFEASIBLE < makespan < best.makespan:
                    best.offer(trial.start, FOUND_BY)
                if step <= 0:
                    break
            if best.makespan == before:
                return

    def search_round(self) -> None:
        """Go on from the best schedule, and offer what is shorter; less often where little is gained."""
        best = self.best
        if Phase.WINDOWS in best.params.left_out or best.is_over:
            return
        if self.passed < min(self.rounds_without_gain // ROUNDS_TO_SLOW_DOWN, MAX_WAIT):
            self.passed += 1
            return
        self.passed = 0
        if self.current is None or best.makespan < self.makespan:
            self.current, self.makespan = self._at(best.best.start), best.makespan
        makespan, self.state, num_visited = search_windows(
            best.instance.arrays,
            self.current,
            self.makespan,
            max(1, int(best.instance.least_work().max())),
            ROUND_VISITS,
            best.lower_bound,
            self.state,
        )
        best.budget.charge(num_visited * OPERATIONS_A_VISIT)
        self.makespan = makespan
        self.rounds_without_gain += 1
        if makespan < best.makespan:
            self.rounds_without_gain = 0
            best.offer(self.current.start, FOUND_BY)

    def _at(self, start: IntArray) -> Timed:
        arrays = self.best.instance.arrays
        return timed_of(arrays, orders_of(arrays, start).sequence)


@compiled
def search_windows(
    arrays: InstanceArrays,
    current: Timed,
    makespan: int,
    stride: int,
    max_visited: int,
    target: int,
    state: int,
) -> tuple[int, int, int]:
    """Build windows anew, one after the other, and keep what is no longer than before.

    Args:
        current: the schedule; changed.
        makespan: of that schedule.
        stride: steps between micro-batches of a steady rhythm, >= 1.
        max_visited: tasks visited before it ends.
        target: it ends at a makespan that is not above it.
        state: state of the random generator.

    Returns:
        The makespan, the state, and the tasks visited.
    """
    num_tasks = len(current.sequence)
    tail = np.zeros(len(current.rank), dtype=np.int64)
    trial = Timed(current.sequence.copy(), current.rank.copy(), current.start.copy())
    longest_paths(arrays, current, tail)
    num_visited, accepted = num_tasks, 0
    num_sizes = 1
    while MIN_WINDOW << num_sizes < num_tasks:
        num_sizes += 1
    while num_visited < max_visited and makespan > target:
        state = next_state(state)
        size = MIN_WINDOW << below(state, num_sizes)
        state = next_state(state)
        size = min(size + below(state, size), num_tasks)
        state = next_state(state)
        middle = below(state, num_tasks)
        begin, end = max(0, middle - size // 2), min(num_tasks, middle + size // 2)
        if end - begin < 2:
            begin, end = max(0, num_tasks - 2), num_tasks
        priority = np.empty(end - begin, dtype=np.int64)
        state = urgencies(arrays, current, begin, tail, stride, priority, state)
        state = next_state(state)
        found = rebuild(arrays, current, begin, end, priority, below(state, 2) == 0, trial)
        num_visited += num_tasks + (end - begin) * arrays.num_devices
        if found == INFEASIBLE or found > makespan:
            continue
        accepted += 1
        by_start = np.argsort(trial.start[trial.sequence], kind="mergesort")
        current.sequence[:] = trial.sequence[by_start]
        current.start[:] = trial.start
        for place in range(num_tasks):
            current.rank[current.sequence[place]] = place
        num_visited += num_tasks
        if found < makespan or accepted % ACCEPTED_A_REFRESH == 0:
            longest_paths(arrays, current, tail)
        makespan = found
    return int(makespan), int(state), int(num_visited)


@compiled_leaf
def urgencies(
    arrays: InstanceArrays,
    current: Timed,
    begin: int,
    tail: IntArray,
    stride: int,
    priority: IntArray,
    state: int,
) -> int:
    """Write random priorities for the tasks of a window; return the state."""
    num_blocks = arrays.num_blocks
    state = next_state(state)
    kind = below(state, 4)
    state = next_state(state)
    rhythm = below(state, RHYTHMS)
    state = next_state(state)
    # none, a tenth, a third, or the whole of the rhythm
    noise = (0, stride // 10, stride // 3, stride)[below(state, 4)]
    state = next_state(state)
    # for blocks that nothing waits for: as they are, most often
    shift = (0, 0, 0, 0, 0, 0, -stride, -stride // 3, stride // 3, stride)[below(state, 10)]
    for place in range(len(priority)):
        task = current.sequence[begin + place]
        block, micro_batch = task % num_blocks, task // num_blocks
        if kind == 0:
            urgency = micro_batch * stride * rhythm // (RHYTHMS - 1) - arrays.tail[block]
        elif kind == 1:
            urgency = -tail[task]
        elif kind == 2:
            urgency = current.start[task]
        else:
            urgency = current.start[task] - tail[task]
        if arrays.after_start[block] == arrays.after_start[block + 1]:
            urgency += shift
        if noise > 0:
            state = next_state(state)
            urgency += below(state, 2 * noise + 1) - noise
        priority[place] = urgency
    return state


@compiled
def longest_paths(arrays: InstanceArrays, current: Timed, tail: IntArray) -> None:
    """Write, for each task, the longest path from its start to the end in these orders."""
    num_blocks = arrays.num_blocks
    behind = np.zeros(arrays.num_devices, dtype=np.int64)
    for back in range(len(current.sequence)):
        task = current.sequence[len(current.sequence) - 1 - back]
        block, first = task % num_blocks, task // num_blocks * num_blocks
        longest = np.int64(0)
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            longest = max(longest, behind[arrays.device[at]])
        longest += arrays.span[block]
        for at in range(arrays.after_start[block], arrays.after_start[block + 1]):
            target = first + arrays.after[at]
            if current.rank[target] >= 0:
                longest = max(longest, arrays.after_delay[at] + tail[target])
        tail[task] = longest
        for at in range(arrays.device_start[block], arrays.device_start[block + 1]):
            behind[arrays.device[at]] = longest
