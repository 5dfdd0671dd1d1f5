"""Stages with tensor-parallel degrees of their own: against all cuts, degrees and orders of small models."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tessel
from tessel.errors import ScheduleError, UsageError
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.jobs.inputs.plan_options import PlanOptions as JobOptions
from tessel.planning.candidates import own_degrees
from tessel.planning.candidates.bound_terms import shared_us
from tessel.planning.candidates.own_degrees import stems
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.degree_sums import DegreeSums, Side, reshard_us
from tessel.planning.costs.stage_costs import TableKey, layer_sums
from tessel.planning.costs.stage_figures import StageFigures, stage_figures
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.planning.sharding import SHARDINGS
from tessel.profiles.profile import Profile
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
    seed: int,
    layers: int,
    devices: int,
    tensor: tuple[int, ...],
    memory: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = random_profile(np.random.default_rng(seed), layers, has_update=False, tensor=tensor)
    cluster = small_cluster(devices, memory_bytes=None if memory is None else memory * MIB)
    truth = least_step_us(profile, cluster, samples=2)
    assert truth is not None
    found = plan(profile, cluster, samples=2, tensor_parallel="own")
    assert found.best.estimate.step_us == pytest.approx(truth, rel=1e-9)
    assert found.optimal
    # With a few ways as families, the bound is still one of all ways.
    monkeypatch.setattr(own_degrees, "MAX_ASSIGNMENTS", 0)
    few = plan(profile, cluster, samples=2, tensor_parallel="own")
    assert few.lower_bound_us <= truth * (1 + 1e-9) <= few.best.estimate.step_us * (1 + 2e-9)


HEAVY_HEAD = (1.0, 1.0, 1.0, 1.0, 8.0)


def rows(weights: tuple[float, ...] = HEAVY_HEAD) -> list[dict[str, object]]:
    """Return a table of layers of these lengths, nearly half as long on two devices."""
    return [
        {
            "layer": f"l{index}",
            "tensor_parallel": part,
            "forward_ms": weight / part * (1 if part == 1 else 1.02),
            "backward_ms": 2 * weight / part * (1 if part == 1 else 1.02),
            "weights_mib": 4 / part,
            "saved_mib": 1 / part,
            "boundary_mib": 1,
        }
        for part in (1, 2)
        for index, weight in enumerate(weights)
    ]


def test_a_heavy_head_on_more_devices_beats_every_equal_degree() -> None:
    options = {"devices": 3, "micro_batches": 12, "work": 0.3, "progress": False}
    options |= {"data_parallel": 1, "placement": "vshape"}
    alike = tessel.plan(rows(), **options)
    own = tessel.plan(rows(), tensor_parallel="own", **options)
    given = tessel.plan(rows(), tensor_parallel="1,2", **options)
    assert own.found is not None
    assert own.found.best.layout.tensor_degrees == (1, 2)
    assert own.step_ms < 0.75 * alike.step_ms
    assert given.step_ms == own.step_ms
    assert f"all stages, {alike.step_ms:.1f} ms were found" in str(own.explain())
    assert own.lower_bound_ms <= given.lower_bound_ms


def test_of_many_ways_moves_find_what_two_groups_of_stages_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heavy layers at both ends, and two between that are half as long."""
    monkeypatch.setattr(own_degrees, "MAX_ASSIGNMENTS", 0)
    options = {"devices": 6, "pipeline": 4, "micro_batches": 12, "work": 0.4, "progress": False}
    found = tessel.plan(rows((8.0, 4.0, 4.0, 8.0)), tensor_parallel="own", **options)
    assert found.found is not None
    assert found.found.best.layout.tensor_degrees == (2, 1, 1, 2)
    assert "two neighbouring ones were tried, and moves" in str(found.explain())


