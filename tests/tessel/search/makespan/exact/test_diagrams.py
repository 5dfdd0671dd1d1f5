"""Diagrams against exhaustive search and CP-SAT: never above the least makespan, and often equal to it."""

from __future__ import annotations

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError
from tessel.placement import Block, Placement
from tessel.search import find_schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape, vshape
from tessel.validation import check_schedule
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.schedule_samples import Case, bound_of_diagram, zero_bubble_v

FAR = 1 << 40


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    """Shapes with unequal spans, lags and tight limits on two to four devices."""
    shape = draw(st.sampled_from(["vshape", "xshape", "mshape", "nnshape", "kshape", "zbv", "interleaved"]))
    devices = draw(st.sampled_from([2, 4] if shape in ("xshape", "kshape") else [2, 3]))
    spans = st.integers(1, 6)
    split = draw(st.booleans())
    placement = make_shape(
        shape,
        devices,
        forward_span=draw(spans),
        **(
            {"backward_input_span": draw(spans), "backward_weight_span": draw(spans)}
            if split
            else {"backward_span": draw(spans)}
        ),
        split_backward=split,
        forward_memory=2,
        backward_memory=-2,
        lag=draw(st.integers(0, 3)),
    )
    limit = draw(st.none() | st.integers(2, 8))
    micro_batches = draw(st.integers(1, 4 if len(placement.blocks) <= 8 else 2))
    return placement, micro_batches, None if limit is None else (limit,) * devices


@settings(max_examples=10, deadline=None)
@given(case=small_cases())
def test_the_search_finds_what_the_general_solver_finds(case: Case) -> None:
    placement, micro_batches, memory = case
    truth = least_makespan_by_cpsat(*case)
    if truth is None:
        return
    found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=SearchBudget(3))
    check_schedule(found)
    assert found.lower_bound <= truth == found.makespan
    assert not found.optimal or found.lower_bound == truth


@settings(max_examples=20, deadline=None)
@given(case=small_cases())
def test_a_known_makespan_only_helps(case: Case) -> None:
    placement, micro_batches, memory = case
    try:
        instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    except InfeasibleError:
        reject()
    for device in range(placement.devices):
        far = bound_of_diagram(instance, (device,), FAR)
        assert bound_of_diagram(instance, (device,), far + 1) >= far
        assert bound_of_diagram(instance, (device,), far) == far


@pytest.mark.parametrize(
    ("memory", "makespan"),
    [(1, 128), (2, 68), (3, 52), (4, 44)],
)
def test_four_device_chain_is_proven_under_every_limit(memory: int, makespan: int) -> None:
    found = find_schedule(vshape(4), micro_batches=8, memory=memory, budget=SearchBudget(3))
    assert (found.makespan, found.optimal) == (makespan, True)


@pytest.mark.parametrize(
    ("shape", "memory", "makespan"),
    [
        ("xshape", 4, 70),
        ("mshape", 6, 60),
        pytest.param("nnshape", 6, 76, marks=pytest.mark.slow),
        ("kshape", 6, 52),
    ],
)
def test_known_totals_are_proven_least(shape: str, memory: int, makespan: int) -> None:
    placement = make_shape(shape, 4)
    found = find_schedule(placement, micro_batches=8, memory=memory, budget=SearchBudget(2))
    assert (found.makespan, found.optimal) == (makespan, True)


def test_the_zero_bubble_v_is_proven_least() -> None:
    placement = zero_bubble_v()
    case = (placement, 8, (16,) * 4)
    assert max(bounds_of_devices(case)) == 531
    assert makespan_lower_bound(build_instance(placement, micro_batches=8, memory=16)) == 531


def bounds_of_devices(case: Case) -> list[int]:
    placement, micro_batches, memory = case
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    return [bound_of_diagram(instance, (device,), FAR) for device in range(placement.devices)]


def test_blocks_without_a_span_that_hold_memory_say_nothing() -> None:
    placement = Placement(devices=1, blocks=(Block(name="f", devices=(0,), span=0, memory=1),))
    assert bound_of_diagram(build_instance(placement, micro_batches=2, memory=None), (0,), FAR) == 0
