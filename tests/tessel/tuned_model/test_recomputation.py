"""Stages that run their forward again: what they keep, what they take, and which sets are chosen."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError
from tessel.pipeline import build_plan, place_stages
from tessel.placement import BlockKind
from tessel.search import SearchBudget
from tessel.tuned_model.recomputation import MAX_EXHAUSTIVE, MAX_SETS, recomputation_sets, recomputing
from tessel.tuned_plan import TunedPlan
from tessel.validation import check_schedule
from tests.samples.tuned_model import tuned_model
from tuner.plan import ModelPlan


def chain(*latencies: tuple[float, float, float, float]) -> ModelPlan:
    """Return stages whose weights do not outweigh what micro-batches keep."""
    tuned = tuned_model(latencies)
    stages = tuple(msgspec.structs.replace(stage, weight_bytes=1000) for stage in tuned.stages)
    return msgspec.structs.replace(tuned, stages=stages)


EVEN = ((100.0, 200.0, 100.0, 100.0),) * 3


def planned(tuned: ModelPlan, limit: int | None, *, work: float = 1.0, recompute: bool = True) -> TunedPlan:
    return build_plan(
        tuned,
        micro_batches=6,
        memory_limit_bytes=limit,
        budget=SearchBudget(work),
        recompute=recompute,
    )


def test_a_recomputing_backward_takes_its_forward_too_and_keeps_what_was_received() -> None:
    tuned = recomputing(chain((10.0, 30.0, 20.0, 12.0), (20.0, 40.0, 24.0, 20.0)), {1})
    blocks = place_stages(tuned, step_us=1.0).blocks
    assert {block.name: (block.span, block.memory) for block in blocks} == {
        "f0": (10, 600),
        "b0": (30, -600),
        "b0_input": (0, 0),
        "b0_weight": (30, -600),
        "f1": (20, 128),
        "b1": (60, -128),
        "b1_input": (44, 500 - 128),
        "b1_weight": (20, -500),
    }
    assert all(block.kind is not BlockKind.RECOMPUTE for block in blocks)


@settings(max_examples=30, deadline=None)
@given(num_stages=st.integers(1, 30), wide=st.sets(st.integers(0, 29)))
def test_the_sets_hold_only_stages_that_gain_and_begin_with_none(num_stages: int, wide: set[int]) -> None:
    tuned = chain(*((10.0, 20.0, 12.0, 11.0),) * num_stages)
    stages = tuple(
        msgspec.structs.replace(stage, saved_bytes=100 if number in wide else 600)
        for number, stage in enumerate(tuned.stages)
    )
    sets = recomputation_sets(msgspec.structs.replace(tuned, stages=stages))
    worthwhile = set(range(num_stages)) - wide
    assert sets[0] == frozenset()
    assert worthwhile in sets
    assert len(set(sets)) == len(sets) <= MAX_SETS
    assert all(each <= worthwhile for each in sets)
    if len(worthwhile) <= MAX_EXHAUSTIVE:
        assert len(sets) == 2 ** len(worthwhile)


def test_without_a_limit_nothing_recomputes() -> None:
    assert not any(stage.recomputes for stage in planned(chain(*EVEN), None, work=0.3).stages)


def test_a_limit_that_keeps_few_micro_batches_in_flight_is_met_faster_with_recomputation() -> None:
    limit = 2 * 1000 + 1150
    kept = planned(chain(*EVEN), limit, recompute=False)
    chosen = planned(chain(*EVEN), limit)
    assert not any(stage.recomputes for stage in kept.stages)
    assert any(stage.recomputes for stage in chosen.stages)
    assert chosen.schedule.makespan < kept.schedule.makespan
    check_schedule(chosen.schedule)
    (row,) = (row for row in chosen.comparison if row.schedule == "searched")
    assert row.fits
    assert row.peak_memory_bytes is not None
    assert max(row.peak_memory_bytes) <= limit


@pytest.mark.parametrize("limit", [2700, 3150, pytest.param(3800, marks=pytest.mark.slow)])
def test_the_best_of_all_sets_is_found(limit: int) -> None:
    """Every set is planned by itself, as a user would who marks stages by hand."""
    tuned = chain((100.0, 200.0, 100.0, 100.0), (60.0, 120.0, 70.0, 60.0), (140.0, 250.0, 130.0, 130.0))
    makespans = []
    for size in range(4):
        for stages in itertools.combinations(range(3), size):
            try:
                plan = planned(recomputing(tuned, stages), limit, recompute=False)
            except InfeasibleError:
                continue
            makespans.append(plan.schedule.makespan)
    assert planned(tuned, limit, work=10.0).schedule.makespan == min(makespans)


def test_what_fits_no_way_is_refused_as_without_recomputation() -> None:
    messages = []
    for recompute in (False, True):
        with pytest.raises(InfeasibleError) as caught:
            planned(chain(*EVEN), 2500, work=0.2, recompute=recompute)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
