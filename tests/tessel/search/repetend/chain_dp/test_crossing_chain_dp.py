"""Crossing chains by dynamic programming, against branching on device orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from period_search import check_against_orders, problem_and_period

from tessel.placement import Placement
from tessel.search import find_repetend
from tessel.search.model.problem import make_problem
from tessel.search.repetend.chain_dp.chain_structure import find_crossing_chains
from tessel.search.repetend.chain_dp.crossing_chain_dp import CrossingSearch
from tessel.search.repetend.cyclic_problem import make_cyclic_problem
from tessel.shapes import make_shape


@st.composite
def crossing_placements(draw: st.DrawFn) -> Placement:
    num_devices = draw(st.integers(1, 4))
    spans = st.lists(st.integers(1, 3), min_size=2 * num_devices, max_size=2 * num_devices)
    units = draw(st.lists(st.integers(1, 2), min_size=2 * num_devices, max_size=2 * num_devices))
    return make_shape(
        "xshape",
        num_devices,
        forward_span=draw(spans),
        backward_span=draw(spans),
        forward_memory=units,
        backward_memory=[-number for number in units],
        lag=draw(st.integers(0, 2)),
    )


@settings(max_examples=80, deadline=None)
@given(crossing_placements(), st.integers(2, 8), st.integers(0, 4))
def test_slots_and_orders_agree(placement: Placement, memory: int, more: int) -> None:
    problem, cyclic, period = problem_and_period(placement, memory, more)
    chains = find_crossing_chains(cyclic)
    assert chains is not None
    check_against_orders(CrossingSearch(cyclic, chains, period), placement, problem, cyclic, period)


@pytest.mark.parametrize("shape", ["vshape", "mshape", "interleaved", "kshape"])
def test_what_does_not_cross_is_not_recognised(shape: str) -> None:
    problem = make_problem(make_shape(shape, 4), memory=6)
    assert find_crossing_chains(make_cyclic_problem(problem, 1)) is None


def test_thirty_two_devices_are_proven_under_a_tight_limit() -> None:
    found = find_repetend(make_shape("xshape", 32), memory=16, max_copies=1)
    assert (found.period, found.optimal) == (13, True)
