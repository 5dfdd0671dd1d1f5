"""Jobs that were planned wrongly once, each with the right answer worked out apart from the planner."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tessel.comparison import compare_schedules
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget

MIB = 2**20
FAST = Link(bytes_per_s=100e9, latency_us=10.0)


ASKED = ("optimizer", "runtime", "sharding")
"""What is a part of the job, not of what may be chosen."""


def profile_of(*costs: StageCosts) -> Profile:
    return Profile(
        name="job",
        layers=tuple(Layer(f"layer{index}") for index in range(len(costs))),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),),
    )


def plan(
    profile: Profile, cluster: Cluster, micro_batches: int, *, work: float = 1.0, **options: object
) -> PlanResult:
    asked: dict[str, Any] = {name: options.pop(name) for name in ASKED if name in options}
    return find_plan(
        profile,
        Job(cluster=cluster, global_batch=micro_batches, **asked),
        options=PlanOptions(**{"placements": ("vshape",), **options}),
        budget=SearchBudget(work_limit=work, time_limit_s=None),
    )


@pytest.mark.parametrize(("halved", "step_ms"), [(5, 68.0), (100, 81.8)])
def test_what_is_kept_between_the_halves_decides_how_many_are_in_flight(halved: int, step_ms: float) -> None:
    """Four stages of 1 ms forward, input and weight half; 260 MiB hold two whole micro-batches each.

    At least 16 · 3 ms of work, and warm-up and cool-down of 3 stages there and back.
    """
    cost = StageCosts(
        forward_us=1e3,
        backward_input_us=1e3,
        backward_weight_us=1e3,
        weight_bytes=10 * MIB,
        saved_bytes=100 * MIB,
        saved_for_weight_bytes=halved * MIB,
        boundary_bytes=MIB,
    )
    cluster = Cluster(devices=4, hop=FAST, collective=FAST, memory_bytes=260 * MIB)
    options = {"optimizer": OPTIMIZERS["sgd"], "pipeline": 4, "recompute": False, "what_if": False}
    found = plan(profile_of(*[cost] * 4), cluster, 16, work=3.0, **options)
    assert found.best.estimate.step_us / 1e3 == pytest.approx(step_ms, abs=0.15)
    assert found.optimal


def test_a_step_that_more_memory_finds_and_the_limits_allow_is_the_plan() -> None:
    block = StageCosts(
        forward_us=4e3, backward_us=8e3, weight_bytes=300 * MIB, saved_bytes=300 * MIB, boundary_bytes=8 * MIB
    )
    ends = StageCosts(forward_us=500.0, backward_us=500.0, weight_bytes=200 * MIB, saved_bytes=10 * MIB)
    cluster = Cluster(
        devices=4,
        hop=FAST,
        collective=FAST,
        device_speed=(0.4, 1.0, 0.4, 1.0),
        device_memory_bytes=tuple(each << 30 for each in (16, 40, 16, 40)),
    )
    found = plan(profile_of(ends, *[block] * 8, ends), cluster, 16, pipeline=4)
    held = dict(zip(found.best.layout.device_order, found.best.estimate.memory_bytes, strict=True))
    assert all(num_bytes <= (40 if device % 2 else 16) << 30 for device, num_bytes in held.items())
    for change in found.changes:
        if "memory" in change.change:
            assert change.saves_us <= 1e-6  # what they find keeps the limits
    # The fast devices come first: more micro-batches are in flight there, and more layers run.
    assert found.best.layout.device_order == (1, 3, 0, 2)
    names = found.best.layout.device_names
    assert names == ("1", "3", "0", "2")


def test_forwards_alone_are_a_flow_shop_of_equal_jobs_over_all_orders_of_devices() -> None:
    """The step is a micro-batch's way through, and the others behind it at the pace of the slowest stage."""
    speeds = (0.75, 1.0, 0.5)
    us = (100.0, *(2000.0,) * 6, 9000.0)
    costs = [StageCosts(forward_us=each, weight_bytes=MIB) for each in us]
    cluster = Cluster(
        devices=3, hop=FAST, collective=FAST, device_speed=speeds, device_memory_bytes=(1 << 40,) * 3
    )
    found = plan(profile_of(*costs), cluster, 20, pipeline=3, what_if=False)
    best = min(
        sum(stages) + 19 * max(stages)
        for order in permutations(speeds)
        for first in range(1, len(us) - 1)
        for second in range(first + 1, len(us))
        for stages in [
            [
                sum(us[begin:end]) / speed
                for begin, end, speed in zip((0, first, second), (first, second, len(us)), order, strict=True)
            ]
        ]
    )
    # Rounded up to whole steps, and no bytes go over the links.
    assert best <= found.best.estimate.step_us <= best * 1.001
    assert found.lower_bound_us <= best * 1.001


def test_equal_devices_have_a_bound_that_forwards_alone_reach() -> None:
    costs = [
        StageCosts(forward_us=200.0),
        *[StageCosts(forward_us=2000.0)] * 11,
        StageCosts(forward_us=1500.0),
    ]
    found = plan(profile_of(*costs), Cluster(devices=4, hop=FAST, collective=FAST), 32, pipeline=4)
    assert found.gap < 1e-3


def test_frozen_layers_hold_their_weights_and_nothing_else() -> None:
    tower = StageCosts(forward_us=5e3, backward_us=0.0, weight_bytes=6 << 30)
    adapted = StageCosts(
        forward_us=4e3, backward_us=4.4e3, weight_bytes=400 * MIB, trained_bytes=4 * MIB, saved_bytes=60 * MIB
    )
    profile = profile_of(tower, tower, adapted, adapted)
    cluster = Cluster(devices=4, hop=FAST, collective=FAST, memory_bytes=16 << 30)
    layout = Layout(data_parallel=2, pipeline=2, micro_batch=1, micro_batches=4, cuts=((0, 1), (2, 3)))
    figures = stage_figures(profile, layout, Job(cluster=cluster, optimizer=OPTIMIZERS["adam"]))
    assert figures.frozen_bytes == (12 << 30, 792 * MIB)
    assert figures.trained_bytes == (0, 8 * MIB)
    # Adam: a gradient and two moments beside each trained weight.
    assert figures.static_bytes == (12 << 30, 800 * MIB + 3 * 8 * MIB)
    (reduced,) = figures.synchronisations  # of the second stage alone, 8 MiB round a ring of two
    assert reduced.us == pytest.approx(2 * (10.0 + 4 * MIB / 100e9 * 1e6))
    assert figures.update_us[0] == 0 < figures.update_us[1]
    assert plan(profile, cluster, 8, work=0.3, what_if=False).best.estimate.fits


def test_the_best_of_each_rule_is_listed_on_the_plans_own_stages_too() -> None:
    costs = [
        StageCosts(
            forward_us=900.0 + 300 * (index % 3),
            backward_input_us=1000.0 + 200 * (index % 2),
            backward_weight_us=800.0,
            weight_bytes=MIB,
            saved_bytes=50 * MIB,
            boundary_bytes=MIB,
        )
        for index in range(8)
    ]
    cluster = Cluster(devices=4, hop=FAST, collective=FAST, memory_bytes=700 * MIB)
    found = plan(profile_of(*costs), cluster, 8, pipeline=4, what_if=False)
    rows = {row.name: row.planned.estimate.pipeline_us for row in found.baselines if row.planned is not None}
    assert found.best.schedule is not None
    step_us = found.best.step.step_us
    for row in compare_schedules(found.best.schedule).rows:
        if row.schedule != "searched" and row.fits:
            assert rows[row.schedule] <= row.makespan * step_us * (1 + 1e-9)
