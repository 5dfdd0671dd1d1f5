"""Baselines: each as strong as all cuts allow, and listed with a reason where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.planning.candidates.families import families
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.problem import Problem
from tessel.planning.costs.stage_costs import cuts_at
from tessel.planning.cutting.cut import every_cut
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.search import SearchBudget
from tests.samples.plan_samples import MIB, random_profile, small_cluster


def plan(problem: Problem) -> PlanResult:
    return find_plan(
        problem.profile,
        problem.job,
        options=problem.options,
        budget=SearchBudget(work_limit=0.5),
    )


@pytest.mark.parametrize("memory", [None, 230])
def test_1f1b_has_its_best_cut_and_degrees(memory: int | None) -> None:
    profile = random_profile(np.random.default_rng(1), 7)
    cluster = small_cluster(4, memory_bytes=None if memory is None else memory * MIB)
    options = PlanOptions(placements=("vshape",), what_if=False)
    problem = Problem(profile, Job(cluster=cluster, global_batch=8), options)
    pool = Pool(problem, SearchBudget(work_limit=None, time_limit_s=None))
    best = min(
        pool.price(family, cut, ("1f1b",)).step_us
        for family in families(profile, cluster, global_batch=8, options=options)
        if family.pipeline > 1
        for cut in every_cut(family.sections(7), may_recompute=memory is not None)
    )
    rows = {row.name: row for row in plan(problem).baselines}
    planned = rows["1f1b"].planned
    assert planned is not None
    assert planned.order == "1f1b"
    # Moves of single cuts end where none is better: nearly always the best of all cuts.
    assert best * (1 - 1e-12) <= planned.estimate.step_us <= best * 1.03


def test_rows_say_why_there_is_nothing() -> None:
    profile = random_profile(np.random.default_rng(2), 6)
    options = PlanOptions(what_if=False, data_parallel=1, max_chunks=2)
    rows = {
        row.name: row
        for row in plan(Problem(profile, Job(cluster=small_cluster(2), global_batch=3), options)).baselines
    }
    assert rows["zb-h1"].reason == "the profile does not have the halves of backwards"
    assert "leave no degrees" in rows["data-parallel"].reason
    assert "no multiple" in rows["interleaved-2"].reason
    planned = rows["torch-auto"].planned
    assert planned is not None
    tight = small_cluster(2, memory_bytes=int(max(planned.estimate.memory_bytes) * 0.95))
    rows = {
        row.name: row for row in plan(Problem(profile, Job(cluster=tight, global_batch=3), options)).baselines
    }
    assert all(row.fits == (row.planned is not None) for row in rows.values())
    assert not rows["torch-auto"].fits
    assert "memory" in rows["torch-auto"].reason


def test_a_layout_by_hand_is_a_row_and_a_candidate() -> None:
    profile = random_profile(np.random.default_rng(3), 6)
    free = plan(
        Problem(
            profile,
            Job(cluster=small_cluster(2), global_batch=4),
            PlanOptions(what_if=False, baselines=False),
        )
    )
    by_hand = free.best.layout
    worse = PlanOptions(what_if=False, by_hand=by_hand)
    found = plan(Problem(profile, Job(cluster=small_cluster(2), global_batch=4), worse))
    (row,) = (row for row in found.baselines if row.name == "by-hand")
    assert row.planned is not None
    assert row.planned.layout == by_hand
    assert found.best.estimate.step_us <= row.planned.estimate.step_us
    moved = PlanOptions(
        what_if=False,
        by_hand=type(by_hand)(
            data_parallel=1, pipeline=2, micro_batch=1, micro_batches=4, cuts=cuts_at([0, 1, 6])
        ),
    )
    other = plan(Problem(profile, Job(cluster=small_cluster(2), global_batch=4), moved))
    assert other.baselines[-1].planned is not None
    assert other.baselines[-1].planned.estimate.step_us >= other.best.estimate.step_us
