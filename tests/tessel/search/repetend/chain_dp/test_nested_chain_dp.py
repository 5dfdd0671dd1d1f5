"""Nested stages from the inside out, against branching on device orders."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search import find_repetend
from tessel.search.model.problem import make_problem
from tessel.search.repetend.branch_and_bound import Feasibility, OrderSearch
from tessel.search.repetend.chain_dp.chain_structure import find_nested_chain
from tessel.search.repetend.chain_dp.nested_chain_dp import NestedChainSearch
from tessel.search.repetend.cyclic_problem import make_cyclic_problem
from tessel.search.repetend.cyclic_starts import close_up
from tessel.search.repetend.infeasibility import limit_violation
from tessel.search.repetend.period_bounds import rate_bound
from tessel.shapes import make_shape
from tessel.validation import find_violations

MANY_STEPS = 10**9


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
def test_moments_and_orders_agree(placement: Placement, memory: int, more: int) -> None:
    problem = make_problem(placement, memory=memory)
    assume(limit_violation(problem) is None)
    cyclic = make_cyclic_problem(problem, 1)
    stage_pairs = find_nested_chain(cyclic)
    assert stage_pairs is not None
    period = int(-(-rate_bound(problem) // 1)) + more
    search = NestedChainSearch(cyclic, stage_pairs, period)
    while search.run(MANY_STEPS) is Feasibility.UNKNOWN:
        assert not search.is_stuck
    assert search.answer is OrderSearch(cyclic, period).run(MANY_STEPS)
    if search.starts is None:
        return
    starts = close_up(cyclic, search.starts, period)
    schedule = Schedule.of(
        placement,
        {
            (block, m): int(starts[0, block]) + m * period
            for block in range(problem.num_blocks)
            for m in range(6)
        },
        micro_batches=6,
        memory=problem.limits_or_none,
    )
    assert find_violations(schedule) == ()


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
