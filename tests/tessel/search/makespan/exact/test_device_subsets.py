"""Exact search of a few devices: its bounds are true, by CP-SAT, and say more than single devices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.placement import Placement
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.choice_relaxation import without_choices
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.exact.attempt import Attempt
from tessel.search.makespan.exact.count_model import count_model
from tessel.search.makespan.exact.device_subsets import DeviceSubsetSearch
from tessel.search.makespan.exact.exact_search import ExactSearch
from tessel.search.makespan.exact.prover import Prover
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.initial_schedules import offer_serial
from tessel.search.makespan.params import MakespanParams
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape
from tests.oracles.makespan_oracle import least_makespan_by_cpsat

ALONE = MakespanParams(subset_share=1.0, work_before_subsets=0.0, first_bound_work=100.0)


@st.composite
def tight_pipelines(draw: st.DrawFn) -> tuple[Placement, int, int]:
    """Chains and Vs of unequal stages on two or three devices, split or with a choice, under tight limits."""
    devices = draw(st.integers(2, 3))
    shape = draw(st.sampled_from(["vshape", "zbv"]))
    num_stages = devices * (2 if shape == "zbv" else 1)
    spans = st.lists(st.integers(1, 4), min_size=num_stages, max_size=num_stages)
    is_choice = draw(st.booleans())
    placement = make_shape(
        shape,
        devices,
        forward_span=draw(spans),
        backward_span=draw(spans),
        backward_input_span=draw(spans),
        backward_weight_span=draw(spans),
        forward_memory=2,
        backward_memory=-2,
        lag=draw(st.integers(0, 2)),
        split_backward=not is_choice,
        choose_backward=is_choice,
    )
    micro_batches = draw(st.integers(2, 4 if shape == "vshape" and not is_choice else 2))
    return placement, micro_batches, draw(st.sampled_from([2, 4] if shape == "vshape" else [4, 6]))


def bounds_of(placement: Placement, micro_batches: int, memory: int) -> tuple[int, int, DeviceSubsetSearch]:
    """Return the bound of the diagrams of single devices, the one of the subsets, and their search."""
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    best = Incumbent(instance, makespan_lower_bound(instance), SearchBudget(40.0), params=ALONE)
    offer_serial(best)
    prover, exact = Prover.of(best), ExactSearch.of(best)
    while len(prover.bounds) < placement.devices or prover.current is not None:
        prover._advance()
    alone = best.lower_bound
    exact.is_done = True
    subsets = DeviceSubsetSearch.of(best, prover, exact)
    subsets.run()
    return alone, best.lower_bound, subsets


@settings(max_examples=10, deadline=None)
@given(case=tight_pipelines())
def test_every_layer_of_all_devices_proves_more_and_none_too_much(case: tuple[Placement, int, int]) -> None:
    placement, micro_batches, memory = case
    relaxed = without_choices(placement)
    assert relaxed is not None
    instance = build_instance(relaxed, micro_batches=micro_batches, memory=memory)
    model = count_model(instance)
    assert model is not None
    truth = least_makespan_by_cpsat(relaxed, micro_batches, (memory,) * placement.devices)
    assert truth is not None
    attempt, proven = Attempt(model, truth + 5, 1 << 14, keeps_history=False), [0]
    while not attempt.is_over:
        attempt.advance(truth + 5)
        proven.append(attempt.proven)
    assert proven == sorted(proven)
    assert proven[-1] == truth


@settings(max_examples=20, deadline=None)
@given(case=tight_pipelines())
def test_nothing_is_proven_that_is_not_true(case: tuple[Placement, int, int]) -> None:
    placement, micro_batches, memory = case
    _, bound, subsets = bounds_of(placement, micro_batches, memory)
    assert subsets.is_done or subsets.best.is_over
    truth = least_makespan_by_cpsat(placement, micro_batches, (memory,) * placement.devices)
    assert truth is not None
    assert bound <= truth


@pytest.mark.parametrize(
    ("shape", "devices", "memory", "bounds"), [("vshape", 4, 4, (465, 481)), ("zbv", 4, 6, (962, 1022))]
)
def test_a_few_devices_say_more_than_one(
    shape: str, devices: int, memory: int, bounds: tuple[int, int]
) -> None:
    placement = make_shape(
        shape,
        devices,
        forward_span=10,
        backward_input_span=13,
        backward_weight_span=10,
        forward_memory=2,
        lag=1,
        split_backward=True,
    )
    alone, found, subsets = bounds_of(placement, 8, memory)
    assert subsets.is_done or subsets.best.is_over
    assert (alone, found) == bounds
