"""Close small problems with CP-SAT, where the extra `cpsat` is installed.

The whole schedule as a constraint model: an interval for each task, optional where there are choices, no
overlap on a device, precedences, and a reservoir for each limit. It asks for a schedule shorter than the best
one; that there is none is a proof. Micro-batches are alike, so without choices each block runs them in order,
and with choices, where another order may matter, one block does. Work is counted in CP-SAT's deterministic
time, one thread, in rounds of doubled length that take half of the work; `found_by` says what CP-SAT found or
proved.

What it finds does not change what the rest of the search looks at next. Checked in
tests/tessel/search/makespan/test_constraint_model.py against exhaustive search.

Source: Perron and Furnon, OR-Tools, for the solver.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget, stopped_clock
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.params import Phase
from tessel.search.model.instance import Instance, IntArray
from tessel.search.model.problem import UNLIMITED

MAX_TASKS = 150
"""Tasks that are run, with the longest options, up to which the model is tried: few larger ones close."""

FIRST_WORK = 0.25
"""Units of work of the first round."""

AHEAD_WORK = 0.5
"""Units of work done elsewhere before the first round: the search proves most small problems in less."""

OPERATIONS_A_ROUND = 20_000_000
"""Charged for the model of a round."""

POLL_S = 0.05
"""Seconds between two looks at whether a round is to end."""


@dataclass(slots=True)
class ConstraintSearch:
    """Rounds of CP-SAT, each twice as long as the one before.

    Attributes:
        best: the incumbent that is to be improved or proven optimal.
        work: units of work of the next round.
        is_done: whether there is no next round.
    """

    best: Incumbent
    seed: int
    work: float
    used: int
    is_done: bool

    @classmethod
    def of(cls, best: Incumbent, *, seed: int) -> ConstraintSearch:
        """Return a search that has not begun; it is over where it cannot begin."""
        is_possible = (
            Phase.CP_SAT not in best.params.left_out
            and _num_tasks_run(best.instance) <= MAX_TASKS
            and _is_installed()
        )
        return cls(best, seed & 0x7FFFFFFF, FIRST_WORK, 0, not is_possible)

    def run(self) -> None:
        """Run a round when as much work has been done elsewhere."""
        best = self.best
        elsewhere = best.budget.operations - self.used
        least = max(self.work, AHEAD_WORK)
        if self.is_done or best.is_over or elsewhere < self.used + least * OPERATIONS_A_UNIT:
            return
        before = best.budget.operations
        with stopped_clock():  # loading the solver counts as little as loading machine code
            model = _Model(best.instance, best.makespan, best.lower_bound)
        found = model.solve(self.work, self.seed, best.budget)
        self.work *= 2
        best.budget.charge(found.operations)
        self.used += best.budget.operations - before
        if found.start is not None:
            best.offer(found.start, "CP-SAT")
        if found.lower_bound > best.lower_bound:
            best.lower_bound = min(found.lower_bound, best.makespan)
            best.proof = ", bound proven by CP-SAT"


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a round found.

    Attributes:
        start: by task, -1 where it is not run; None where nothing shorter was found.
        lower_bound: no schedule is shorter.
        operations: to charge for it.
    """

    start: IntArray | None
    lower_bound: int
    operations: int


