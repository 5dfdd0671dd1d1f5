"""Nested stages from the inside out, against branching on device orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from period_search import check_against_orders, problem_and_period

from tessel.placement import Placement
from tessel.search import find_repetend
from tessel.search.model.problem import make_problem
from tessel.search.repetend.chain_dp.chain_structure import find_nested_chain
from tessel.search.repetend.chain_dp.nested_chain_dp import MAX_WORK_EACH, NestedChainSearch
from tessel.search.repetend.chain_dp.nested_chain_kernel import list_slots
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


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 7))
def test_slots_listed_are_all_that_do_not_overlap(data: st.DataObject, count: int, period: int) -> None:
    spans = np.array(data.draw(st.lists(st.integers(0, period), min_size=count, max_size=count)))
    shared = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count**2, max_size=count**2)))
    shared = shared.reshape(count, count) | shared.reshape(count, count).T

    def is_free(slots: tuple[int, ...]) -> bool:
        return not any(
            shared[one, other]
            and (
                (slots[other] - slots[one]) % period < spans[one]
                or (slots[one] - slots[other]) % period < spans[other]
            )
            for one, other in itertools.combinations(range(count), 2)
        )

    expected = [
        (0, *rest) for rest in itertools.product(range(period), repeat=count - 1) if is_free((0, *rest))
    ]
    listed, tried = list_slots(spans, shared, period, 10_000, 10_000)
    assert [tuple(row) for row in listed.tolist()] == expected
    assert tried <= 10_000


def test_listing_ends_where_hardly_anything_fits() -> None:
    """Ten blocks leave one step free: nearly every try is a dead end, and there were 10^20 of them."""
    spans = np.array([100] * 9 + [101, 99])
    shared = np.ones((11, 11), dtype=np.int64)
    _, tried = list_slots(spans, shared, 1099, 1_000, 100_000)
    assert tried == 100_001


def test_periods_whose_states_fill_the_memory_are_not_begun() -> None:
    cyclic = make_cyclic_problem(make_problem(make_shape("mshape", 4), memory=4), 1)
    stage_pairs = find_nested_chain(cyclic)
    assert stage_pairs is not None
    period = 1 + int((MAX_WORK_EACH / 8 / len(stage_pairs.stage_pairs)) ** 0.5)
    search = NestedChainSearch(cyclic, stage_pairs, period)
    search.run(10**9)
    assert search.is_stuck


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
