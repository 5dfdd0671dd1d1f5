"""Bounds of families against every cut of small models in orders of rules and in searched ones."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tessel.planning.candidates.bound_terms import family_shares
from tessel.planning.candidates.bounds import FamilyBound, FamilyBounds
from tessel.planning.candidates.candidate import has_headroom
from tessel.planning.candidates.families import Family, families
from tessel.planning.candidates.own_degrees import stems
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.problem import Problem
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.cutting.cut import every_cut
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.runtime import OVERLAPPED, Runtime
from tessel.planning.sharding import SHARDINGS
from tessel.profiles.profile import Branches
from tessel.search import SearchBudget
from tests.samples.plan_samples import MIB, branched, random_profile, small_cluster, with_experts

LINK, SLOW = Link(bytes_per_s=1e9, latency_us=1.0), Link(bytes_per_s=1e6, latency_us=5.0)

BLOCKING = Runtime(name="blocking", has_blocking_hops=True, hop_overhead_us=15.0)


def cluster_of(seed: int, devices: int) -> Cluster:
    """Return equal or unequal devices, with or without limits and nodes."""
    limit = None if seed % 3 == 0 else (70 + 15 * (seed % 4)) * MIB
    if seed % 4 == 1:
        return small_cluster(
            devices, memory_bytes=limit, device_speed=tuple(1.0 - 0.2 * d for d in range(devices))
        )
    if seed % 4 == 2:
        fast = Link(bytes_per_s=5e10, latency_us=2.0)
        return small_cluster(devices, memory_bytes=limit, devices_per_node=2, intra_node=fast)
    return small_cluster(devices, memory_bytes=limit)


EXPERTS = ((1, 2), (2, 1), (2, 2))
"""Degrees of context and expert parallelism beside none."""


HOSTED = {20: "optimizer", 26: "optimizer+activations"}
"""Offload of seeds with a link to the hosts, where it is not of activations alone."""


LONG = (12, 13, 14, 21, 29, 30, 31, 35)
"""Seeds that take seconds each, of cases that others are like."""


@pytest.mark.parametrize(
    "seed",
    [
        *(seed for seed in (*range(16), 20, 21, 22, 23, 24, 26, 29, 30, 31, 35) if seed not in LONG),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in LONG),
    ],
)
def test_no_cut_and_order_beats_the_bound_of_its_family(seed: int) -> None:
    rng = np.random.default_rng(seed)
    profile = random_profile(
        rng,
        4,
        is_split=seed % 2 == 0,
        is_tied=seed % 5 == 0,
        has_update=seed % 3 > 0,
        tensor=(2, 4) if seed % 4 == 3 else (2,) if seed % 4 == 0 and seed < 20 else (),
    )
    if 20 <= seed < 30:
        profile = with_experts(profile, EXPERTS)
    profile = branched(profile, Branches(2, 3) if seed % 8 == 3 else Branches(1, 3))
    # Of three devices the middle one has both copies of a pipeline in opposite directions.
    cluster = cluster_of(seed, 3 if 12 <= seed < 20 else 4 if seed % 2 or seed >= 22 else 2)
    host = Link(bytes_per_s=1e10 if seed == 20 else 2e9) if seed % 3 == 2 and seed >= 20 else None
    cluster = msgspec.structs.replace(cluster, host=host)
    options = PlanOptions()
    job = Job(
        cluster=cluster,
        global_batch=4,
        optimizer=OPTIMIZERS["adam" if seed % 2 else "sgd"],
        runtime=BLOCKING if seed % 6 == 5 else OVERLAPPED,
        sharding=SHARDINGS[seed % 4 if seed >= 12 else seed // 2 % 4],
        offload="none" if host is None else HOSTED.get(seed, "activations"),
        overlap_factor=None if seed < 30 else (0.5, 0.55, 0.6, 0.7, 0.9)[seed % 5],
    )
    problem = Problem(profile, job, options)
    pool = Pool(problem, SearchBudget(work_limit=None, time_limit_s=None))
    bounds = FamilyBounds(job, options)
    num_compared = 0
    every = [*families(profile, cluster, global_batch=4, options=options)]
    if seed % 4 == 3 and job.runtime is OVERLAPPED:
        own = PlanOptions(tensor_parallel="own")
        for stem in stems(profile, cluster, global_batch=4, options=own):
            every += stem.families
        assert any(family.stage_tensor_parallel for family in every)
    for family in every:
        sums, prices = problem.sums(family), problem.prices(family)
        by_cuts = bounds.by_cuts(family, sums, problem.stage_prices(family))
        bound = max(bounds.quick(family, sums, prices).step_us, by_cuts.step_us)
        for cut in every_cut(family.sections(len(profile.layers)), may_recompute=True):
            candidate = pool.price(family, cut)
            if not has_headroom(candidate.figures):
                continue
            if candidate.order == "":
                candidate = pool.search(candidate, pool.budget.part(1e-3), seed=0)
            elif seed >= 30:
                candidate = pool.search(candidate, pool.budget.part_of_work(0.003), seed=0)
            assert candidate.lower_bound_us <= candidate.step_us * (1 + 1e-9)
            assert bound <= candidate.step_us * (1 + 1e-9), (family, cut, candidate.order)
            num_compared += candidate.order != ""
    assert num_compared or cluster.memory_bytes is not None


def test_the_bound_by_cuts_knows_a_heavy_layer_and_memory() -> None:
    profile = random_profile(np.random.default_rng(20), 8)
    options = PlanOptions(pipeline=4, placements=("vshape",))
    free, tight = small_cluster(4), small_cluster(4, memory_bytes=150 * MIB)
    found = []
    for cluster in (free, tight):
        job = Job(cluster=cluster, global_batch=16)
        problem = Problem(profile, job, options)
        (family,) = families(profile, cluster, global_batch=16, options=options)
        bounds = FamilyBounds(job, options)
        found.append(bounds.by_cuts(family, problem.sums(family), problem.stage_prices(family)).step_us)
        assert found[-1] >= bounds.quick(family, problem.sums(family), problem.prices(family)).step_us * 0.9
    assert found[1] >= found[0]


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize(("update_us", "link"), [(1e9, LINK), (0.0, SLOW)], ids=["update", "exchange"])
def test_copies_share_a_long_update_and_a_long_exchange(
    devices: int, sharding: str, update_us: float, link: Link
) -> None:
    """With little else to do, a step in opposite directions is its update or its exchange."""
    profile = random_profile(np.random.default_rng(3), devices, has_update=True)
    (table,) = profile.tables
    costs = tuple(msgspec.structs.replace(cost, update_us=update_us) for cost in table.costs)
    profile = msgspec.structs.replace(profile, tables=(msgspec.structs.replace(table, costs=costs),))
    cluster = Cluster(devices=devices, hop=LINK, collective=link)
    job = Job(cluster=cluster, global_batch=2, optimizer=OPTIMIZERS["adam"], sharding=sharding)
    options = PlanOptions(pipeline=devices, placements=("xshape",))
    pool = Pool(Problem(profile, job, options), SearchBudget(work_limit=None, time_limit_s=None))
    found = list(families(profile, cluster, global_batch=2, options=options))
    for family in found:
        sums = pool.problem.sums(family)
        bound = FamilyBounds(job, options).of_every_cut(family, sums)
        for cut in every_cut(family.sections(devices), may_recompute=False):
            candidate = pool.search(pool.price(family, cut), pool.budget.part(1e-3), seed=0)
            assert bound <= candidate.step_us < np.inf
    assert found


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_what_experts_hold_fits_as_a_whole_and_layer_by_layer(sharding: str) -> None:
    """On one stage a plan fits into exactly what it holds; nothing fits into less than its weights."""
    profile = with_experts(random_profile(np.random.default_rng(7), 4, is_tied=True), EXPERTS)
    options = PlanOptions(pipeline=1, recompute=False)

    def bound_of(family: Family, memory_bytes: int | None) -> tuple[FamilyBound, Problem]:
        cluster = small_cluster(4, memory_bytes=memory_bytes)
        job = Job(cluster=cluster, global_batch=4, optimizer=OPTIMIZERS["adam-mixed"], sharding=sharding)
        problem = Problem(profile, job, options)
        bounds = FamilyBounds(job, options)
        return bounds.quick(family, problem.sums(family), problem.prices(family)), problem

    found = list(families(profile, small_cluster(4), global_batch=4, options=options))
    assert {family.expert_parallel for family in found} == {1, 2}
    for family in found:
        _, problem = bound_of(family, None)
        figures = problem.figures(family, family.any_layout(4))
        (held,) = figures.static_bytes
        prices = problem.prices(family)
        assert prices.static[0, 4] == pytest.approx(held, abs=1)
        needed = held + int(prices.saved[0, 4])
        assert bound_of(family, needed)[0].reason == ""
        gathered = family_shares(family, problem.sums(family), problem.job)
        least = held - int(problem.sums(family).peak.max())
        if not gathered.gathered and not gathered.gradient:
            assert "weights, gradients and optimizer state need" in bound_of(family, least - 2)[0].reason
