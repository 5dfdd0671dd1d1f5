"""The best plan over several jobs that differ in how training state is held, each with a share of the budget.

Checked in tests/tessel/planning/costs/test_sharding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessel.errors import InfeasibleError
from tessel.planning.explanation import explain
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanProgress, PlanResult
from tessel.profiles.profile import Profile
from tessel.search.budget import SearchBudget


def find_sharded(
    profile: Profile,
    jobs: Sequence[Job],
    *,
    options: PlanOptions,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the fastest plan of any of the jobs, with a bound that holds for all of them.

    Args:
        profile: layers and their costs.
        jobs: one or several, which differ in sharding and offload alone.
        options: see `find_plan`; the same holds for
        budget: all jobs share it,
        seed: and
        on_progress: told of each better step of any job.

    Raises:
        InfeasibleError: nothing fits in any job; says what the last one needs.
        ScheduleError: no degrees use the devices for this batch; says what to change.
    """
    if len(jobs) == 1:
        return find_plan(profile, jobs[0], options=options, budget=budget, seed=seed, on_progress=on_progress)
    found: list[PlanResult] = []
    refused: InfeasibleError | None = None
    budget.answer = lambda: _best(found) if found else None
    for number, job in enumerate(jobs):
        part = budget.part(1 / (len(jobs) - number))
        try:
            found.append(
                find_plan(profile, job, options=options, budget=part, seed=seed, on_progress=on_progress)
            )
        except InfeasibleError as error:
            refused = error
    if not found:
        assert refused is not None, "there are jobs"
        raise refused
    return _best(found)


def _best(found: Sequence[PlanResult]) -> PlanResult:
    """Return the fastest of those that fit, else the nearest, with the least of all bounds."""
    best = min(found, key=lambda each: (not each.best.estimate.fits, each.best.estimate.step_us))
    lower_bound_us = min(each.lower_bound_us for each in found)
    proof, *_ = explain(best.best, lower_bound_us, best.alternatives, best.baselines)
    return replace(
        best,
        lower_bound_us=lower_bound_us,
        explanation=(proof, *best.explanation[1:]),
        search_seconds=sum(each.search_seconds for each in found),
    )
