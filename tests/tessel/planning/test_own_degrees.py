"""Stages with tensor-parallel degrees of their own: against all cuts, degrees and orders of small models."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import tessel
from tessel.errors import ScheduleError, UsageError
from tessel.planning.cluster import Cluster, Link
from tessel.planning.costs.degree_sums import Side, reshard_us
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.plan_samples import (
    MIB,
    QUIET,
    every_layout,
    placed_by_hand,
    random_profile,
    small_cluster,
)


def plan(profile: Profile, cluster: Cluster, *, samples: int, **options: Any) -> PlanResult:
    asked: dict[str, Any] = {"what_if": False, "baselines": False, "placements": ("vshape",), **options}
    return find_plan(
        profile,
        Job(cluster=cluster, global_batch=samples, optimizer=QUIET),
        options=PlanOptions(**asked),
        budget=SearchBudget(work_limit=2.0),
    )


def least_step_us(profile: Profile, cluster: Cluster, *, samples: int) -> float | None:
    """Return the shortest step over all degrees, cuts, recomputation and orders of chains, by CP-SAT."""
    found = []
    tensor = tuple(each.tensor_parallel for each in profile.tables if each.tensor_parallel > 1)
    for layout in every_layout(
        len(profile.layers),
        cluster.devices,
        samples=samples,
        recompute=cluster.memory_bytes is not None,
        tensor=tensor,
        has_own=True,
    ):
        if layout.placement != "vshape":
            continue
        blocks, rooms, step_us = placed_by_hand(profile, layout, cluster, QUIET)
        if rooms is not None and min(rooms) < 0:
            continue
        makespan = least_makespan_by_cpsat(blocks, layout.micro_batches, rooms)
        if makespan is not None:
            found.append(makespan * step_us)
    return min(found, default=None)


@pytest.mark.parametrize(
    ("seed", "layers", "devices", "tensor", "memory"),
    [
        (0, 3, 3, (2,), None),
        (1, 3, 3, (2,), 40),
        *(
            pytest.param(seed, *case, marks=pytest.mark.slow)
            for seed in range(2, 5)
            for case in (
                (3, 4, (2, 3), None),
                (4, 3, (2,), 50),
                (4, 5, (2,), None),
                (4, 6, (2, 3), 30),
                (4, 8, (2, 4), None),
            )
        ),
    ],
)
def test_own_degrees_equal_exhaustive_search(
    seed: int, layers: int, devices: int, tensor: tuple[int, ...], memory: int | None
) -> None:
    profile = random_profile(np.random.default_rng(seed), layers, has_update=False, tensor=tensor)
    cluster = small_cluster(devices, memory_bytes=None if memory is None else memory * MIB)
    truth = least_step_us(profile, cluster, samples=2)
    assert truth is not None
    found = plan(profile, cluster, samples=2, tensor_parallel="own")
    assert found.best.estimate.step_us == pytest.approx(truth, rel=1e-9)
    assert found.optimal
