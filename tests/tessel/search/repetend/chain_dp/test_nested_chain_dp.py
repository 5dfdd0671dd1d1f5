"""Nested stages from the inside out, against branching on device orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from period_search import check_against_orders, problem_and_period

from tessel.placement import Placement
from tessel.search import find_repetend
from tessel.search.model.problem import make_problem
from tessel.search.repetend.chain_dp.chain_structure import find_nested_chain
from tessel.search.repetend.chain_dp.nested_chain_dp import NestedChainSearch
from tessel.search.repetend.cyclic_problem import make_cyclic_problem
from tessel.shapes import make_shape


@st.composite
def nested_placements(draw: st.DrawFn) -> Placement:
    num_devices = draw(st.integers(2, 5))
    spans = st.lists(st.integers(1, 3), min_size=num_devices, max_size=num_devices)
    return make_shape(
        draw(st.sampled_from(["vshape", "mshape", "nnshape", "kshape", "mllm", "finetune"])),
        num_devices,
        forward_span=draw(spans),
        backward_span=draw(spans),
        tensor_parallel_span=draw(st.integers(1, 2)),
        lag=draw(st.integers(0, 2)),
    )


@settings(max_examples=80, deadline=None)
@given(nested_placements(), st.integers(1, 6), st.integers(0, 6))
def test_slots_and_orders_agree(placement: Placement, memory: int, more: int) -> None:
    problem, cyclic, period = problem_and_period(placement, memory, more)
    stage_pairs = find_nested_chain(cyclic)
    assert stage_pairs is not None
    check_against_orders(NestedChainSearch(cyclic, stage_pairs, period), placement, problem, cyclic, period)


@pytest.mark.parametrize("shape", ["xshape", "interleaved", "alphafold"])
def test_what_is_not_nested_is_not_recognised(shape: str) -> None:
    problem = make_problem(make_shape(shape, 4), memory=6)
    assert find_nested_chain(make_cyclic_problem(problem, 1)) is None


def test_several_copies_are_not_recognised() -> None:
    assert find_nested_chain(make_cyclic_problem(make_problem(make_shape("vshape", 2), memory=2), 2)) is None


@pytest.mark.parametrize(
    ("shape", "memory", "period"),
    [("nnshape", 64, 10), ("nnshape", 32, 13), ("mshape", 64, 8), ("kshape", 64, 6), ("vshape", 64, 4)],
)
def test_sixty_four_devices_are_proven(shape: str, memory: int, period: int) -> None:
    found = find_repetend(make_shape(shape, 64), memory=memory, max_copies=1)
    assert (found.period, found.optimal) == (period, True)
