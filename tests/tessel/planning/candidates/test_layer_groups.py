"""Long models: groups of layers cost what their layers do, and bounds hold for every cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from plan_samples import MIB, random_profile, small_cluster

from tessel.planning.candidates import layer_groups
from tessel.planning.costs.stage_costs import TableKey, layer_sums
from tessel.planning.costs.training_step import build_step
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.search import SearchBudget


def test_groups_have_the_sums_of_their_layers_and_tied_layers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_groups, "MAX_CUT_LAYERS", 8)
    profile = random_profile(np.random.default_rng(0), 30, is_tied=True)
    by_hand = Layout(data_parallel=1, pipeline=2, micro_batch=1, micro_batches=2, cuts=((0, 16), (17, 29)))
    bounds = layer_groups.group_bounds(profile, by_hand)
    assert bounds[:2] == (0, 1)
    assert bounds[-2:] == (29, 30)
    assert 17 in bounds
    assert len(bounds) <= 8 + 6
    whole = layer_sums(profile, TableKey(1))
    grouped = layer_groups.grouped_sums(whole, bounds)
    at = np.array(bounds)
    assert grouped.num_layers == len(bounds) - 1
    for name in ("forward", "backward", "weights", "trained", "saved", "kept"):
        assert (getattr(grouped, name) == getattr(whole, name)[at]).all()
    for group, (first, after) in enumerate(pairwise(bounds)):
        assert grouped.peak[group] == whole.peak[first:after].max()
        assert grouped.boundary[group] == whole.boundary[after - 1]
    assert [tensor.layers for tensor in grouped.tied] == [(0, len(bounds) - 2)]


@pytest.mark.parametrize("memory", [pytest.param(None, marks=pytest.mark.slow), 500])
def test_a_grouped_plan_counts_layers_and_its_bound_holds_for_all_cuts(
    monkeypatch: pytest.MonkeyPatch, memory: int | None
) -> None:
    profile = random_profile(np.random.default_rng(3), 18)
    cluster = small_cluster(3, memory_bytes=None if memory is None else memory * MIB)
    options = PlanOptions(placements=("vshape", "interleaved"), what_if=False, max_chunks=2)

    def plan() -> object:
        budget = SearchBudget(work_limit=0.5, time_limit_s=None)
        return find_plan(profile, Job(cluster=cluster, global_batch=6), options=options, budget=budget)

    whole = plan()
    monkeypatch.setattr(layer_groups, "MAX_CUT_LAYERS", 7)
    grouped = plan()
    assert grouped.lower_bound_us <= whole.best.estimate.step_us * (1 + 1e-9)
    for planned in (grouped.best, *(row.planned for row in grouped.baselines if row.planned is not None)):
        assert planned.layout.cuts[-1][1] == 17
        step = build_step(profile, planned.layout, Job(cluster=cluster))
        assert step.figures.static_bytes == planned.step.figures.static_bytes
        assert step.placement == planned.step.placement
    assert any("of the 18 layers" in sentence for sentence in grouped.explanation)
