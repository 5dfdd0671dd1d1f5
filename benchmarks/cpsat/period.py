"""The least period by CP-SAT: phases and iteration distances, raised from the same lower bound.

It knows what this project's search knows before it begins (the bound on the period) and nothing else. Order
literals carry the disjunctions; distances are integers. A rival to run beside
`benchmarks.schedule_search.period`, and the kind of model that one would write first.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ortools.sat.python import cp_model

from tessel.placement import Placement
from tessel.search.model.problem import UNLIMITED, Problem, make_problem
from tessel.search.repetend.period_bounds import device_bounds


@dataclass(frozen=True, slots=True)
class CpSatPeriod:
    """What CP-SAT found.

    Attributes:
        period: least period, proven; None where the time was over first.
        lower_bound: no period is shorter.
        seconds: processor time of the process.
    """

    period: int | None
    lower_bound: int
    seconds: float


def solve_period(placement: Placement, *, memory: int, time_limit_s: float) -> CpSatPeriod:
    """Return the least period with one copy of each block, tried one by one from the bound."""
    started, busy_since = time.perf_counter(), time.process_time()
    problem = make_problem(placement, memory=memory)
    period = max(1, math.ceil(max(device_bounds(problem))))
    while True:
        left = time_limit_s - (time.perf_counter() - started)
        status = _solve(problem, period, max(left, 0.001))
        seconds = time.process_time() - busy_since
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return CpSatPeriod(period, period, seconds)
        if status != cp_model.INFEASIBLE or time.perf_counter() - started >= time_limit_s:
            return CpSatPeriod(None, period, seconds)
        period += 1


def _solve(problem: Problem, period: int, time_limit_s: float) -> int:
    model = cp_model.CpModel()
    blocks = range(problem.num_blocks)
    longest = int(problem.spans.max() + problem.lags.max(initial=0))
    max_distance = problem.num_blocks * (1 + -(-longest // period))
    phase = [model.new_int_var(0, period - 1, "") for _ in blocks]
    distance = [model.new_int_var(0, max_distance, "") for _ in blocks]
    before: dict[tuple[int, int], cp_model.LiteralT] = {}
    for here in problem.blocks_by_device:
        for u in here:
            for v in here:
                if u < v and (u, v) not in before:
                    literal = model.new_bool_var("")
                    before[u, v], before[v, u] = literal, ~literal
                    for a, b in ((u, v), (v, u)):
                        order = before[a, b]
                        model.add(phase[b] >= phase[a] + int(problem.spans[a])).only_enforce_if(order)
                        model.add(phase[a] + period >= phase[b] + int(problem.spans[b])).only_enforce_if(
                            order
                        )
    for source in blocks:
        for target, steps in problem.successors[source]:
            model.add(
                phase[target] + period * distance[target] >= phase[source] + period * distance[source] + steps
            )
    _limit_memory(model, problem, before, distance)
    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C kills this process ever after
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    return int(solver.solve(model))


def _limit_memory(
    model: cp_model.CpModel,
    problem: Problem,
    before: dict[tuple[int, int], cp_model.LiteralT],
    distance: list[cp_model.IntVar],
) -> None:
    for device, here in enumerate(problem.blocks_by_device):
        held = [block for block in here if problem.memory[block]]
        if problem.limits[device] >= UNLIMITED:
            continue
        for u in held:
            if problem.memory[u] > 0:
                level = sum(
                    int(problem.memory[v]) * ((1 if v == u else before[v, u]) - distance[v]) for v in held
                )
                model.add(level <= int(problem.limits[device]))
