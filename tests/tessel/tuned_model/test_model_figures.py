"""What follows the last block, worked out by hand: sums in turn, parts of divided weights, the update."""

from __future__ import annotations

import msgspec
import pytest
from tuned_model import tuned_model

from tessel.pipeline import build_plan
from tessel.planning.cluster import Link
from tessel.planning.costs.training_step import StepEstimate, end_of_step
from tessel.search import SearchBudget
from tessel.tuned_model.model_figures import GradientSum, figures_of_model, gradient_sums
from tessel.tuned_model.replicas import replicated
from tessel.tuned_plan import TunedPlan
from tuner.plan import ModelPlan, ShardsPlan, TiedParameter

LINK = Link(bytes_per_s=1e9, latency_us=3.0)
"""A thousand bytes take a microsecond."""


def two_stages() -> ModelPlan:
    """Two stages on two devices that share a table of 2000 bytes."""
    tied = (TiedParameter("h.0.weight", 0), TiedParameter("h.1.weight", 1))
    tuned = tuned_model([(100.0, 200.0, 0.0, 0.0), (100.0, 200.0, 100.0, 100.0)])
    return msgspec.structs.replace(tuned, tied=(tied,), tied_bytes=(2000,), stage_devices=((0,), (1,)))


def planned(tuned: ModelPlan) -> TunedPlan:
    return build_plan(tuned, micro_batches=1, memory_limit_bytes=None, budget=SearchBudget(work_limit=0.01))


def ended(plan: TunedPlan, *, update_us_a_byte: float = 0.0) -> StepEstimate:
    figures = figures_of_model(plan, link=LINK, update_us_a_byte=update_us_a_byte)
    return end_of_step(figures, plan.schedule, step_us=plan.step_us)


def test_a_table_on_two_devices_is_summed_after_the_last_block_and_then_updated() -> None:
    plan = planned(two_stages())
    (shared,) = gradient_sums(plan)
    assert shared == GradientSum(devices=(0, 1), stages=(0, 1), num_bytes=2000)
    # A ring of two: two steps of 1000 bytes, 3 + 1 us each. Then 4000 bytes of weights at 0.01 us a byte.
    end = ended(plan, update_us_a_byte=0.01)
    assert end.step_us - end.pipeline_us == pytest.approx(8.0 + 40.0)
    assert (end.synchronisation_us, end.update_us) == pytest.approx((8.0, 40.0))


def test_weights_of_one_device_are_summed_there() -> None:
    alone = msgspec.structs.replace(two_stages(), stage_devices=((0,), (0,)))
    assert gradient_sums(alone) == ()
    # Its second block of a device ends the step: nothing but the update follows, the table counted once.
    end = ended(planned(alone), update_us_a_byte=0.01)
    assert (end.step_us - end.pipeline_us, end.synchronisation_us) == pytest.approx((60.0, 0.0))


def test_copies_sum_all_weights_and_divided_ones_part_by_part() -> None:
    tuned = two_stages()
    shards = ShardsPlan(num_shards=2, axes={"h.1.weight": 0}, collective_us={})
    first, last = tuned.stages
    divided = msgspec.structs.replace(
        tuned,
        stages=(first, msgspec.structs.replace(last, shards=shards)),
        stage_devices=((0,), (0, 1)),
        tied=(),
        tied_bytes=(),
    )
    sums = {each.devices: each for each in gradient_sums(replicated(divided, 2))}
    # Copies are on devices 0 and 1, and 2 and 3: each part of the second stage is summed with its like.
    assert sums.keys() == {(0, 2), (1, 3)}
    assert sums[1, 3].stages == (1, 3)


def test_sums_take_turns_on_a_device() -> None:
    """Both stages of a mirrored pair are on both devices: two sums, one after the other."""
    tuned = msgspec.structs.replace(two_stages(), tied=(), tied_bytes=())
    plan = planned(replicated(tuned, 2, is_mirrored=True))
    sums = gradient_sums(plan)
    assert [each.devices for each in sums] == [(0, 1), (0, 1)]
    each_us = 2 * (3.0 + sums[0].num_bytes / 2 / 1000)
    assert ended(plan).synchronisation_us == pytest.approx(2 * each_us)
