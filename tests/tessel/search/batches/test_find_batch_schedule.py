"""Schedules of micro-batches that differ: against CP-SAT, every order, and hand-written schedules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tessel.batches import Batch, scaled_class
from tessel.errors import InfeasibleError
from tessel.orders import Task, earliest_starts
from tessel.placement import Placement
from tessel.schedule import Schedule
from tessel.search.batches.find_batch_schedule import find_batch_schedule
from tessel.search.batches.sequences import candidate_sequences
from tessel.search.budget import Progress, SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import vshape, zbv
from tessel.validation import check_schedule
from tests.samples.batches.batch_samples import (
    batch_cases,
    batch_of,
    least_makespan,
    least_makespan_by_trying,
    with_spans,
)
from tests.tessel.search.batches.test_replay import ONE_F_ONE_B


@settings(max_examples=15)
@given(case=batch_cases())
def test_the_makespan_lies_between_bound_and_truth(case: tuple[Placement, Batch]) -> None:
    placement, batch = case
    heaviest = int(batch.memory.max())
    for limits in (None, (heaviest + 1,) * placement.devices):
        truth = least_makespan(placement, batch, limits)
        assert truth is not None
        found = find_batch_schedule(placement, batch, memory=limits, budget=SearchBudget(0.05))
        check_schedule(found)
        assert found.lower_bound <= truth <= found.makespan
        assert not found.optimal or found.makespan == truth


def test_small_batches_are_solved_exactly() -> None:
    placement = vshape(2)
    for seed in range(4):
        batch = batch_of(placement, 3, seed)
        truth = least_makespan_by_trying(placement, batch)
        assert truth == least_makespan(placement, batch, None)
        found = find_batch_schedule(placement, batch, budget=SearchBudget(1))
        assert found.optimal
        assert found.makespan == truth
        assert (found.placement, found.classes) == (placement, batch)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_never_longer_than_1f1b_as_given_or_sorted(seed: int) -> None:
    placement = vshape(4)
    batch = batch_of(placement, 8, seed, classes=6)
    found = find_batch_schedule(placement, batch, budget=SearchBudget(0.05))
    check_schedule(found)
    orders = ONE_F_ONE_B.orders(placement, micro_batches=8)
    for sequence in candidate_sequences(batch).values():
        taken = [[Task(task.block_index, sequence[task.micro_batch]) for task in order] for order in orders]
        starts = earliest_starts(placement, taken, batch)
        by_hand = Schedule.of(placement, starts, micro_batches=8, batch=batch)
        assert found.makespan <= by_hand.makespan


def test_what_no_schedule_keeps_is_refused() -> None:
    placement = with_spans(vshape(2), 2)
    batch = Batch(
        classes=tuple(scaled_class(placement, name, float(name)) for name in ("1", "3")), sequence=(0, 1)
    )
    with pytest.raises(InfeasibleError, match="needs at least 6"):
        find_batch_schedule(placement, batch, memory=5)
    found = find_batch_schedule(placement, batch, memory=6, budget=SearchBudget(0.05))
    check_schedule(found)
    assert max(found.peak_memory) == 6


def test_equal_micro_batches_are_searched_as_ever() -> None:
    placement = vshape(3)
    batch = Batch(classes=(scaled_class(placement, "1", 1),), sequence=(0,) * 6)
    found = find_batch_schedule(placement, batch, memory=3, budget=SearchBudget(0.05))
    alike = find_schedule(placement, micro_batches=6, memory=3, budget=SearchBudget(0.05))
    assert (found.makespan, found.lower_bound) == (alike.makespan, alike.lower_bound)
    assert (found.placement, found.classes) == (placement, batch)


def test_a_placement_with_choices_keeps_them() -> None:
    placement = zbv(2, choose_backward=True)
    batch = Batch(
        classes=tuple(scaled_class(placement, name, float(name)) for name in ("1", "2")), sequence=(0, 1, 0)
    )
    check_schedule(find_batch_schedule(placement, batch, budget=SearchBudget(0.05)))


def test_equal_calls_give_equal_schedules_and_tell_of_progress() -> None:
    placement = vshape(3)
    batch = batch_of(placement, 6, 1, classes=6)
    told: list[Progress] = []
    first = find_batch_schedule(placement, batch, budget=SearchBudget(0.1, on_progress=told.append), seed=3)
    again = find_batch_schedule(placement, batch, budget=SearchBudget(0.1), seed=3)
    assert first.starts == again.starts
    assert told
    assert told[-1].makespan == first.makespan
