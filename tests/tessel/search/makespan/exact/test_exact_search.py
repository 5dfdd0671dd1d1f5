"""The exact search against exhaustive search and CP-SAT: its bounds are true, and without choices least."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.errors import InfeasibleError
from tessel.placement import Block, Choice, Edge, Placement
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.exact.exact_search import ExactSearch
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.initial_schedules import offer_serial
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.makespan.repeating_part import schedule_of
from tessel.search.model.instance import build_instance
from tessel.shapes import make_shape
from tessel.validation import check_schedule
from tests.oracles.makespan_oracle import least_makespan_by_cpsat
from tests.samples.schedule_samples import Case, least_makespan, tiny_cases

ALONE = MakespanParams(exact_share=1.0, first_exact_work=100.0)


@st.composite
def moving_cases(draw: st.DrawFn) -> Case:
    """Two or three blocks a micro-batch, of which some run on either of two devices, at different spans."""
    blocks: list[Block] = []
    choices: list[Choice] = []
    names: list[list[str]] = []
    num_stages = draw(st.integers(2, 3))
    for stage in range(num_stages):
        held = [0, 1] if len(choices) < 2 and draw(st.booleans()) else [draw(st.integers(0, 1))]
        row = [f"x{stage}_{device}" for device in held]
        for name, device in zip(row, held, strict=True):
            blocks.append(Block(name=name, devices=(device,), span=draw(st.integers(1, 4))))
        if len(row) > 1:
            choices.append(Choice(f"x{stage}", tuple((name,) for name in row)))
        names.append(row)
    edges = []
    for above, below in pairwise(names):
        if draw(st.booleans()):
            edges += [Edge(source, target, draw(st.integers(0, 2))) for source in above for target in below]
    placement = Placement(devices=2, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices))
    return placement, 2, None


@st.composite
def shared_cases(draw: st.DrawFn) -> Case:
    """Up to five blocks on up to three devices, many of them on several, with memory and arbitrary edges."""
    devices = draw(st.integers(1, 3))
    blocks: list[Block] = []
    edges: list[Edge] = []
    num_pairs = draw(st.integers(1, 3))
    for pair in range(num_pairs):
        held = tuple(sorted(draw(st.sets(st.integers(0, devices - 1), min_size=1))))
        units = draw(st.integers(0, 3))
        blocks.append(Block(name=f"f{pair}", devices=held, span=draw(st.integers(1, 4)), memory=units))
        blocks.append(Block(name=f"b{pair}", devices=held, span=draw(st.integers(1, 4)), memory=-units))
        edges.append(Edge(f"f{pair}", f"b{pair}", draw(st.integers(0, 3))))
        for other in range(pair):
            if draw(st.booleans()):
                edges.append(Edge(f"f{other}", f"f{pair}", draw(st.integers(0, 2))))
                edges.append(Edge(f"b{pair}", f"b{other}", draw(st.integers(0, 2))))
    limits = draw(st.none() | st.tuples(*[st.integers(1, 7)] * devices))
    placement = Placement(devices=devices, blocks=tuple(blocks), edges=tuple(edges))
    return placement, draw(st.integers(1, 4)), limits


def searched(case: Case) -> Incumbent | None:
    """Return what the exact search alone makes of one micro-batch after the other; None where that fails."""
    placement, micro_batches, memory = case
    try:
        instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    except InfeasibleError:
        return None
    best = Incumbent(instance, makespan_lower_bound(instance), SearchBudget(20.0), params=ALONE)
    offer_serial(best)
    ExactSearch.of(best).run()
    found = schedule_of(
        instance, best.best.start, lower_bound=best.lower_bound, search_seconds=0.0, found_by="exact search"
    )
    check_schedule(found)
    return best


@settings(max_examples=25, deadline=None)
@given(case=st.one_of(tiny_cases(), moving_cases()))
def test_nothing_is_proven_that_is_not_true(case: Case) -> None:
    best = searched(case)
    if best is not None:
        truth = least_makespan(*case)
        assert truth is not None
        assert best.lower_bound <= truth <= best.makespan
        if not case[0].choices and all(block.span for block in case[0].blocks):
            assert best.lower_bound == truth == best.makespan


@settings(max_examples=40, deadline=None)
@given(case=shared_cases())
def test_without_choices_it_is_least(case: Case) -> None:
    best = searched(case)
    truth = least_makespan_by_cpsat(*case)
    if best is None:
        assert truth is None
    else:
        assert best.lower_bound == truth == best.makespan


@pytest.mark.parametrize(
    ("shape", "micro_batches", "memory", "makespan"),
    [pytest.param("nnshape", 8, 6, 76, marks=pytest.mark.slow), ("mshape", 8, 6, 60), ("kshape", 8, 6, 52)],
)
def test_shared_blocks_are_proven_by_it(shape: str, micro_batches: int, memory: int, makespan: int) -> None:
    best = searched((make_shape(shape, 4), micro_batches, (memory,) * 4))
    assert best is not None
    assert best.lower_bound == best.makespan == makespan


def test_choices_are_proven_without_another_solver() -> None:
    placement = make_shape(
        "vshape", 3, choose_backward=True, backward_span=6, backward_input_span=4, backward_weight_span=3
    )
    params = MakespanParams(left_out=frozenset({Phase.CP_SAT}))
    found = find_schedule(placement, micro_batches=4, memory=2, budget=SearchBudget(1.0), params=params)
    assert found.optimal


@settings(max_examples=8, deadline=None)
@given(case=st.one_of(shared_cases(), moving_cases()), seed=st.integers(0, 9))
def test_more_work_is_never_worse(case: Case, seed: int) -> None:
    placement, micro_batches, memory = case
    makespans, bounds = [], []
    for work in (0.01, 0.05, 0.15, 0.4):
        try:
            found = find_schedule(
                placement,
                micro_batches=micro_batches + 4,
                memory=memory,
                budget=SearchBudget(work),
                seed=seed,
            )
        except InfeasibleError:
            return
        makespans.append(found.makespan)
        bounds.append(found.lower_bound)
    assert makespans == sorted(makespans, reverse=True)
    assert bounds == sorted(bounds)
