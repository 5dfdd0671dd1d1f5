"""List schedules: valid whatever the priorities, and stuck under no limit that one micro-batch keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.search.budget import SearchBudget
from tessel.search.makespan import list_scheduling as serial
from tessel.search.makespan.list_scheduling import list_schedule
from tessel.search.model.instance import build_instance
from tessel.search.model.memory_need import least_memory
from tessel.search.model.problem import make_problem
from tessel.shapes import make_shape, vshape
from tessel.validation import check_schedule
from tests.schedule_samples import as_schedule


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["vshape", "xshape", "kshape", "nnshape", "zbv", "interleaved"]),
    variant=st.sampled_from(["split_backward", "choose_backward", "recompute"]),
    extra=st.integers(0, 2),
    micro_batches=st.integers(1, 6),
    is_active=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_priorities_give_a_valid_schedule_under_the_tightest_limits(
    *, shape: str, variant: str, extra: int, micro_batches: int, is_active: bool, seed: int
) -> None:
    placement = make_shape(
        shape, 3, forward_memory=2, backward_memory=-2, recompute_memory=0, **{variant: True}
    )
    fixed = make_problem(placement, memory=None)
    memory = tuple(least_memory(fixed, device) + extra for device in range(3))
    arrays = build_instance(placement, micro_batches=micro_batches, memory=memory).arrays
    rng = np.random.default_rng(seed)
    num_tasks = arrays.num_blocks * micro_batches
    priority = rng.integers(0, 1000, num_tasks)
    options = np.full((len(placement.choices), micro_batches), -1, dtype=np.int64)
    start = np.empty(num_tasks, dtype=np.int64)
    makespan = list_schedule(arrays, priority, options, is_active, start)
    schedule = as_schedule(placement, arrays, start, memory)
    check_schedule(schedule)
    assert schedule.makespan == makespan


@pytest.mark.parametrize("is_active", [False, True])
def test_most_urgent_task_goes_first(is_active: bool) -> None:
    arrays = build_instance(vshape(1), micro_batches=3, memory=None).arrays
    start = np.empty(6, dtype=np.int64)
    options = np.empty((0, 3), dtype=np.int64)
    backward_first = np.array([1, 0, 1, 0, 1, 0])
    assert list_schedule(arrays, backward_first, options, is_active, start) == 12
    assert start.tolist() == [0, 1, 4, 5, 8, 9]
    forward_first = np.array([0, 1, 0, 1, 0, 1])
    assert list_schedule(arrays, forward_first, options, is_active, start) == 12
    assert start.tolist() == [0, 3, 1, 6, 2, 9]


def test_a_listing_ends_when_its_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = build_instance(vshape(2), micro_batches=8, memory=None).arrays
    priority = np.arange(arrays.num_blocks * 8, dtype=np.int64)
    options = np.empty((0, 8), dtype=np.int64)
    whole, cut = np.empty((2, len(priority)), dtype=np.int64)
    makespan = list_schedule(arrays, priority, options, True, whole)
    monkeypatch.setattr(serial, "MAX_LOOKS", 1)
    budget = SearchBudget(1.0)
    assert list_schedule(arrays, priority, options, True, cut, budget) == makespan
    assert (cut == whole).all()
    assert budget.operations == len(whole) * arrays.num_blocks * serial.OPERATIONS_A_LOOK
    assert list_schedule(arrays, priority, options, True, cut, SearchBudget(0.0)) == -1
