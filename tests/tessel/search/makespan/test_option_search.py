"""The descent over options: valid schedules, never longer, and as short as is known to be possible."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cpsat.makespan import solve_makespan
from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.list_scheduling import by_priority, list_schedule
from tessel.search.makespan.option_search import OptionSearch, start_in_sequence
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.model.instance import Instance, build_instance
from tessel.shapes import make_shape, vshape
from tessel.validation import check_schedule
from tests.samples.schedule_samples import as_schedule


def listed(instance: Instance, option: int, seed: int) -> Incumbent:
    """Return a list schedule by random urgencies, all micro-batches with one option; -1 leaves them open."""
    arrays = instance.arrays
    start = np.empty(instance.num_tasks, dtype=np.int64)
    options = np.full((len(arrays.default_option), arrays.micro_batches), option, dtype=np.int64)
    dispatch = by_priority(arrays, np.random.default_rng(seed).integers(0, 99, len(start)))
    list_schedule(arrays, dispatch, options, start, is_active=True)
    best = Incumbent(instance, makespan_lower_bound(instance), SearchBudget(5.0))
    best.offer(start, "list scheduling")
    return best


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["vshape", "zbv", "kshape"]),
    limit=st.integers(4, 9),
    option=st.integers(-1, 1),
    seed=st.integers(0, 1000),
)
def test_what_is_found_is_valid_and_no_longer(*, shape: str, limit: int, option: int, seed: int) -> None:
    placement = make_shape(shape, 3, choose_backward=True, forward_memory=2, backward_memory=-2)
    memory = (limit,) * 3
    best = listed(build_instance(placement, micro_batches=4, memory=memory), option, seed)
    before, search = best.makespan, OptionSearch(best)
    for _ in range(30):
        search.search_round()
    assert best.makespan <= before
    check_schedule(as_schedule(placement, best.instance.arrays, best.best.start, memory))
    # What it stands at is as it says, also where that is no better than the best.
    if len(search.sequence):
        found = as_schedule(placement, best.instance.arrays, search.start, memory)
        check_schedule(found)
        assert found.makespan == search.makespan


def test_a_joint_backward_is_split_where_its_weight_half_fits_an_idle_place() -> None:
    """Only the last backward of the last device is worth splitting: its halves run on two sides of a hop."""
    placement = vshape(
        2, choose_backward=True, backward_span=4, backward_input_span=2, backward_weight_span=3, lag=1
    )
    best = listed(build_instance(placement, micro_batches=2, memory=None), 0, 0)
    all_joint, search = best.makespan, OptionSearch(best)
    for _ in range(10):
        search.search_round()
    truth = solve_makespan(placement, micro_batches=2, memory=None, time_limit_s=60.0)
    assert best.makespan == truth.makespan == truth.lower_bound < all_joint


def tight_chain(devices: int) -> Placement:
    """Return stages of F : B : W = 1 : 1.3 : 1, joint backwards of 2.2, and a head 1.6 times as long."""
    factors = [1.12] + [1.0] * (devices - 2) + [1.6]

    def spans(share: float) -> list[int]:
        return [round(600 * share * factor) for factor in factors]

    return vshape(
        devices, forward_span=spans(1), backward_span=spans(2.2), backward_input_span=spans(1.3),
        backward_weight_span=spans(1), forward_memory=2, backward_memory=-2, lag=30, choose_backward=True,
    )  # fmt: skip


def test_a_chain_at_full_memory_is_proven_optimal_by_mixing_joint_and_split_backwards() -> None:
    def find(**options: MakespanParams) -> int:
        return find_schedule(
            tight_chain(8), micro_batches=16, memory=16, budget=SearchBudget(1.0), **options
        ).makespan

    assert find(params=MakespanParams(left_out=frozenset({Phase.OPTIONS}))) == 55170
    found = find_schedule(tight_chain(8), micro_batches=16, memory=16, budget=SearchBudget(1.0))
    check_schedule(found)
    assert (found.makespan, found.lower_bound) == (54306, 54306)


def test_sequence_that_breaks_an_edge_or_a_limit_is_refused() -> None:
    placement = make_shape("vshape", 1)
    options = np.empty((0, 2), dtype=np.int64)
    arrays = build_instance(placement, micro_batches=2, memory=(1,)).arrays
    for sequence, is_valid in (([0, 1, 2, 3], True), ([1, 0, 2, 3], False), ([0, 2, 1, 3], False)):
        start = np.full(4, -1, dtype=np.int64)
        assert start_in_sequence(arrays, np.array(sequence), options, start) == is_valid
