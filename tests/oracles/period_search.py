"""What the searches of one period must agree on: branching on device orders is the reference."""

from __future__ import annotations

from typing import Protocol

from hypothesis import assume

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.model.problem import IntArray, Problem, make_problem
from tessel.search.repetend.branch_and_bound import Feasibility, OrderSearch
from tessel.search.repetend.cyclic_problem import CyclicProblem, make_cyclic_problem
from tessel.search.repetend.cyclic_starts import close_up
from tessel.search.repetend.infeasibility import limit_violation
from tessel.search.repetend.period_bounds import device_bounds
from tessel.validation import find_violations

ENOUGH_WORK = 10**9
_MICRO_BATCHES = 6


class PeriodSearch(Protocol):
    """Search of one period, as far as it is compared."""

    starts: IntArray | None
    is_stuck: bool

    def run(self, max_work: int) -> Feasibility: ...


def problem_and_period(placement: Placement, memory: int, more: int) -> tuple[Problem, CyclicProblem, int]:
    """Return a problem that its limits leave room for, and a period so much above its bound."""
    problem = make_problem(placement, memory=memory)
    assume(limit_violation(problem) is None)
    return problem, make_cyclic_problem(problem, 1), int(-(-max(device_bounds(problem)) // 1)) + more


def check_against_orders(
    search: PeriodSearch, placement: Placement, problem: Problem, cyclic: CyclicProblem, period: int
) -> None:
    """Require the same answer as branching on orders, and a valid schedule where there is one."""
    while (answer := search.run(ENOUGH_WORK)) is Feasibility.UNKNOWN:
        assert not search.is_stuck
    assert answer is OrderSearch(cyclic, period).run(ENOUGH_WORK)
    if search.starts is None:
        return
    starts = close_up(cyclic, search.starts, period)
    schedule = Schedule.of(
        placement,
        {
            (block, m): int(starts[0, block]) + m * period
            for block in range(problem.num_blocks)
            for m in range(_MICRO_BATCHES)
        },
        micro_batches=_MICRO_BATCHES,
        memory=problem.limits_or_none,
    )
    assert find_violations(schedule) == ()
