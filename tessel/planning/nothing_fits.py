"""Answer where no layout fits the devices, and the layout that is nearest to fitting.

Checked in tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tessel.errors import InfeasibleError
from tessel.planning.candidates.candidate import Candidate
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.sweep import initial_cuts
from tessel.planning.explanation import counts_of
from tessel.planning.plan_result import PlanResult
from tessel.planning.plan_search import PlanSearch, stopped_by
from tessel.search.budget import LONGEST_S, SearchBudget

NEAREST_WORK = 3.0
"""Units of work that the search for a step nearest to fitting charges; it is not cut short."""


def nearest_to_fitting(search: PlanSearch) -> PlanResult:
    """Return the plan without limits whose fullest device holds least of what it may, in an order of a rule.

    Raises:
        InfeasibleError: no rule applies to any layout.
    """
    known = search.pool.problem
    limits = known.cluster
    free = msgspec.structs.replace(limits, memory_bytes=None, device_memory_bytes=())
    budget = SearchBudget(work_limit=NEAREST_WORK, time_limit_s=LONGEST_S)
    problem = known.changed(replace(known.job, cluster=free), known.options)
    pool = Pool(problem, budget)
    nearest: tuple[float, Candidate] | None = None
    for family in search.families.chosen:
        for recompute in (False, True) if known.may_recompute else (False,):
            for cut in initial_cuts(pool, family):
                flags = (recompute,) * family.num_stages
                candidate = pool.price(family, replace(cut, recompute=flags))
                if candidate.estimate is None:
                    continue
                allowed = known.figures(family, candidate.layout).memory_bytes or ()
                excess = max(
                    held / limit for held, limit in zip(candidate.estimate.memory_bytes, allowed, strict=True)
                )
                if nearest is None or excess < nearest[0]:
                    nearest = excess, candidate
    if nearest is None:
        raise InfeasibleError(why_nothing_fits(search))
    _, candidate = nearest
    assert candidate.estimate is not None  # only such candidates were kept
    limited = replace(
        candidate,
        figures=known.figures(candidate.family, candidate.layout),
        estimate=msgspec.structs.replace(candidate.estimate, fits=False),
    )
    search.pool.best = limited
    search.pool.by_family = {}
    planned = limited.planned(with_schedule=True).of_layers(known.bounds)
    return PlanResult(
        job=search.pool.problem.job,
        best=planned,
        lower_bound_us=limited.lower_bound_us,
        alternatives=(),
        baselines=tuple(row.of_layers(known.bounds) for row in search.baselines),
        explanation=(f"{why_nothing_fits(search)[:1].upper()}{why_nothing_fits(search)[1:]}.",),
        changes=(),
        counts=counts_of(search.families),
        stopped_by=stopped_by(search.budget),
        search_seconds=search.budget.elapsed_s,
    )


def why_nothing_fits(search: PlanSearch) -> str:
    """Return the message of a search that found no step: what does not fit, and what to change."""
    reasons = [bound.reason for bound in search.families.bounds.values() if bound.reason]
    if len(reasons) == len(search.families.bounds):
        return (
            f"nothing fits the devices in any of {len(reasons)} ways to use them (for example: "
            f"{reasons[-1]}); use more devices, more memory, recomputation or a smaller micro-batch"
        )
    return (
        "no layout that keeps the memory of every device was found; use more devices, more memory, "
        "recomputation or a smaller micro-batch, or allow a longer search"
    )
