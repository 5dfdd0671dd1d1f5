"""Tabu search: every schedule it meets is valid, and it finds what is known to be best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.handwritten import HANDWRITTEN
from tessel.search.makespan.device_orders import earliest_starts, orders_of
from tessel.search.makespan.list_scheduling import NEVER, by_priority, list_schedule
from tessel.search.makespan.tabu_search import tabu_search
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule, zero_bubble_v


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["vshape", "xshape", "kshape", "nnshape", "zbv"]),
    split=st.booleans(),
    limit=st.integers(4, 8),
    num_rounds=st.integers(0, 30),
    seed=st.integers(0, 1000),
)
def test_wherever_the_search_stands_the_schedule_is_valid(
    *, shape: str, split: bool, limit: int, num_rounds: int, seed: int
) -> None:
    placement = make_shape(shape, 3, split_backward=split, forward_span=2, lag=1)
    memory = (limit,) * 3
    arrays = build_instance(placement, micro_batches=5, memory=memory).arrays
    start = np.empty(arrays.num_blocks * 5, dtype=np.int64)
    options = np.empty((0, 5), dtype=np.int64)
    priority = np.random.default_rng(seed).integers(0, 1000, len(start))
    listing = list_schedule(arrays, by_priority(arrays, priority), options, start, is_active=True)
    assert listing is not None
    before = listing.makespan[0]
    orders = orders_of(arrays, start)
    makespan, _, _ = tabu_search(arrays, orders, NEVER, 0, num_rounds, 0, seed)
    best = as_schedule(placement, arrays, orders.best, memory)
    check_schedule(best)
    assert best.makespan == makespan <= before
    # Where it stands now may be worse than the best, but is as valid, and its times are the earliest ones.
    now = orders.head.copy()
    check_schedule(as_schedule(placement, arrays, now, memory))
    assert (earliest_starts(arrays, orders) == now).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_zero_bubble_v_is_improved_to_the_proven_optimum(seed: int) -> None:
    # With 8 micro-batches 265.5 steps were proven least by CP-SAT.
    placement = zero_bubble_v()
    memory = (16,) * 4
    zero_bubble = next(rule for rule in HANDWRITTEN if rule.name == "zb-v")
    built = zero_bubble.build(placement, micro_batches=8, memory=memory)
    assert built.makespan == 539
    arrays = build_instance(placement, micro_batches=8, memory=memory).arrays
    start = np.empty(arrays.num_blocks * 8, dtype=np.int64)
    for (block, micro_batch), when in built.start_by_block().items():
        start[micro_batch * arrays.num_blocks + block] = when
    makespan, _, _ = tabu_search(arrays, orders_of(arrays, start), NEVER, 0, 20_000, 531, seed)
    assert makespan == 531