class _Model:
    """The problem as CP-SAT takes it: a schedule shorter than a known one."""

    def __init__(self, instance: Instance, known: int, lower_bound: int) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415 (an extra, asked for by name)

        # OR-Tools ships types that mypy is told to skip: its objects stop at this class.
        self._solver_module: Any = cp_model
        self._model: Any = cp_model.CpModel()
        self._instance = instance
        self._known = known
        self._last = known - 1
        arrays = instance.arrays
        self._present = [
            [self._model.new_bool_var("") for _ in range(count)]
            for count in instance.precedence.num_options.tolist()
            for _ in range(arrays.micro_batches)
        ]
        for row in self._present:
            self._model.add_exactly_one(row)
        self._starts = [self._start_variable(task) for task in range(instance.num_tasks)]
        self._makespan = self._model.new_int_var(lower_bound, self._last, "")
        self._add_tasks()
        self._add_precedences()
        self._add_order()
        self._model.minimize(self._makespan)

    def solve(self, work: float, seed: int, budget: SearchBudget) -> _Found:
        """Search for so many units of work."""
        solver: Any = self._solver_module.CpSolver()
        parameters = solver.parameters
        parameters.catch_sigint_signal = False  # else Ctrl-C kills this process ever after
        parameters.num_workers = 1
        parameters.random_seed = seed
        parameters.max_deterministic_time = work
        with _stopped_with(solver, budget):
            status = solver.solve(self._model)
        used = OPERATIONS_A_ROUND + round(solver.response_proto.deterministic_time * OPERATIONS_A_UNIT)
        if status == self._solver_module.INFEASIBLE:
            return _Found(None, self._known, used)
        if status not in (self._solver_module.OPTIMAL, self._solver_module.FEASIBLE):
            return _Found(None, 0, used)
        start = np.array([solver.value(each) for each in self._starts], dtype=np.int64)
        for task in range(len(start)):
            is_run = self._is_run(task)
            if is_run is not None and not solver.value(is_run):
                start[task] = -1
        return _Found(start, int(solver.best_objective_bound), used)

    def _start_variable(self, task: int) -> Any:
        arrays = self._instance.arrays
        block = task % arrays.num_blocks
        return self._model.new_int_var(
            0 if arrays.choice[block] >= 0 else int(arrays.head[block]),
            max(0, self._last - int(arrays.span[block])),
            "",
        )

    def _is_run(self, task: int) -> Any:
        """The variable that says whether a task runs, None where it always does."""
        arrays = self._instance.arrays
        block, micro_batch = task % arrays.num_blocks, task // arrays.num_blocks
        choice = int(arrays.choice[block])
        if choice < 0:
            return None
        return self._present[choice * arrays.micro_batches + micro_batch][int(arrays.option[block])]

    def _add_tasks(self) -> None:
        """Devices run one task at a time, keep their limits, and the last end is the makespan."""
        arrays, model = self._instance.arrays, self._model
        intervals: list[list[Any]] = [[] for _ in range(arrays.num_devices)]
        changes: list[list[tuple[Any, int, Any]]] = [[] for _ in range(arrays.num_devices)]
        for task, start in enumerate(self._starts):
            block, is_run = task % arrays.num_blocks, self._is_run(task)
            span = int(arrays.span[block])
            ends = model.add(start + span <= self._makespan)
            if is_run is None:
                interval = model.new_fixed_size_interval_var(start, span, "")
            else:
                interval = model.new_optional_fixed_size_interval_var(start, span, is_run, "")
                ends.only_enforce_if(is_run)
            for place in range(arrays.device_start[block], arrays.device_start[block + 1]):
                device = int(arrays.device[place])
                intervals[device].append(interval)
                if arrays.memory[block]:
                    changes[device].append(
                        (start, int(arrays.memory[block]), 1 if is_run is None else is_run)
                    )
        for device in range(arrays.num_devices):
            model.add_no_overlap(intervals[device])
            if arrays.limit[device] < UNLIMITED and changes[device]:
                times, amounts, actives = zip(*changes[device], strict=True)
                least = -sum(abs(amount) for amount in amounts)
                limit = int(arrays.limit[device])
                model.add_reservoir_constraint_with_active(times, amounts, actives, least, limit)

    def _add_precedences(self) -> None:
        arrays = self._instance.arrays
        for target in range(self._instance.num_tasks):
            block, first = target % arrays.num_blocks, target - target % arrays.num_blocks
            for place in range(arrays.before_start[block], arrays.before_start[block + 1]):
                source = first + int(arrays.before[place])
                delay = int(arrays.before_delay[place])
                rule = self._model.add(self._starts[target] >= self._starts[source] + delay)
                needed = [each for each in (self._is_run(source), self._is_run(target)) if each is not None]
                if needed:
                    rule.only_enforce_if(needed)

    def _add_order(self) -> None:
        """Micro-batches are alike: of those that all blocks run, each in order, or with choices one block."""
        arrays = self._instance.arrays
        fixed = [block for block in range(arrays.num_blocks) if arrays.choice[block] < 0]
        for block in fixed if len(fixed) == arrays.num_blocks else fixed[:1]:
            for task in range(block + arrays.num_blocks, self._instance.num_tasks, arrays.num_blocks):
                self._model.add(self._starts[task - arrays.num_blocks] <= self._starts[task])


@contextmanager
def _stopped_with(solver: Any, budget: SearchBudget) -> Iterator[None]:
    """Stop a running solver when the time is over or the search is interrupted."""
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(POLL_S):
            if budget.is_interrupted or budget.seconds_left <= 0:
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()


def _num_tasks_run(instance: Instance) -> int:
    """Return the tasks that are run at most."""
    choices = instance.placement.choices
    in_choices = sum(len(names) for choice in choices for names in choice.options)
    longest = sum(max(map(len, choice.options)) for choice in choices)
    return instance.micro_batches * (instance.num_blocks - in_choices + longest)


def _is_installed() -> bool:
    """Say whether the extra `cpsat` is there."""
    try:
        return importlib.util.find_spec("ortools") is not None
    except ImportError:  # an installation that names it but cannot find it
        return False
