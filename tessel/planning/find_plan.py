"""Find the fastest way to run a training step on many devices, and say how fast any could be.

    families (degrees × micro-batch size × placement) → a bound for each, nothing cut yet
        → first cuts, timed in the orders of hand-written rules, families in order of their bounds
        → baselines, and moves of single cuts → search of the order for the most promising
        → moves of cuts judged by searched orders → all cuts, where there are few: a proof
        → why, the next best, and what planning again finds with more memory or faster links

A family whose bound is above the best step so far is never cut, and no order is searched before everything
was timed in orders of rules, which takes a fraction of a millisecond a cut. All steps come from one estimate
(`tessel.planning.costs.training_step`), baselines' too, and every baseline is a candidate, so the plan is
never slower than one. Phases take shares of one budget and charge what they do: the same call gives the same
plan. The bound holds for every layout that the options allow; of unequal devices, for the orders of them that
are tried. Checked in tests/tessel/planning/test_find_plan.py against all layouts, cuts and orders of tiny
models.

Source: the search over degrees and cuts after PipeDream (SOSP 2019), DAPPLE (PPoPP 2021), Piper (NeurIPS
2021) and Alpa (OSDI 2022); here the order is searched too, and nothing is assumed about the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessel.errors import InfeasibleError, ScheduleError
from tessel.planning.candidates.baselines import rules_on_stages, with_rules_on_stages
from tessel.planning.candidates.problem import Problem
from tessel.planning.candidates.robustness import chosen_by, spread_of_step
from tessel.planning.costs.stage_spreads import stage_spreads
from tessel.planning.explanation import changes_of, counts_of, explain, plan_changed, restrictions
from tessel.planning.job import Job
from tessel.planning.nothing_fits import nearest_to_fitting, why_nothing_fits
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlannedStep, PlanProgress, PlanResult, StepSpread
from tessel.planning.plan_search import PlanSearch, stopped_by
from tessel.profiles.profile import Profile
from tessel.search.budget import LONGEST_S, SearchBudget

DEFAULT_PLAN_WORK = 30.0
"""Units of work of a plan unless told otherwise."""


MAX_MICRO_BATCHES = 2**17
"""Micro-batches of a step, over all replicas, of the largest that the profile has; so many take 20 s."""

ALTERNATIVES = 5
"""Steps of other families that a plan lists."""


def find_plan(
    profile: Profile,
    job: Job,
    *,
    options: PlanOptions | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the fastest training step found on all devices of a cluster.

    An interrupt (Ctrl-C, or `budget.interrupt`) ends the search and returns the best step so far. With a
    limit on work, the default, equal calls give equal plans.

    Args:
        profile: layers and their costs.
        job: what is asked for: devices and links, the batch, the optimizer and the framework.
        options: what may be chosen from; everything if left out.
        budget: what may be spent; `DEFAULT_PLAN_WORK` units of work if left out.
        on_progress: told of each better step.

    Raises:
        InfeasibleError: nothing fits the devices' memory; says what needs how much.
        KeyboardInterrupt: interrupted before there was any step.
        ScheduleError: no degrees use the devices for this batch; says what to change.
    """
    global_batch = job.global_batch
    if global_batch < 1:
        raise ScheduleError(f"a global batch of {global_batch} is no batch; give at least 1")
    largest = max(profile.micro_batches)
    if global_batch > MAX_MICRO_BATCHES * largest:
        raise ScheduleError(
            f"a global batch of {global_batch} is over {MAX_MICRO_BATCHES} micro-batches of {largest}; plan "
            "fewer: beyond that, a step is as long as its micro-batches"
        )
    if not any(cost.forward_us or cost.joint_backward_us for table in profile.tables for cost in table.costs):
        raise ScheduleError("no layer takes any time; give forwards and backwards their times")
    options = options or PlanOptions()
    budget = budget or SearchBudget(work_limit=DEFAULT_PLAN_WORK, time_limit_s=LONGEST_S)
    problem = Problem(profile, job, options)
    search = PlanSearch.of(problem, budget, seed=seed, on_progress=on_progress)
    budget.answer = lambda: None if search.pool.best is None else _result(search, with_changes=False)
    search.run_until_interrupted()
    return _result(search)


def _result(search: PlanSearch, *, with_changes: bool = True) -> PlanResult:
    """Return the plan of a search; planning again for the explanation takes what is left of the budget."""
    pool = search.pool
    best = pool.best
    if best is None:
        if pool.problem.options.may_exceed_memory:
            return nearest_to_fitting(search)
        raise InfeasibleError(why_nothing_fits(search))
    if with_changes and pool.problem.options.what_if:
        problem = pool.problem
        sizes = problem.profile.micro_batches
        search.changed = plan_changed(best.layout, problem.job, problem.options, sizes, search.plan_again)
        assert pool.best is not None  # there was one already
        best = pool.best
    bounds = pool.problem.bounds
    own, baselines = best.planned(with_schedule=True), search.baselines
    on_stages: tuple[PlannedStep, ...] = ()
    if with_changes and pool.problem.options.baselines:
        on_stages = rules_on_stages(own)
        baselines = with_rules_on_stages(baselines, on_stages)
        own = min((own, *on_stages), key=lambda each: each.estimate.step_us)
    others = sorted(
        (each for each in tuple(pool.by_family.values()) if each.order and each.family != best.family),
        key=lambda candidate: (candidate.step_us, repr(candidate.family)),
    )
    alternatives = tuple(candidate.planned().of_layers(bounds) for candidate in others[:ALTERNATIVES])
    spreads: tuple[StepSpread, ...] = ()
    if with_changes and pool.problem.varies:
        finalists = [own, *(each.planned(with_schedule=True) for each in others[:ALTERNATIVES])]
        finalists += [each for each in on_stages if each.order != own.order]
        own, spreads = _by_spread(finalists, pool.problem, search.seed)
        if own is not finalists[0]:
            rest = (replace(each, schedule=None) for each in finalists if each is not own)
            alternatives = tuple(each.of_layers(bounds) for each in rest)[:ALTERNATIVES]
    planned = own.of_layers(bounds)
    baselines = tuple(row.of_layers(bounds) for row in baselines)
    lower_bound_us = min(search.families.lower_bound_us(), planned.estimate.step_us)
    if with_changes:
        search.budget.is_proven = planned.estimate.step_us <= lower_bound_us * (1 + 1e-9)
    return PlanResult(
        job=pool.problem.job,
        best=planned,
        lower_bound_us=lower_bound_us,
        alternatives=alternatives,
        baselines=baselines,
        explanation=(
            *explain(planned, lower_bound_us, alternatives, baselines),
            *restrictions(search.families),
        ),
        changes=changes_of(planned, search.changed),
        counts=counts_of(search.families),
        stopped_by=stopped_by(search.budget),
        search_seconds=search.budget.elapsed_s,
        spreads=spreads,
    )


def _by_spread(
    finalists: Sequence[PlannedStep], problem: Problem, seed: int
) -> tuple[PlannedStep, tuple[StepSpread, ...]]:
    """Return the finalist that is chosen where durations vary, and the distribution of each one's step."""
    robust = problem.options.robust
    laws = [
        problem.options.spread
        or stage_spreads(problem.class_profiles, each.of_layers(problem.bounds).layout, problem.job)
        for each in finalists
    ]
    found = [
        spread_of_step(each, law, percentile=50.0 if robust is None else robust, seed=seed)
        for each, law in zip(finalists, laws, strict=True)
    ]
    best = chosen_by(finalists, found, percentile=robust)
    found[best] = replace(found[best], is_chosen=True)
    return finalists[best], tuple(found)
