"""The interval of a step whose layers are predicted, against planning with every layer at its bound."""

import msgspec
import pytest

from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.step_interval import step_interval_us
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search.budget import SearchBudget

NO_COST = Link(bytes_per_s=1e15, latency_us=0.0)
CLUSTER = Cluster(devices=2, hop=NO_COST, collective=NO_COST)
OPTIONS = PlanOptions(placements=("vshape",), data_parallel=1, tensor_parallel=1)


def profile_of(*intervals: tuple[float, float]) -> Profile:
    cost = StageCosts(forward_us=100.0, backward_us=200.0, weight_bytes=8, boundary_bytes=8)
    return Profile(
        name="model",
        layers=tuple(Layer(f"layer{index}") for index in range(4)),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=(cost,) * 4, intervals=intervals),),
    )


def planned(profile: Profile):
    return find_plan(
        profile,
        Job(cluster=CLUSTER, global_batch=4, optimizer=OPTIMIZERS["none"]),
        options=OPTIONS,
        budget=SearchBudget(work_limit=1.0),
    ).best


def interval_of(profile: Profile) -> tuple[float, float] | None:
    return step_interval_us(planned(profile), profile, Job(cluster=CLUSTER, optimizer=OPTIMIZERS["none"]))


def test_measured_layers_have_no_interval() -> None:
    assert interval_of(profile_of()) is None


def test_where_all_layers_err_alike_the_step_does_too() -> None:
    profile = profile_of(*[(0.5, 3.0)] * 4)
    step_us = planned(profile).estimate.step_us
    low_us, high_us = interval_of(profile) or (0.0, 0.0)
    assert (low_us, high_us) == pytest.approx((0.5 * step_us, 3.0 * step_us), rel=2e-3)


def test_one_uncertain_layer_moves_the_step_as_much_as_a_slower_one_would() -> None:
    profile = profile_of((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 5.0))
    best = planned(profile)
    low_us, high_us = interval_of(profile) or (0.0, 0.0)
    assert low_us == pytest.approx(best.estimate.step_us, rel=2e-3)
    # Its device does four micro-batches of layers of 300 and 1500 us, after two forwards elsewhere.
    assert high_us == pytest.approx(4 * (300 + 1500) + 200 + 400, rel=2e-3)


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        (((0.5, 2.0),), "1 intervals are given for 4 layers"),
        (((0.0, 2.0),) * 4, "does not hold 1"),
        (((1.5, 2.0),) * 4, "does not hold 1"),
        (((0.5, float("inf")),) * 4, "does not hold 1"),
        (((float("nan"), 2.0),) * 4, "does not hold 1"),
    ],
)
def test_impossible_intervals_are_refused(intervals, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        profile_of(*intervals)


def test_repeated_layers_keep_their_intervals() -> None:
    longer = profile_of(*[(0.5, 2.0)] * 4).with_num_layers(7)
    assert longer.tables[0].intervals == ((0.5, 2.0),) * 7
    assert msgspec.json.decode(msgspec.json.encode(longer), type=Profile) == longer
