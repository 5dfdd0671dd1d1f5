"""The best plan over jobs that differ in how training state is held, and over places of a tower.

Each has a share of the budget. Checked in tests/tessel/planning/costs/test_sharding.py and
tests/tessel/planning/test_towers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tessel.errors import InfeasibleError, ScheduleError
from tessel.planning.explanation import explain
from tessel.planning.find_bubbles import find_bubbles
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import TowerName
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import Baseline, PlanProgress, PlanResult
from tessel.profiles.profile import Profile, StageCosts
from tessel.search.budget import SearchBudget


def find_sharded(
    profile: Profile,
    jobs: Sequence[Job],
    *,
    towers: Sequence[TowerName] = ("first",),
    options: PlanOptions,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the fastest plan of any of the jobs, with a bound that holds for all of them.

    Other arguments are those of `find_plan`; all jobs share the budget.

    Args:
        jobs: one or several, which differ in sharding and offload alone.
        towers: where the tower of the model may run; where in bubbles alone, it is compared with `first`.

    Raises:
        InfeasibleError: nothing fits in any job; says what the last one needs.
        ScheduleError: no degrees use the devices for this batch, or a tower cannot run so in any job; says
            what to change.
    """
    is_compared = "first" in towers or "bubbles" not in towers
    wanted: list[TowerName] = [*towers] if is_compared else [*towers, "first"]
    problems = [(job, tower) for tower in wanted for job in jobs]
    if len(problems) == 1:
        (job,), (tower,) = jobs, wanted
        options = replace(options, tower=tower)
        return find_plan(profile, job, options=options, budget=budget, seed=seed, on_progress=on_progress)
    found: dict[TowerName, list[PlanResult]] = {}
    refused: ScheduleError | None = None
    unsearched_us = _all_work_us(profile, jobs[0])

    def answer() -> PlanResult | None:
        now = None if part.answer is None else part.answer()
        begun = {tower: [*found.get(tower, ()), now]} if isinstance(now, PlanResult) else {}
        return _best(found | begun, towers, unsearched_us)

    for number, (job, tower) in enumerate(problems):
        if tower not in towers and not found:
            break
        part = budget.timed_part(1 / (len(problems) - number))
        budget.answer = answer
        find = find_bubbles if tower == "bubbles" else find_plan
        # Steps that are only compared with are no progress.
        tell = on_progress if tower in towers else None
        by_hand = options.by_hand if tower == "first" else None
        try:
            own = replace(options, tower=tower, by_hand=by_hand)
            result = find(profile, job, options=own, budget=part, seed=seed, on_progress=tell)
        except ScheduleError as error:
            # Some jobs and places of the tower may not go together; where none do, it is said why.
            if tower in towers and (refused is None or isinstance(error, InfeasibleError)):
                refused = error
        else:
            found.setdefault(tower, []).append(result)
    best = _best(found, towers, math.inf)
    if best is None:
        assert refused is not None, "there are jobs"
        raise refused
    return best


def _all_work_us(profile: Profile, job: Job) -> float:
    """Return the least step of any plan: all layers' work for all samples, at its best, shared evenly."""
    tables = [(each.costs, each.micro_batch, each.degrees) for each in profile.tables]
    rates = [
        [_least_us(cost) * degrees.tensor_parallel * degrees.context_parallel / size for cost in costs]
        for costs, size, degrees in tables
    ]
    least = [min(layer) for layer in zip(*rates, strict=True)]
    for shards in profile.shards:
        for layer, cost in ((0, shards.first), (-1, shards.last)):
            least[layer] = min(least[layer], _least_us(cost) * shards.shards / shards.micro_batch)
    speed = max(map(job.cluster.speed_of, range(job.cluster.devices)))
    every: float = sum(least) * job.global_batch * (job.overlap_factor or 1.0)
    return every / (job.cluster.devices * speed)


def _least_us(cost: StageCosts) -> float:
    """Return a layer's forward and its faster backward."""
    halves = (cost.backward_input_us or 0.0) + (cost.backward_weight_us or 0.0)
    joint = cost.joint_backward_us or 0.0
    return cost.forward_us + (min(joint, halves) if cost.is_splittable else joint)


def _best(
    found: Mapping[TowerName, Sequence[PlanResult]], towers: Sequence[TowerName], unsearched_us: float
) -> PlanResult | None:
    """Return the fastest of those that fit, else the nearest, with the least of all bounds; None of none.

    Beside it stand the best of other places of the tower; where it runs in bubbles, with the baselines of
    what runs it first.

    Args:
        found: by the tower's place, the plans of jobs.
        towers: the places that were asked for.
        unsearched_us: a step that what is not searched yet does not beat.
    """
    own = [each for tower in towers for each in found.get(tower, ())]
    if not own:
        return None
    best = min(own, key=_rank)
    lower_bound_us = min(unsearched_us, *(each.lower_bound_us for each in own))
    baselines = best.baselines
    if len(found) > 1:
        by_tower = {tower: min(each, key=_rank) for tower, each in found.items()}
        baselines = baselines or by_tower["first"].baselines if "first" in by_tower else baselines
        others = (each for each in by_tower.items() if each[1] is not best)
        baselines = (*(_row(tower, each) for tower, each in others), *baselines)
    proof, *rest = explain(best.best, lower_bound_us, best.alternatives, baselines)
    return replace(
        best,
        lower_bound_us=lower_bound_us,
        baselines=baselines,
        explanation=(proof, *(rest if len(found) > 1 else best.explanation[1:])),
        search_seconds=sum(each.search_seconds for group in found.values() for each in group),
    )


def _rank(result: PlanResult) -> tuple[bool, float]:
    return not result.best.estimate.fits, result.best.estimate.step_us


def _row(tower: TowerName, result: PlanResult) -> Baseline:
    """Return the best plan with the tower in another place as a row to compare with."""
    fits = result.best.estimate.fits
    return Baseline(
        name=f"tower {tower}",
        planned=replace(result.best, schedule=None),
        fits=fits,
        reason="" if fits else "it exceeds the memory of a device",
    )
