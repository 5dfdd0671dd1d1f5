"""Which families there are, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import msgspec
import numpy as np
import pytest

from tessel.errors import ScheduleError
from tessel.planning.candidates.bounds import FamilyBounds
from tessel.planning.candidates.families import (
    Family,
    chain_of,
    families,
    family_of,
    swapped_orders,
    tries_every_order,
)
from tessel.planning.cluster import Cluster
from tessel.planning.costs.stage_costs import layer_sums
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout, PlacementName
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import Branches, Profile, StageCosts
from tessel.shapes import kshape, vshape, zbv
from tests.samples.plan_samples import QUIET, branched, random_profile, small_cluster


def test_degrees_multiply_to_the_devices_and_batches_to_the_global_batch() -> None:
    profile = random_profile(np.random.default_rng(0), 6, micro_batches=(1, 2))
    options = PlanOptions()
    found = list(families(profile, small_cluster(4), global_batch=8, options=options))
    assert len(found) == len(set(found))
    for family in found:
        assert family.data_parallel * family.pipeline * family.tensor_parallel == 4
        assert family.data_parallel * family.micro_batches * family.micro_batch == 8
        assert family.num_stages <= 6
        layout = family.any_layout(6)
        assert family_of(layout) == family
        assert family.chain == tuple(layout.device_of(stage) for stage in range(family.num_stages))
    # One device a pipeline: a vshape. Two: vshape, interleaved of 2 and 3, zbv, xshape. Four: vshape, xshape.
    assert len([family for family in found if family.micro_batch == 1]) == 1 + 5 + 2


def test_options_leave_out_what_they_do_not_allow() -> None:
    profile = random_profile(np.random.default_rng(0), 6, is_split=True)
    options = PlanOptions(placements=("zbv", "vshape"), pipeline=2, split_backward=True)
    found = list(families(profile, small_cluster(4), global_batch=8, options=options))
    assert {family.placement for family in found} == {"zbv", "vshape"}
    assert all(family.split_backward and family.data_parallel == 2 for family in found)
    with pytest.raises(ScheduleError, match="there is no placement 'wshape'"):
        PlanOptions(placements=("wshape",))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="pipeline is 0"):
        PlanOptions(pipeline=0)


@pytest.mark.parametrize(
    ("placement", "why"),
    [("kshape", "has no two branches that meet"), ("mshape", "were not measured divided")],
)
def test_a_placement_that_the_profile_cannot_have_is_refused_by_name(
    placement: PlacementName, why: str
) -> None:
    profile, options = random_profile(np.random.default_rng(0), 6), PlanOptions(placements=(placement,))
    with pytest.raises(ScheduleError, match=why):
        find_plan(profile, Job(cluster=small_cluster(2), global_batch=4), options=options)


def test_branches_without_a_device_each_are_refused() -> None:
    towers = branched(random_profile(np.random.default_rng(0), 6), Branches(2, 5))
    with pytest.raises(ScheduleError, match="no degrees use 3 devices"):
        find_plan(
            towers, Job(cluster=small_cluster(3), global_batch=4), options=PlanOptions(placements=("kshape",))
        )


def test_branches_have_every_number_of_devices_that_their_layers_allow() -> None:
    profile = random_profile(np.random.default_rng(0), 6, tensor=(2, 4))
    towers = branched(profile, Branches(2, 5))
    assert not _branched_families(profile)
    found = _branched_families(towers)
    assert len(found) == len(set(found))
    # Two devices or two pairs: one and one. Four: two and two, or one and three; three have no layer each.
    assert sorted((family.pipeline, family.tensor_parallel, family.branch_devices) for family in found) == [
        (2, 1, 1),
        (2, 2, 1),
        (4, 1, 1),
        (4, 1, 2),
    ]
    for family in found:
        layout = family.any_layout(6)
        assert family_of(layout) == family
        assert layout.branches == towers.branches
        assert layout.devices_of(family.num_stages - 1) == tuple(range(family.pipeline))
        assert [layout.next_stage(stage) for stage in range(family.num_stages)].count(-1) == 1
    # What joins them was not measured over four devices.
    assert {family.joined for family in _branched_families(towers, degrees=(2,))} == {2}


def _branched_families(profile: Profile, degrees: tuple[int, ...] = (2, 4)) -> list[Family]:
    tables = tuple(each for each in profile.tables if each.tensor_parallel in (1, *degrees))
    profile = msgspec.structs.replace(profile, tables=tables)
    options = PlanOptions(placements=("kshape",))
    return list(families(profile, small_cluster(4), global_batch=4, options=options))


def test_layouts_and_profiles_have_branches_where_these_can_be() -> None:
    profile = random_profile(np.random.default_rng(0), 4, tensor=(2,))
    for second, joined in ((0, 2), (2, 2), (2, 4)):
        with pytest.raises(ScheduleError, match="the second branch begins at layer"):
            msgspec.structs.replace(profile, branches=Branches(second, joined))
    layout = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=1,
        micro_batches=2,
        placement="kshape",
        cuts=((0, 0), (1, 2), (3, 3)),
        branch_devices=1,
    )
    for change in ({"branch_devices": 0}, {"branch_devices": 2}, {"cuts": ((0, 1), (2, 3))}):
        with pytest.raises(ScheduleError, match="kshape has a stage for each device of two branches"):
            msgspec.structs.replace(layout, **change)
    with pytest.raises(ScheduleError, match="vshape has no branches"):
        msgspec.structs.replace(layout, placement="vshape", cuts=((0, 0), (1, 3)))
    for known in (None, Branches(2, 3)):
        other = msgspec.structs.replace(profile, branches=known)
        with pytest.raises(ScheduleError, match="cut where the model's begin and meet"):
            stage_figures(other, layout, Job(cluster=small_cluster(2), optimizer=QUIET))
    with pytest.raises(ScheduleError, match="relayed_bytes is 2, more than the 1"):
        StageCosts(forward_us=1.0, boundary_bytes=1, relayed_bytes=2)


def test_a_chain_is_read_from_a_placement() -> None:
    assert chain_of(vshape(3)) == (0, 1, 2)
    assert chain_of(zbv(2)) == (0, 1, 1, 0)
    with pytest.raises(ScheduleError, match="is not one chain"):
        chain_of(kshape(4))


def orders_of(cluster: Cluster, pipeline: int) -> set[tuple[int, ...]]:
    profile = random_profile(np.random.default_rng(0), max(3, pipeline))
    options = PlanOptions(pipeline=pipeline, placements=("vshape",))
    found = families(profile, cluster, global_batch=cluster.devices, options=options)
    return {family.device_order for family in found}


def test_unequal_devices_come_in_every_order_that_differs() -> None:
    cluster = small_cluster(3, device_speed=(0.5, 1.0, 0.8), device_memory_bytes=(3, 1, 2))
    assert orders_of(cluster, 3) == set(permutations(range(3)))
    # Two kinds, two of each: which of two alike stands first is no matter.
    kinds = (0.5, 1.0, 0.5, 1.0)
    orders = orders_of(small_cluster(4, device_speed=kinds), 4)
    assert len(orders) == 6
    assert {tuple(kinds[device] for device in order) for order in orders} == set(permutations(kinds))
    # Replicas of a position are alike where they can be.
    orders = orders_of(small_cluster(4, device_speed=kinds), 2)
    assert {tuple(kinds[device] for device in order) for order in orders} >= {
        (0.5, 0.5, 1.0, 1.0),
        (1.0, 1.0, 0.5, 0.5),
    }


def test_of_many_unequal_devices_a_few_orders_are_tried_and_swaps_of_them() -> None:
    speeds = tuple(1.0 - 0.05 * device for device in range(8))
    cluster = small_cluster(8, device_speed=speeds)
    assert not tries_every_order(cluster, (1,) * cluster.devices)
    orders = orders_of(cluster, 8)
    assert 1 < len(orders) <= 4
    profile = random_profile(np.random.default_rng(0), 8)
    options = PlanOptions(pipeline=8, placements=("vshape",))
    family = next(families(profile, cluster, global_batch=8, options=options))
    swapped = list(swapped_orders(family, cluster))
    assert len(set(swapped)) == 28
    assert all(sorted(order) == list(range(8)) for order in swapped)
    # The bound for every order holds for each of them.
    job = Job(cluster=cluster, global_batch=8)
    sums = layer_sums(profile, family.table_key)
    by_speed = replace(family, device_order=tuple(range(8)))
    bound = FamilyBounds(job, options).of_every_cut(by_speed, sums, any_order=True)
    for order in (*orders, *swapped):
        other = replace(family, device_order=order)
        assert bound <= FamilyBounds(job, options).of_every_cut(other, sums) * (1 + 1e-12)
