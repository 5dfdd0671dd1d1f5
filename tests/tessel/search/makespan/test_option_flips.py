"""Flipping options: what comes back is a valid schedule that runs the options asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.search.makespan.incumbent import options_of
from tessel.search.makespan.list_scheduling import by_priority, list_schedule
from tessel.search.makespan.option_flips import flip_options, start_in_sequence, with_options
from tessel.search.model.instance import IntArray, build_instance
from tessel.shapes import make_shape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["vshape", "zbv", "kshape"]),
    limit=st.integers(4, 9),
    option=st.integers(-1, 1),
    seed=st.integers(0, 1000),
)
def test_schedule_with_flipped_options_is_valid(*, shape: str, limit: int, option: int, seed: int) -> None:
    placement = make_shape(shape, 3, choose_backward=True, forward_memory=2, backward_memory=-2)
    memory = (limit,) * 3
    arrays = build_instance(placement, micro_batches=4, memory=memory).arrays
    start = np.empty(arrays.num_blocks * 4, dtype=np.int64)
    options = np.full((len(placement.choices), 4), option, dtype=np.int64)
    dispatch = by_priority(arrays, np.random.default_rng(seed).integers(0, 99, len(start)))
    list_schedule(arrays, dispatch, options, start, is_active=True)
    flipped, state = flip_options(arrays, start, seed)
    assert state != seed
    if flipped is not None:
        check_schedule(as_schedule(placement, arrays, flipped, memory))


def test_all_split_becomes_all_joint_and_back() -> None:
    placement = make_shape("vshape", 2, choose_backward=True, backward_input_span=2, backward_weight_span=2)
    arrays = build_instance(placement, micro_batches=2, memory=None).arrays
    split: IntArray = np.ones((2, 2), dtype=np.int64)
    start = np.empty(arrays.num_blocks * 2, dtype=np.int64)
    list_schedule(arrays, by_priority(arrays, np.arange(len(start))), split.copy(), start, is_active=True)
    joint = with_options(arrays, start, np.zeros((2, 2), dtype=np.int64))
    assert joint is not None
    assert (options_of(arrays, joint) == 0).all()
    again = with_options(arrays, joint, split)
    assert again is not None
    assert (options_of(arrays, again) == 1).all()


def test_sequence_that_breaks_an_edge_or_a_limit_is_refused() -> None:
    placement = make_shape("vshape", 1)
    options = np.empty((0, 2), dtype=np.int64)
    arrays = build_instance(placement, micro_batches=2, memory=(1,)).arrays
    for sequence, is_valid in (([0, 1, 2, 3], True), ([1, 0, 2, 3], False), ([0, 2, 1, 3], False)):
        start = np.full(4, -1, dtype=np.int64)
        assert start_in_sequence(arrays, np.array(sequence), options, start) == is_valid
