"""A window built anew: valid whatever the priorities, nothing else moved back, stuck rather than wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import copy_of, listed

from tessel.search.makespan.incumbent import makespan_of
from tessel.search.makespan.window_rebuild import INFEASIBLE, rebuild
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape, vshape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["vshape", "xshape", "kshape", "nnshape", "zbv"]),
    is_choice=st.booleans(),
    limit=st.integers(4, 8),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    is_active=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whatever_is_built_is_valid_and_begins_as_before(
    *, shape: str, is_choice: bool, limit: int, ends: tuple[int, int], is_active: bool, seed: int
) -> None:
    placement = make_shape(shape, 3, choose_backward=is_choice, forward_span=2, lag=1)
    memory = (limit,) * 3
    instance = build_instance(placement, micro_batches=5, memory=memory)
    arrays, current = instance.arrays, listed(instance, seed)
    begin, end = (round(len(current.sequence) * part / 100) for part in sorted(ends))
    begin = min(begin, len(current.sequence) - 1)
    end = max(begin + 1, end)
    priority = np.random.default_rng(seed + 1).integers(0, 1000, end - begin)
    trial, before = copy_of(current), copy_of(current)
    makespan = rebuild(arrays, current, begin, end, priority, is_active, trial)
    assert all((now == then).all() for now, then in zip(current, before, strict=True))
    if makespan == INFEASIBLE:
        return
    found = as_schedule(placement, arrays, trial.start, memory)
    check_schedule(found)
    assert found.makespan == makespan
    assert (trial.sequence[:begin] == current.sequence[:begin]).all()
    assert (trial.sequence[end:] == current.sequence[end:]).all()
    assert (trial.rank[trial.sequence] == np.arange(len(trial.sequence))).all()
    blocks, micro_batches = trial.sequence % arrays.num_blocks, trial.sequence // arrays.num_blocks
    for block in range(arrays.num_blocks):
        assert (np.diff(micro_batches[blocks == block]) > 0).all()


def test_the_present_starts_as_priorities_change_nothing_that_is_tight() -> None:
    instance = build_instance(vshape(4), micro_batches=8, memory=4)
    current = listed(instance, 0)
    start = current.start[current.sequence]
    trial = copy_of(current)
    makespan = rebuild(instance.arrays, current, 0, len(start), start, True, trial)
    assert 0 < makespan <= makespan_of(instance.arrays, current.start)


def test_priorities_that_fill_the_memory_get_stuck() -> None:
    # One device, two chunks, room for three: three forwards of the first chunk leave none for the second.
    placement = make_shape("zbv", 1, backward_span=1)
    instance = build_instance(placement, micro_batches=4, memory=3)
    current = listed(instance, 0)
    is_first = np.array([block.name == "f0" for block in placement.blocks])
    priority = np.where(is_first[current.sequence % instance.num_blocks], 0, 1)
    assert (
        rebuild(instance.arrays, current, 0, len(priority), priority, False, copy_of(current)) == INFEASIBLE
    )
