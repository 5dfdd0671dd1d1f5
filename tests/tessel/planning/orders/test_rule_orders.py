"""Orders kept apart from spans against the schedules of `tessel.handwritten` on the same placements."""

from __future__ import annotations

import numpy as np
import pytest

from tessel.handwritten import OVERLAPPING
from tessel.handwritten.paired import paired_rule
from tessel.planning.cluster import OPTIMIZERS
from tessel.planning.costs.stage_costs import cuts_at
from tessel.planning.costs.training_step import build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.orders.rules import rules_of
from tessel.planning.orders.timed_order import in_flight_by_stage, schedule_in_order, time_rule
from tessel.validation import check_schedule
from tests.samples.plan_samples import random_profile, small_cluster

RULES = {rule.name: rule for rule in OVERLAPPING}


@pytest.mark.parametrize(("split", "factor"), [(False, None), (True, None), (True, 0.6), (False, 0.7)])
@pytest.mark.parametrize(
    ("placement", "stages"), [("vshape", 4), ("interleaved", 8), ("zbv", 8), ("xshape", 4)]
)
def test_orders_are_those_of_the_rules(
    placement: str, stages: int, split: bool, factor: float | None
) -> None:
    profile = random_profile(np.random.default_rng(0), 11, is_split=True, is_tied=True)
    layout = Layout(
        data_parallel=2,
        pipeline=4,
        micro_batch=1,
        micro_batches=16,
        cuts=cuts_at([*range(stages), 11]),
        placement=placement,  # type: ignore[arg-type]
        split_backward=split,
        recompute=tuple(stage % 3 == 0 for stage in range(stages)),
    )
    job = Job(cluster=small_cluster(8), optimizer=OPTIMIZERS["adam"], overlap_factor=factor)
    step = build_step(profile, layout, job)
    names = rules_of(layout, has_backward=True, is_split=split, in_flight=(2, 1), overlaps=factor is not None)
    assert names
    num_pairs = 0
    for name in names:
        schedule = schedule_in_order(name, step)
        check_schedule(schedule)
        timed = time_rule(name, layout, step.figures, step.step_us)
        assert timed.estimate == estimate_step(step, schedule)
        num_pairs += len(schedule.pairs)
        if "<" in name or RULES[name].why_not(step.placement, step.micro_batches) is not None:
            continue  # a limit in flight, or a joint backward in ZB-V's order, is this module's own
        if factor is not None:
            strongest = paired_rule(
                RULES[name], step.placement, micro_batches=step.micro_batches, factor=factor
            )
            assert schedule.makespan >= strongest.makespan  # of the rule's every variant
            continue
        published = RULES[name].build(step.placement, micro_batches=step.micro_batches)
        assert schedule.start_by_block() == published.start_by_block()
        assert schedule.peak_memory == published.peak_memory
    assert (num_pairs > 0) is (factor is not None)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_in_flight_is_kept(limit: int) -> None:
    profile = random_profile(np.random.default_rng(1), 6, is_split=True)
    layout = Layout(
        data_parallel=1,
        pipeline=4,
        micro_batch=1,
        micro_batches=9,
        cuts=cuts_at([0, 1, 3, 5, 6]),
        split_backward=True,
    )
    step = build_step(profile, layout, Job(cluster=small_cluster(4), optimizer=OPTIMIZERS["adam"]))
    for rule in (f"1f1b<{limit}", f"zb-h1<{limit}"):
        assert max(in_flight_by_stage(rule, layout, step.figures)) <= limit
        check_schedule(schedule_in_order(rule, step))
    assert in_flight_by_stage("1f1b", layout, step.figures) == (4, 3, 2, 1)
    assert in_flight_by_stage("gpipe", layout, step.figures) == (9, 9, 9, 9)
