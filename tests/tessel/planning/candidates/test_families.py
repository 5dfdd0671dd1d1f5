"""Which families there are, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.errors import ScheduleError
from tessel.planning.candidates.families import chain_of, families, family_of
from tessel.planning.options import PlanOptions
from tessel.shapes import kshape, vshape, zbv
from tests.samples.plan_samples import random_profile, small_cluster


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


def test_a_chain_is_read_from_a_placement() -> None:
    assert chain_of(vshape(3)) == (0, 1, 2)
    assert chain_of(zbv(2)) == (0, 1, 1, 0)
    with pytest.raises(ScheduleError, match="is not one chain"):
        chain_of(kshape(4))


def test_unequal_devices_come_in_several_orders() -> None:
    profile = random_profile(np.random.default_rng(0), 3)
    cluster = small_cluster(3, device_speed=(0.5, 1.0, 0.8), device_memory_bytes=(3, 1, 2))
    options = PlanOptions(pipeline=3, placements=("vshape",))
    orders = {family.device_order for family in families(profile, cluster, global_batch=3, options=options)}
    assert orders == {(0, 1, 2), (0, 2, 1), (1, 2, 0)}