def test_a_plan_says_its_degrees_wherever_it_is_read(tmp_path: Path) -> None:
    options = {"devices": 3, "micro_batches": 6, "work": 0.3, "progress": False}
    own = tessel.plan(rows(), tensor_parallel="1,2", **options)
    own.save(tmp_path / "plan.json")
    loaded = tessel.load_plan(tmp_path / "plan.json")
    assert loaded.planned == own.planned
    assert "tensor-parallel 1,2" in str(own.explain())
    assert "from 1 to 2 devices behind stage 0" in str(own.explain())
    assert "tensor-parallel" in str(loaded.explain())
    assert any("1,2" in text for text in own.export("markdown").values())
    for framework in ("torch", "torchtitan", "megatron", "primus", "deepspeed"):
        with pytest.raises(ScheduleError, match=f"degrees 1,2, and {framework} has one"):
            own.export(framework)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": "2,x"}, "'2,x' are no degrees"),
        ({"tensor_parallel": [2, 0]}, "'2,0' are no degrees"),
        ({"tensor_parallel": "2,2,1"}, "takes 5 devices"),
        ({"tensor_parallel": "2,1,1", "data_parallel": 2}, "takes 8 devices"),
        ({"tensor_parallel": "3,1", "pipeline": 3}, "of 2 stages, and --pipeline is 3"),
        ({"tensor_parallel": "own", "placement": "zbv"}, "another placement"),
        ({"tensor_parallel": "own", "runtime": "deepspeed"}, "have one tensor-parallel degree"),
        ({"tensor_parallel": "3,1"}, r"degrees 3,1, and rows has rows of 1, 2 with"),
    ],
)
def test_degrees_that_cannot_be_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, ScheduleError), match=message) as refused:
        tessel.plan(rows(), devices=4, micro_batches=4, work=0.1, progress=False, **options)
    assert "\n" not in str(refused.value)


def test_equal_degrees_of_all_stages_are_one_degree() -> None:
    listed = JobOptions(devices=8, tensor_parallel="2x4").choices()
    assert listed == JobOptions(devices=8, tensor_parallel=2, pipeline=4).choices()


SLOW, NODE = Link(bytes_per_s=1e6, latency_us=10.0), Link(bytes_per_s=1e7, latency_us=1.0)


@pytest.mark.parametrize(
    ("source", "target", "us"),
    [
        # Whole on each: a half to each of two receivers, one after the other; each gathers the other half.
        (Side(2, 600.0), Side(4, 600.0), 2 * 10 + 600 + 1 + 30),
        # Whole on each: half of the senders send all of it.
        (Side(4, 600.0), Side(2, 600.0), 10 + 600),
        # A part on each: two parts from each sender, or to each receiver.
        (Side(2, 300.0), Side(4, 150.0), 2 * 10 + 300),
        (Side(4, 150.0), Side(2, 300.0), 2 * 10 + 300),
        # Fourths, needed whole by each of two: two over the slow link, the others from the neighbour.
        (Side(4, 150.0), Side(2, 600.0), 2 * 10 + 300 + 1 + 30),
        # Three receivers of two senders: two thirds of a sender's 600 go to each, and it serves up to two.
        (Side(2, 600.0), Side(3, 600.0), 2 * 10 + 600 + 1 + 20),
        (Side(1, 0.0), Side(2, 0.0), 0.0),
    ],
)
def test_a_boundary_is_cut_anew_by_the_rule(source: Side, target: Side, us: float) -> None:
    assert reshard_us(source, target, SLOW, NODE) == pytest.approx(us)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_stage_of_its_own_degree_is_as_it_is_where_all_have_that_degree(sharding: str) -> None:
    profile = random_profile(np.random.default_rng(7), 6, is_split=True, tensor=(2, 4))
    degrees, cuts = (1, 4, 2), ((0, 1), (2, 2), (3, 5))
    layout = Layout(
        data_parallel=2,
        pipeline=3,
        tensor_parallel=4,
        stage_tensor_parallel=degrees,
        micro_batch=1,
        micro_batches=4,
        cuts=cuts,
        recompute=(False, False, True),
    )
    assert layout.devices == 14
    assert layout.device_names == ("0-1", "2-9", "10-13")

    def figures_of(layout: Layout) -> StageFigures:
        job = Job(cluster=small_cluster(layout.devices), optimizer=OPTIMIZERS["adam"], sharding=sharding)
        return stage_figures(profile, layout, job)

    found = figures_of(layout)
    for stage, degree in enumerate(degrees):
        alike = figures_of(
            msgspec.structs.replace(layout, tensor_parallel=degree, stage_tensor_parallel=msgspec.UNSET)
        )
        for name in ("forward_us", "backward_us", "kept_bytes", "static_bytes", "update_us", "gather_us"):
            assert getattr(found, name)[stage] == pytest.approx(getattr(alike, name)[stage]), name
        exchanged = [
            [each.us for each in of.synchronisations if stage in each.stages] for of in (found, alike)
        ]
        assert exchanged[0] == pytest.approx(exchanged[1])


