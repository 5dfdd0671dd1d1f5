"""Sentences and changes: true of the plan they explain, and never worse where a problem is easier."""

from __future__ import annotations

import numpy as np

from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.search import SearchBudget
from tests.samples.plan_samples import MIB, random_profile, small_cluster


def test_easier_problems_never_cost_more() -> None:
    profile = random_profile(np.random.default_rng(4), 8, micro_batches=(1, 2))
    cluster = small_cluster(4, memory_bytes=190 * MIB, device_speed=(1.0, 1.0, 0.5, 1.0))
    found = find_plan(
        profile,
        Job(cluster=cluster, global_batch=8),
        options=PlanOptions(max_chunks=2, pipeline=2),
        budget=SearchBudget(work_limit=1.5),
    )
    by_name = {change.change: change for change in found.changes}
    assert {"25% more memory", "unlimited memory", "hops 2 times as fast"} <= set(by_name)
    assert "collectives 2 times as fast" in by_name
    assert by_name["all devices as fast as the fastest"].saves_us > 0
    best_us = found.best.estimate.step_us
    for change in found.changes:
        assert change.saves_us == best_us - change.step_us
        if "micro-batches" not in change.change:
            assert change.saves_us >= -1e-6 * best_us
    saved = [change.saves_us for change in found.changes]
    assert saved == sorted(saved, reverse=True)


def test_sentences_hold_the_figures_of_the_plan() -> None:
    profile = random_profile(np.random.default_rng(5), 8)
    options = PlanOptions(what_if=False)
    found = find_plan(
        profile,
        Job(cluster=small_cluster(4), global_batch=8),
        options=options,
        budget=SearchBudget(work_limit=0.3),
    )
    text = " ".join(found.explanation)
    assert f"{found.best.estimate.step_us / 1e3:.1f} ms" in text
    assert "The busiest device (" in text
    assert "memory is not limited" in text
    assert found.alternatives[0].name in text
    strongest = min(
        (row for row in found.baselines if row.planned is not None),
        key=lambda row: row.planned.estimate.step_us,  # type: ignore[union-attr]
    )
    assert f"The strongest baseline is {strongest.name}" in text
