"""The plan against all layouts, cuts and orders of tiny models, its baselines, and an independent check."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec import structs

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.planning import plan_search
from tessel.planning.candidates import pool
from tessel.planning.candidates.candidate import Candidate
from tessel.planning.candidates.pool import Pool
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanProgress, PlanResult
from tessel.profiles.profile import Branches, CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget
from tessel.search.budget import OPERATIONS_A_UNIT
from tessel.validation import check_schedule
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.plan_samples import (
    MIB,
    QUIET,
    branched,
    every_layout,
    placed_by_hand,
    random_profile,
    small_cluster,
)

ASKED = ("optimizer", "runtime", "sharding", "offload")
"""What is a part of the job, not of what may be chosen."""


def least_step_us(
    profile: Profile, cluster: Cluster, *, samples: int, placement: str = "", offloads: bool = False
) -> float | None:
    """Return the shortest step over all layouts with joint backwards, each order by CP-SAT.

    Of one placement alone, where there is one given.
    """
    found = []
    is_limited = cluster.memory_bytes is not None
    layouts = every_layout(
        len(profile.layers),
        cluster.devices,
        samples=samples,
        recompute=is_limited,
        divides=bool(profile.shards),
        tensor=tuple(each.tensor_parallel for each in profile.tables if each.tensor_parallel > 1),
        branches=profile.branches,
    )
    for layout in layouts:
        if placement not in ("", layout.placement):
            continue
        blocks, rooms, step_us = placed_by_hand(profile, layout, cluster, QUIET, offloads)
        if rooms is not None and min(rooms) < 0:
            continue
        micro_batches = layout.micro_batches // (2 if layout.placement == "xshape" else 1)
        makespan = least_makespan_by_cpsat(blocks, micro_batches, rooms)
        if makespan is not None:
            found.append(makespan * step_us)
    return min(found, default=None)


def plan(
    profile: Profile, cluster: Cluster, *, samples: int, work: float = 2.0, **options: object
) -> PlanResult:
    asked: dict[str, Any] = {name: options.pop(name) for name in ASKED if name in options}
    return find_plan(
        profile,
        Job(cluster=cluster, global_batch=samples, **asked),
        options=PlanOptions(**{"what_if": False, **options}),
        budget=SearchBudget(work_limit=work),
    )


@pytest.mark.parametrize(
    ("seed", "layers", "devices", "memory", "divided"),
    [
        (0, 3, 2, None, {}),
        (1, 3, 2, 70, {}),
        (2, 4, 2, None, {}),
        (3, 3, 3, None, {}),
        (4, 3, 2, 60, {}),
        (16, 4, 2, None, {"shards": (2,)}),
        pytest.param(17, 4, 2, 60, {"shards": (2,)}, marks=pytest.mark.slow),
        # Replicas of pairs, pairs in a pipeline, all four devices for each layer, an m shape, and all else.
        (18, 4, 4, None, {"shards": (2,), "tensor": (2, 4)}),
        (19, 3, 4, 40, {"tensor": (2,)}),
        (20, 4, 2, 50, {"shards": (2,), "tensor": (2,)}),
        # Two branches side by side, of one layer or two, in replicas, and pairs that hold a branch each.
        (21, 3, 2, None, {"tensor": (2,), "branches": (1, 2)}),
        (22, 4, 2, 50, {"tensor": (2,), "branches": (1, 3)}),
        (23, 4, 3, None, {"tensor": (3,), "branches": (2, 3)}),
        (24, 4, 4, None, {"tensor": (2, 4), "branches": (1, 2)}),
    ],
)
def test_plan_equals_exhaustive_search(
    seed: int, layers: int, devices: int, memory: int | None, divided: dict[str, tuple[int, ...]]
) -> None:
    shards, tensor = divided.get("shards", ()), divided.get("tensor", ())
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, layers, has_update=False, shards=shards, tensor=tensor)
    if "branches" in divided:
        profile = branched(profile, Branches(*divided["branches"]))
    samples = 3 if devices == 3 else 2
    cluster = small_cluster(devices, memory_bytes=None if memory is None else memory * MIB)
    truth = least_step_us(profile, cluster, samples=samples)
    if truth is None:
        with pytest.raises(InfeasibleError):
            plan(profile, cluster, samples=samples, optimizer=QUIET)
        return
    found = plan(profile, cluster, samples=samples, optimizer=QUIET, baselines=False)
    assert found.best.estimate.step_us == pytest.approx(truth, rel=1e-9)
    assert found.lower_bound_us <= truth * (1 + 1e-9)
    assert found.optimal


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@pytest.mark.parametrize(
    ("layers", "devices", "memory", "tensor", "branches"),
    [
        (5, 2, None, (2,), Branches(2, 4)),
        (5, 2, 70, (2,), Branches(1, 3)),
        (4, 3, None, (3,), Branches(2, 3)),
        (5, 4, 60, (2, 4), Branches(1, 4)),
    ],
)
def test_branches_side_by_side_equal_exhaustive_search(
    seed: int, layers: int, devices: int, memory: int | None, tensor: tuple[int, ...], branches: Branches
) -> None:
    """Which devices a branch has, its cuts, what recomputes and the order of all blocks."""
    rng = np.random.default_rng(30 + seed)
    profile = branched(random_profile(rng, layers, has_update=False, tensor=tensor), branches)
    samples = 3 if devices == 3 else 2
    cluster = small_cluster(devices, memory_bytes=None if memory is None else memory * MIB)
    truth = least_step_us(profile, cluster, samples=samples, placement="kshape")
    options = {"optimizer": QUIET, "baselines": False, "placements": ("kshape",)}
    if truth is None:
        with pytest.raises(InfeasibleError):
            plan(profile, cluster, samples=samples, **options)
        return
    found = plan(profile, cluster, samples=samples, **options)
    assert found.best.layout.placement == "kshape"
    assert found.best.estimate.step_us == pytest.approx(truth, rel=1e-9)
    assert found.optimal


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), is_split=st.booleans(), is_divided=st.booleans())
def test_more_memory_never_makes_a_step_longer(seed: int, is_split: bool, is_divided: bool) -> None:
    shards = (2,) if is_divided else ()
    profile = random_profile(np.random.default_rng(seed), 4, is_split=is_split, shards=shards)
    steps_us: list[float] = []
    for memory in (60, 90, 150, None):
        cluster = small_cluster(2, memory_bytes=None if memory is None else memory * MIB)
        try:
            found = plan(profile, cluster, samples=4, baselines=False)
        except InfeasibleError:
            assert not steps_us
            continue
        steps_us.append(found.best.estimate.step_us)
    assert steps_us == sorted(steps_us, reverse=True)


def check_plan(found: PlanResult) -> None:
    """Hold a plan against the independent validation, its limits and its baselines."""
    best = found.best
    assert best.schedule is not None
    check_schedule(best.schedule)
    step_us, step = best.estimate.step_us, best.step
    assert found.lower_bound_us <= step_us * (1 + 1e-12)
    assert best.lower_bound_us <= step_us * (1 + 1e-12)
    assert best.schedule.makespan * step.step_us <= step_us * (1 + 1e-12)
    if step.limits is not None:
        assert all(peak <= room for peak, room in zip(best.schedule.peak_memory, step.limits, strict=True))
    assert best.estimate.fits
    for row in found.baselines:
        assert row.planned is None or row.planned.estimate.fits
        assert row.planned is None or step_us <= row.planned.estimate.step_us * (1 + 1e-12)
    for other in found.alternatives:
        assert step_us <= other.estimate.step_us * (1 + 1e-12)


@pytest.mark.parametrize(
    ("split", "memory", "options"),
    [
        (True, None, {}),
        (False, 200, {}),
        pytest.param(True, 200, {"placements": ("vshape", "zbv")}, marks=pytest.mark.slow),
    ],
)
def test_plan_is_valid_and_never_slower_than_a_baseline(
    split: bool, memory: int | None, options: dict[str, object]
) -> None:
    profile = random_profile(np.random.default_rng(5), 9, is_split=split, is_tied=True)
    cluster = small_cluster(4, memory_bytes=None if memory is None else memory * MIB)
    found = plan(profile, cluster, samples=8, work=1.0, max_chunks=2, **options)
    check_plan(found)
    names = {row.name for row in found.baselines}
    assert {"data-parallel", "gpipe", "1f1b", "zb-h1", "zb-v", "chimera", "torch-auto"} <= names


def test_divided_ends_win_where_the_head_is_heavy_and_nothing_is_replicated() -> None:
    profile = random_profile(np.random.default_rng(18), 8, is_split=True, is_tied=True, shards=(4,))
    (table,) = profile.tables
    head = table.costs[-1]
    heavy = structs.replace(
        head,
        **{name: 12 * getattr(head, name) for name in ("forward_us", "backward_us")},
        backward_input_us=12 * (head.backward_input_us or 0.0),
        backward_weight_us=12 * (head.backward_weight_us or 0.0),
    )
    (divided,) = profile.shards
    last = structs.replace(
        divided.last,
        **{name: getattr(heavy, name) / 4 for name in ("forward_us", "backward_us")},
        backward_input_us=(heavy.backward_input_us or 0.0) / 4,
        backward_weight_us=(heavy.backward_weight_us or 0.0) / 4,
    )
    profile = structs.replace(
        profile,
        tables=(structs.replace(table, costs=(*table.costs[:-1], heavy)),),
        shards=(structs.replace(divided, last=last),),
    )
    found = plan(profile, small_cluster(4), samples=8, work=1.0, max_chunks=2, pipeline=4)
    check_plan(found)
    assert found.best.layout.placement == "mshape"
    step = {row.name: row.planned.estimate.step_us for row in found.baselines if row.planned is not None}
    assert found.best.estimate.step_us < 0.7 * step["1f1b"]
    # 1F1B stalls where every device waits for all others: the order is what makes the placement pay.
    assert found.best.estimate.step_us < 0.9 * step["mshape-1f1b"]
    without = structs.replace(profile, shards=())
    chain = plan(without, small_cluster(4), samples=8, work=0.5, max_chunks=2, pipeline=4)
    assert chain.best.estimate.step_us > found.best.estimate.step_us


def test_a_heavy_head_stands_alone_and_memory_makes_stages_recompute() -> None:
    profile = random_profile(np.random.default_rng(6), 8)
    free = plan(profile, small_cluster(2), samples=4, work=0.5, placements=("vshape",), pipeline=2)
    assert free.best.layout.recompute == ()
    held = max(free.best.estimate.memory_bytes)
    tight = small_cluster(2, memory_bytes=int(0.8 * held))
    found = plan(profile, tight, samples=4, work=0.5, placements=("vshape",), pipeline=2)
    check_plan(found)
    assert found.best.estimate.step_us >= free.best.estimate.step_us * (1 - 1e-12)
    without = PlanOptions(placements=("vshape",), pipeline=2, recompute=False, what_if=False)
    try:
        other = find_plan(
            profile, Job(cluster=tight, global_batch=4), options=without, budget=SearchBudget(work_limit=0.5)
        )
    except InfeasibleError:
        return
    assert found.best.estimate.step_us <= other.best.estimate.step_us * (1 + 1e-12)


def test_equal_calls_give_equal_plans() -> None:
    profile = random_profile(np.random.default_rng(7), 8, is_split=True)
    cluster = small_cluster(4, memory_bytes=220 * MIB)
    one, two = (plan(profile, cluster, samples=8, work=0.1, max_chunks=2) for _ in range(2))
    assert one.best.layout == two.best.layout
    assert one.best.schedule is not None
    assert two.best.schedule is not None
    assert one.best.schedule.starts == two.best.schedule.starts
    assert one.counts == two.counts
    assert one.lower_bound_us == two.lower_bound_us


@pytest.mark.parametrize("seed", [10, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4))])
def test_more_work_never_makes_a_plan_longer(seed: int) -> None:
    profile = random_profile(np.random.default_rng(seed), 12, is_split=True)
    cluster = small_cluster(4, memory_bytes=133 * MIB)
    works = (0.03, 0.1, 0.3) if seed == 10 else (0.3, 0.5, 0.8, 1.0, 2.0)
    found = [plan(profile, cluster, samples=16, work=work, baselines=False) for work in works]
    steps = [each.best.estimate.step_us for each in found]
    bounds = [each.lower_bound_us for each in found]
    assert sorted(steps, reverse=True) == steps
    assert sorted(bounds) == bounds


def test_rows_to_compare_with_leave_work_for_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_baselines(pool: Pool, *_: object) -> tuple[()]:
        pool.budget.charge(100 * OPERATIONS_A_UNIT)
        return ()

    monkeypatch.setattr(plan_search, "find_baselines", find_baselines)
    profile = random_profile(np.random.default_rng(10), 12, is_split=True)
    found = plan(profile, small_cluster(4, memory_bytes=133 * MIB), samples=16, work=0.3)
    assert found.counts.orders > 0


def test_orders_that_cost_too_much_keep_no_others_from_being_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[Candidate] = []
    search = Pool.search

    def note(pool: Pool, candidate: Candidate, budget: SearchBudget, **given: Any) -> Candidate:
        searched.append(candidate)
        return search(pool, candidate, budget, **given)

    monkeypatch.setattr(Pool, "search", note)
    profile = random_profile(np.random.default_rng(10), 12, is_split=True)
    cluster = small_cluster(4, memory_bytes=133 * MIB)
    plan(profile, cluster, samples=16, work=0.1, baselines=False)
    costly = searched[0].family
    searched.clear()

    def num_tasks(candidate: Candidate) -> int:
        return 10**9 if candidate.family == costly else 1

    monkeypatch.setattr(plan_search, "num_tasks", num_tasks)
    plan(profile, cluster, samples=16, work=0.1, baselines=False)
    assert searched[0].family != costly


def test_a_large_order_is_not_set_up_where_nothing_is_left_to_search_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = random_profile(np.random.default_rng(10), 12, is_split=True)
    asked = {"samples": 16, "baselines": False, "data_parallel": 1, "placements": ("vshape",)}
    monkeypatch.setattr(pool, "OPERATIONS_A_TASK_SEARCHED", 10**9)
    assert plan(profile, small_cluster(4), work=0.2, **asked).counts.orders > 0
    monkeypatch.setattr(pool, "MAX_TASKS", 0)
    assert plan(profile, small_cluster(4), work=0.2, **asked).counts.orders == 0


def test_unequal_devices_get_unequal_stages() -> None:
    profile = random_profile(np.random.default_rng(8), 8)
    cluster = small_cluster(2, device_speed=(1.0, 0.4), device_memory_bytes=(900 * MIB, 600 * MIB))
    found = plan(profile, cluster, samples=6, work=0.5, pipeline=2)
    check_plan(found)
    work = found.best.step.figures.device_work_us()
    assert max(work) <= 1.6 * min(work)  # equal layers would make it 2.5
    limits = found.best.step.figures.memory_bytes
    assert limits is not None
    order = found.best.layout.device_order
    assert limits == tuple(cluster.memory_of(device) for device in order)


def test_fixed_degrees_and_a_chain_of_ones_own_are_kept() -> None:
    profile = random_profile(np.random.default_rng(9), 6)
    chain = (0, 1, 1, 0)
    found = plan(profile, small_cluster(4), samples=8, work=0.3, placements=(chain,), data_parallel=2)
    layout = found.best.layout
    assert (layout.data_parallel, layout.pipeline, layout.placement) == (2, 2, "custom")
    assert layout.stage_devices == chain
    check_plan(found)


def test_micro_batch_sizes_are_chosen_from() -> None:
    profile = random_profile(np.random.default_rng(10), 6, micro_batches=(1, 2, 4))
    found = plan(profile, small_cluster(2), samples=16, work=0.5)
    fixed = [plan(profile, small_cluster(2), samples=16, work=0.5, micro_batch=size) for size in (1, 2, 4)]
    assert found.best.estimate.step_us <= min(each.best.estimate.step_us for each in fixed) * 1.02
    assert found.best.layout.global_batch == 16


def test_inference_has_no_backward() -> None:
    trained = random_profile(np.random.default_rng(11), 6)
    tables = tuple(
        structs.replace(
            table,
            costs=tuple(structs.replace(cost, backward_us=None, update_us=None) for cost in table.costs),
        )
        for table in trained.tables
    )
    profile = structs.replace(trained, tables=tables)
    found = plan(profile, small_cluster(2), samples=8, work=0.5, optimizer=OPTIMIZERS["none"])
    check_plan(found)
    assert not found.best.step.figures.has_backward


def test_nothing_fits_is_said_and_the_nearest_is_given_where_wanted() -> None:
    profile = random_profile(np.random.default_rng(12), 6)
    cluster = small_cluster(2, memory_bytes=MIB)
    with pytest.raises(InfeasibleError, match=r"nothing fits .*; use more devices"):
        plan(profile, cluster, samples=4, work=0.3)
    found = plan(profile, cluster, samples=4, work=0.3, may_exceed_memory=True)
    assert not found.best.estimate.fits
    assert found.best.schedule is not None
    check_schedule(
        type(found.best.schedule).of(
            found.best.schedule.placement,
            found.best.schedule.start_by_block(),
            micro_batches=found.best.schedule.micro_batches,
        )
    )


def test_impossible_batches_are_refused() -> None:
    profile = random_profile(np.random.default_rng(13), 4, micro_batches=(2,))
    with pytest.raises(ScheduleError, match="no degrees use 4 devices for a global batch of 3"):
        plan(profile, small_cluster(4), samples=3)
    with pytest.raises(ScheduleError, match="is no batch"):
        plan(profile, small_cluster(4), samples=0)


def test_a_profile_without_any_time_is_refused() -> None:
    profile = random_profile(np.random.default_rng(13), 4)
    tables = tuple(
        msgspec.structs.replace(
            table, costs=tuple(cost.with_times_scaled(0.0) for cost in table.costs), intervals=()
        )
        for table in profile.tables
    )
    with pytest.raises(ScheduleError, match="no layer takes any time"):
        plan(msgspec.structs.replace(profile, tables=tables), small_cluster(4), samples=4)


def test_an_interrupt_keeps_the_best_step_so_far() -> None:
    profile = random_profile(np.random.default_rng(14), 8)
    budget = SearchBudget(work_limit=50.0)
    told: list[PlanProgress] = []

    def stop(progress: PlanProgress) -> None:
        told.append(progress)
        budget.interrupt()

    found = find_plan(profile, Job(cluster=small_cluster(4), global_batch=8), budget=budget, on_progress=stop)
    assert budget.has_answer
    assert found.stopped_by == "interrupt"
    assert found.best.estimate.step_us <= told[0].step_us
    assert budget.answer is not None
    assert isinstance(budget.answer(), PlanResult)


def test_progress_only_gets_better() -> None:
    profile = random_profile(np.random.default_rng(15), 8)
    told: list[PlanProgress] = []
    found = find_plan(
        profile,
        Job(cluster=small_cluster(4), global_batch=8),
        options=PlanOptions(what_if=False),
        budget=SearchBudget(work_limit=0.5),
        on_progress=told.append,
    )
    steps = [each.step_us for each in told]
    assert all(later < earlier for earlier, later in itertools.pairwise(steps))
    assert found.best.estimate.step_us == steps[-1]


def test_a_layout_by_hand_is_reached_without_being_told() -> None:
    # In the proportions of Kimi-K2: an embedding that only takes memory, equal blocks, a head of two blocks.
    block = StageCosts(
        forward_us=1050, backward_us=2120, weight_bytes=4 * MIB, saved_bytes=8 * MIB, update_us=0.0
    )
    costs = (
        StageCosts(forward_us=0, backward_us=0, weight_bytes=8 * MIB, update_us=0.0),
        *[block] * 29,
        StageCosts(forward_us=2290, backward_us=4620, weight_bytes=8 * MIB, update_us=0.0),
    )
    profile = Profile(
        name="by hand",
        layers=tuple(Layer(f"l{index}") for index in range(len(costs))),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),),
    )
    by_hand = Layout(
        data_parallel=1,
        pipeline=8,
        micro_batch=1,
        micro_batches=16,
        placement="interleaved",
        cuts=(*((first, first + 1) for first in range(0, 30, 2)), (30, 30)),
    )
    fast = small_cluster(8)
    step = build_step(profile, by_hand, Job(cluster=fast, optimizer=QUIET))
    known = estimate_step(step, INTERLEAVED_1F1B.build(step.placement, micro_batches=16))
    steps_us = [
        plan(
            profile,
            structs.replace(fast, memory_bytes=max(known.memory_bytes)),
            samples=16,
            work=1.0,
            optimizer=QUIET,
            placements=("interleaved",),
            pipeline=8,
            chunks=2,
            recompute=False,
            by_hand=told,
        ).best.estimate.step_us
        for told in (None, by_hand)
    ]
    assert steps_us[0] < 0.99 * known.step_us
    assert steps_us[1] <= 1.005 * steps_us[0]


@pytest.mark.parametrize(
    ("seed", "layers", "memory", "bytes_per_s"),
    [
        (1, 3, 80, 1e10),
        (3, 3, 100, 2e10),
        *(
            pytest.param(seed, 3, memory, bytes_per_s, marks=pytest.mark.slow)
            for seed in (1, 3, 4)
            for memory, bytes_per_s in ((60, 1e12), (100, 1e10), (130, 2e10))
        ),
    ],
)
def test_activations_on_the_hosts_equal_exhaustive_search(
    seed: int, layers: int, memory: int, bytes_per_s: float
) -> None:
    """Every layout with its copies in its blocks and three stages' activations on each device, by CP-SAT."""
    profile = random_profile(np.random.default_rng(seed), layers, has_update=False)
    cluster = small_cluster(2, memory_bytes=memory * MIB, host=Link(bytes_per_s=bytes_per_s))
    truth = least_step_us(profile, cluster, samples=4, offloads=True)
    assert truth is not None
    found = plan(profile, cluster, samples=4, optimizer=QUIET, offload="activations", baselines=False)
    assert found.best.estimate.step_us == pytest.approx(truth, rel=1e-9)
    assert found.lower_bound_us <= truth * (1 + 1e-9)