@pytest.mark.parametrize("factor", [None, 0.6])
def test_layers_at_their_best_degrees_take_no_more_of_all_devices_than_any_choice(
    factor: float | None,
) -> None:
    profiles = [random_profile(np.random.default_rng(seed), 4) for seed in (1, 2)]
    whole, half = (each.tables[0].costs for each in profiles)
    tables = {degree: layer_sums(each, TableKey(1)) for degree, each in enumerate(profiles, 1)}
    job = Job(cluster=small_cluster(3), overlap_factor=factor)
    taken = []
    for degrees in itertools.product((1, 2), repeat=4):
        costs = [(whole if degree == 1 else half)[layer] for layer, degree in enumerate(degrees)]
        forward = sum(degree * cost.forward_us for degree, cost in zip(degrees, costs, strict=True))
        backward = sum(degree * (cost.backward_us or 0) for degree, cost in zip(degrees, costs, strict=True))
        both = forward + backward
        taken.append(both if factor is None else max(forward, backward, factor * both))
    found = shared_us(DegreeSums.of(tables).least(), job, splits=False)
    assert found <= min(taken) * (1 + 1e-12)
    assert factor is not None or found == pytest.approx(min(taken))


def test_groups_of_devices_lie_within_nodes() -> None:
    """Of degrees 1, 2 and 4 in nodes of four, where those that come one after the other would not."""
    profile = random_profile(np.random.default_rng(8), 6, tensor=(2, 4))
    cluster = small_cluster(12, devices_per_node=4, intra_node=NODE)
    options = PlanOptions(tensor_parallel="own", data_parallel=1)
    (stem,) = stems(profile, cluster, global_batch=4, options=options)
    found = stem.families
    assert any(family.device_order for family in found)
    for family in found:
        layout = family.any_layout(6)
        for position, degree in enumerate(layout.tensor_degrees):
            devices = layout.devices_at(position)
            groups = [devices[first : first + degree] for first in range(0, len(devices), degree)]
            assert all(len({device // 4 for device in group}) == 1 for group in groups)


def test_slow_devices_share_a_stage() -> None:
    """One fast device beside two slow ones: the bound holds for every order of them and all degrees."""
    profile = random_profile(np.random.default_rng(5), 4, has_update=False, tensor=(2,))
    cluster = small_cluster(3, device_speed=(0.5, 1.0, 0.5))
    alike, own = (plan(profile, cluster, samples=6, tensor_parallel=each) for each in (None, "own"))
    assert own.best.layout.tensor_degrees == (2, 1)
    assert own.best.layout.devices_at(1) == (1,)
    assert own.best.estimate.step_us < alike.best.estimate.step_us
    job = Job(cluster=cluster, optimizer=QUIET)
    found = []
    for each in every_layout(4, 3, samples=6, recompute=False, tensor=(2,), has_own=True):
        for order in itertools.permutations(range(3)) if each.placement == "vshape" else ():
            step = build_step(profile, msgspec.structs.replace(each, device_order=order), job)
            schedule = ONE_F_ONE_B.build(step.placement, micro_batches=step.micro_batches)
            found.append(estimate_step(step, schedule).step_us)
    assert own.lower_bound_us <= own.best.estimate.step_us <= min(found)
