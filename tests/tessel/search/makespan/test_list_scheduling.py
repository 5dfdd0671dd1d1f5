"""List schedules: valid whatever the priorities, and stuck under no limit that one micro-batch keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessel.search.budget import SearchBudget
from tessel.search.makespan.list_scheduling import by_priority, dispatching, list_schedule
from tessel.search.model.instance import build_instance
from tessel.search.model.memory_need import least_memory
from tessel.search.model.problem import make_problem
from tessel.shapes import make_shape, vshape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.sampled_from(["vshape", "xshape", "kshape", "nnshape", "zbv", "interleaved"]),
    variant=st.sampled_from(["split_backward", "choose_backward", "recompute"]),
    extra=st.integers(0, 2),
    micro_batches=st.integers(1, 6),
    is_active=st.booleans(),
    looks_ahead=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_priorities_give_a_valid_schedule_under_the_tightest_limits(
    monkeypatch: pytest.MonkeyPatch,
    *,
    shape: str,
    variant: str,
    extra: int,
    micro_batches: int,
    is_active: bool,
    looks_ahead: bool,
    seed: int,
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
    monkeypatch.setattr(dispatching, "MAX_LOOK_AHEAD", 1_000_000 if looks_ahead else 0)
    listing = list_schedule(arrays, by_priority(arrays, priority), options, start, is_active=is_active)
    schedule = as_schedule(placement, arrays, start, memory)
    check_schedule(schedule)
    assert listing is not None
    assert schedule.makespan == listing.makespan[0]
    assert all(peak <= most for peak, most in zip(schedule.peak_memory, listing.peak, strict=True))


@pytest.mark.parametrize("is_active", [False, True])
def test_most_urgent_task_goes_first(is_active: bool) -> None:
    arrays = build_instance(vshape(1), micro_batches=3, memory=None).arrays
    start = np.empty(6, dtype=np.int64)
    options = np.empty((0, 3), dtype=np.int64)
    for priority, expected in (
        ([1, 0, 1, 0, 1, 0], [0, 1, 4, 5, 8, 9]),  # backward first
        ([0, 1, 0, 1, 0, 1], [0, 3, 1, 6, 2, 9]),
    ):
        dispatch = by_priority(arrays, np.array(priority, dtype=np.int64))
        listing = list_schedule(arrays, dispatch, options, start, is_active=is_active)
        assert listing is not None
        assert listing.makespan[0] == 12
        assert start.tolist() == expected


def test_a_listing_ends_when_its_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = build_instance(vshape(2), micro_batches=8, memory=None).arrays
    dispatch = by_priority(arrays, np.arange(arrays.num_blocks * 8, dtype=np.int64))
    options = np.empty((0, 8), dtype=np.int64)
    whole, cut = np.empty((2, len(dispatch.priority)), dtype=np.int64)
    list_schedule(arrays, dispatch, options, whole, is_active=True)
    monkeypatch.setattr(dispatching, "TASKS_A_ROUND", 1)
    budget = SearchBudget(1.0)
    assert list_schedule(arrays, dispatch, options, cut, budget, is_active=True) is not None
    assert (cut == whole).all()
    operations = dispatching.OPERATIONS_A_TASK + arrays.num_blocks * dispatching.OPERATIONS_A_LOOK
    assert budget.operations == len(whole) * operations
    assert list_schedule(arrays, dispatch, options, cut, SearchBudget(0.0), is_active=True) is None


def test_work_grows_with_the_tasks_and_not_with_their_square() -> None:
    charged = []
    for devices in (64, 128):
        arrays = build_instance(vshape(devices), micro_batches=64, memory=devices).arrays
        budget = SearchBudget(100.0)
        dispatch = by_priority(arrays, np.arange(arrays.num_blocks * 64, dtype=np.int64))
        start = np.empty(len(dispatch.priority), dtype=np.int64)
        assert list_schedule(arrays, dispatch, np.empty((0, 64), dtype=np.int64), start, budget) is not None
        charged.append(budget.operations)
    assert charged[1] == 2 * charged[0]
