"""Bounds on the steps a micro-batch takes, and the memory it needs, against exhaustive search."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError
from tessel.placement import Block, Edge, Placement
from tessel.search import find_repetend
from tessel.search.budget import SearchBudget
from tessel.search.model import memory_need
from tessel.search.model.instance import build_instance
from tessel.search.model.memory_need import least_memory
from tessel.search.model.problem import Problem, make_problem, options
from tessel.search.repetend.assignments import relaxed_bound
from tessel.search.repetend.period_bounds import device_bounds
from tessel.shapes import make_shape


@st.composite
def one_device_placements(draw: st.DrawFn) -> Placement:
    """Up to six blocks that add and free units on one device, in total none, some after others."""
    units = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=5))
    units.append(-sum(units))
    blocks = tuple(
        Block(name=f"b{index}", devices=(0,), span=draw(st.integers(1, 4)), memory=number)
        for index, number in enumerate(units)
    )
    ends = st.integers(0, len(units) - 1)
    edges = draw(st.sets(st.tuples(ends, ends), max_size=6))
    return Placement(
        devices=1,
        blocks=blocks,
        edges=tuple(Edge(f"b{u}", f"b{v}", draw(st.integers(0, 3))) for u, v in sorted(edges) if u < v),
    )


def least_peak(problem: Problem) -> int:
    edges = set(zip(problem.sources.tolist(), problem.targets.tolist(), strict=True))
    peaks = []
    for order in permutations(range(problem.num_blocks)):
        if any(order.index(u) > order.index(v) for u, v in edges):
            continue
        held = peak = 0
        for block in order:
            held += int(problem.memory[block])
            peak = max(peak, held)
        peaks.append(peak)
    return min(peaks)


@settings(max_examples=60, deadline=None)
@given(one_device_placements())
def test_least_memory_is_that_of_the_best_order(placement: Placement) -> None:
    problem = make_problem(placement, memory=None)
    assert least_memory(problem, 0) == least_peak(problem)


@settings(max_examples=60, deadline=None)
@given(one_device_placements())
def test_with_many_blocks_the_least_memory_is_a_bound(placement: Placement) -> None:
    problem = make_problem(placement, memory=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_need, "MAX_BLOCKS_ORDERED", 0)
        assert least_memory(problem, 0) <= least_peak(problem)


@settings(max_examples=60, deadline=None)
@given(one_device_placements(), st.integers(1, 6), st.integers(1, 3))
def test_no_repetend_beats_the_bound(placement: Placement, memory: int, copies: int) -> None:
    bound = max(device_bounds(make_problem(placement, memory=memory)))
    try:
        found = find_repetend(placement, memory=memory, max_copies=copies, budget=SearchBudget(2))
    except InfeasibleError:
        return
    assert bound <= found.rate
    assert found.rate_lower_bound == bound


@pytest.mark.parametrize(
    ("memory", "bound"), [(1, Fraction(16)), (2, Fraction(8)), (3, Fraction(16, 3)), (4, Fraction(4))]
)
def test_the_bound_of_a_chain_is_its_live_time_over_the_limit(memory: int, bound: Fraction) -> None:
    # device 0 holds a unit from step 0 to 16: four forwards, then four backwards of three steps
    assert max(device_bounds(make_problem(make_shape("vshape", 4), memory=memory))) == bound


def test_the_least_memory_of_many_blocks_in_a_chain_is_exact() -> None:
    blocks = tuple(
        Block(name=f"{kind}{stage}", devices=(0,), memory=2 if kind == "f" else -2)
        for kind in "fb"
        for stage in range(12)
    )
    chain = [f"f{stage}" for stage in range(12)] + [f"b{stage}" for stage in reversed(range(12))]
    edges = tuple(Edge(source, target) for source, target in pairwise(chain))
    problem = make_problem(Placement(devices=1, blocks=blocks, edges=edges), memory=None)
    assert least_memory(problem, 0) == 24


def test_units_are_matched_for_the_longest_life() -> None:
    blocks = (
        Block(name="a", devices=(0,), memory=1),
        Block(name="b", devices=(0,), memory=1),
        Block(name="c", devices=(0,), memory=-1),
        Block(name="d", devices=(0,), memory=-1),
    )
    placement = Placement(
        devices=1, blocks=blocks, edges=(Edge("a", "c", 9), Edge("b", "c"), Edge("c", "d"), Edge("a", "b"))
    )
    # a lifetimes 11 steps if it ends with c, and b two more with d; the other way round a 12 and b 10
    assert max(device_bounds(make_problem(placement, memory=2))) >= Fraction(11 + 3, 2)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["vshape", "mshape", "zbv"]),
    st.integers(2, 3),
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
    st.integers(4, 8),
    st.integers(0, 2),
)
def test_a_bound_without_trying_all_options_is_never_above_one_with(
    shape: str, num_devices: int, spans: tuple[int, int, int], memory: int, lag: int
) -> None:
    placement = make_shape(
        shape,
        num_devices,
        choose_backward=True,
        forward_memory=2,
        backward_memory=-2,
        backward_span=spans[0],
        backward_input_span=spans[1],
        backward_weight_span=spans[2],
        lag=lag,
    )
    problems = [make_problem(placement, memory=memory, option_indices=taken) for taken in options(placement)]
    instance = build_instance(placement, micro_batches=1, memory=memory)
    for device in range(num_devices):
        least = min(device_bounds(problem)[device] for problem in problems)
        assert relaxed_bound(instance, device, max_combinations=64) <= least


def test_a_device_of_one_choice_is_bound_by_its_own_options() -> None:
    placement = make_shape(
        "vshape", 12, choose_backward=True, backward_span=4, backward_input_span=3, backward_weight_span=2
    )
    found = find_repetend(placement, memory=12, max_copies=1, budget=SearchBudget(5))
    assert found.rate_lower_bound == 5
    assert found.rate_optimal
