"""Whole schedules against exhaustive search, hand-written schedules and the independent validation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten import HANDWRITTEN
from tessel.placement import Block, Edge, Placement
from tessel.schedule.schedule import Schedule
from tessel.search.budget import Progress, SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.shapes import SHAPES, make_shape, vshape, zbv
from tessel.validation import check_schedule
from tests.samples.schedule_samples import Case, least_makespan, tiny_cases


@settings(max_examples=60, deadline=None)
@given(case=tiny_cases())
def test_makespan_lies_between_bound_and_truth_and_optimal_means_least(case: Case) -> None:
    placement, micro_batches, memory = case
    truth = least_makespan(placement, micro_batches, memory)
    if truth is None:
        with pytest.raises(InfeasibleError, match="needs at least"):
            find_schedule(placement, micro_batches=micro_batches, memory=memory)
        return
    budget = SearchBudget(0.05)
    found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=budget)
    check_schedule(found)
    assert found.lower_bound <= truth <= found.makespan
    assert not found.optimal or found.makespan == truth


def test_more_tasks_than_can_be_held_are_refused_before_any_is_made() -> None:
    with pytest.raises(ScheduleError, match="800000000 tasks, and a schedule has at most 16777216"):
        find_schedule(vshape(4), micro_batches=10**8)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("variant", ["joint", "split_backward", "choose_backward", "recompute", "infer"])
@pytest.mark.parametrize("limit", [None, 4])
def test_every_shape_gets_a_valid_schedule(shape: str, variant: str, limit: int | None) -> None:
    options = {} if variant == "joint" else {variant: True}
    placement = make_shape(shape, 4, **options)
    found = find_schedule(placement, micro_batches=5, memory=limit, budget=SearchBudget(0.05))
    check_schedule(found)
    assert found.micro_batches == 5
    assert found.lower_bound > 0


@pytest.mark.parametrize("shape", ["vshape", "zbv", "interleaved", "mshape"])
@pytest.mark.parametrize("memory", [None, 2, 4, 8])
def test_search_is_never_worse_than_a_hand_written_schedule_that_fits(shape: str, memory: int | None) -> None:
    placement = make_shape(
        shape,
        4,
        split_backward=True,
        forward_span=[3, 5, 4, 2] * (2 if shape in ("zbv", "interleaved") else 1),
    )
    limits = None if memory is None else (memory,) * 4
    found = find_schedule(placement, micro_batches=8, memory=limits, budget=SearchBudget(0.05))
    for rule in HANDWRITTEN:
        if rule.why_not(placement, 8, limits) is None:
            assert found.makespan <= rule.build(placement, micro_batches=8, memory=limits).makespan


@pytest.mark.parametrize(("micro_batches", "makespan"), [(8, 44), (16, 76), (64, 268)])
def test_vshape_reaches_its_proven_optimum(micro_batches: int, makespan: int) -> None:
    found = find_schedule(vshape(4), micro_batches=micro_batches, memory=4, budget=SearchBudget(2))
    assert (found.makespan, found.optimal, found.gap) == (makespan, True, 0.0)
    assert found.repetend is not None
    assert found.repetend.period == 4


def test_tight_memory_never_dead_locks() -> None:
    placement = zbv(4, split_backward=True)
    found = find_schedule(placement, micro_batches=6, memory=2, budget=SearchBudget(0.2))
    check_schedule(found)
    assert max(found.peak_memory) <= 2


def test_memory_that_others_give_back_first_is_counted_on() -> None:
    # Both f0 fit at once only because both b0 run before an f1: f0 f0 b0 b0 f1 b1 f1 b1, without a wait.
    blocks = (("f0", 1), ("b0", -1), ("f1", 2), ("b1", -2))
    placement = Placement(
        devices=1,
        blocks=tuple(Block(name=name, devices=(0,), memory=memory) for name, memory in blocks),
        edges=(Edge("f0", "b0", 1), Edge("f1", "b1")),
    )
    found = find_schedule(placement, micro_batches=2, memory=2, budget=SearchBudget(1))
    assert (found.makespan, found.optimal) == (8, True)


def test_impossible_limit_names_the_device_and_its_need() -> None:
    with pytest.raises(InfeasibleError, match=r"device 0 needs at least 2 units .* its limit is 1"):
        find_schedule(zbv(4), micro_batches=4, memory=1, budget=SearchBudget(1))


def test_progress_only_gets_better_and_ends_at_the_answer() -> None:
    told: list[Progress] = []
    found = find_schedule(
        zbv(3, split_backward=True, forward_span=2),
        micro_batches=6,
        budget=SearchBudget(0.2, on_progress=told.append),
    )
    makespans = [progress.makespan for progress in told]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] == found.makespan
    assert all(progress.lower_bound <= found.makespan for progress in told)


def test_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.found_by != "serial":
            raise KeyboardInterrupt

    found: Schedule = find_schedule(zbv(3), micro_batches=6, budget=SearchBudget(5, on_progress=interrupt))
    check_schedule(found)
    assert found.found_by != "serial"


def test_equal_seeds_and_rounds_give_equal_schedules() -> None:
    placement = zbv(3, split_backward=True, forward_span=2, lag=1)

    def schedule_of(seed: int) -> Schedule:
        budget = SearchBudget(0.5)
        return find_schedule(placement, micro_batches=6, memory=8, seed=seed, budget=budget)

    assert schedule_of(3).starts == schedule_of(3).starts


@pytest.mark.parametrize(
    ("placement", "micro_batches", "memory"),
    [
        pytest.param(make_shape("nnshape", 4), 12, 5, marks=pytest.mark.slow),
        (vshape(3, choose_backward=True, backward_input_span=2, forward_span=2), 6, 2),
        (zbv(3, split_backward=True, forward_span=3, lag=1), 7, 5),
    ],
)
def test_a_higher_limit_does_all_that_a_lower_one_does_and_goes_on(
    placement: Placement, micro_batches: int, memory: int
) -> None:
    known: list[tuple[int, int, str]] = []
    for work in (0.02, 0.1, 0.3, 0.6):
        told: list[Progress] = []
        budget = SearchBudget(work, on_progress=told.append)
        found = find_schedule(placement, micro_batches=micro_batches, memory=memory, budget=budget)
        steps = [(each.makespan, each.lower_bound, each.found_by) for each in told]
        assert steps[: len(known)] == known
        assert found.makespan == steps[-1][0]
        known = steps


def test_micro_batches_that_free_more_than_they_add_help_each_other() -> None:
    # X0 X1 A0 Z0 A1 Z1 holds -2 -4 2 -3 3 -2 units; one micro-batch alone would hold 4.
    placement = Placement(
        devices=1,
        blocks=tuple(
            Block(name=name, devices=(0,), memory=memory) for name, memory in (("x", -2), ("a", 6), ("z", -5))
        ),
        edges=(Edge("x", "a"), Edge("a", "z")),
    )
    found = find_schedule(placement, micro_batches=2, memory=3, budget=SearchBudget(0.1))
    check_schedule(found)
    assert (found.makespan, found.optimal) == (6, True)
    with pytest.raises(InfeasibleError, match="device 0 needs at least 3 units for 2 micro-batches"):
        find_schedule(placement, micro_batches=2, memory=2, budget=SearchBudget(0.1))


def test_a_shape_made_in_python_frees_what_it_adds() -> None:
    placement = zbv(4, split_backward=True, forward_memory=2)
    assert sum(block.memory for block in placement.blocks) == 0
    found = find_schedule(placement, micro_batches=64, memory=16, budget=SearchBudget(0.05))
    check_schedule(found)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        find_schedule(vshape(2), micro_batches=0)
    with pytest.raises(ValueError, match="above 0"):
        find_schedule(vshape(2), micro_batches=1, time_limit_s=0)
    with pytest.raises(ValueError, match="2 memory limits were given for 3 devices"):
        find_schedule(vshape(3), micro_batches=1, memory=(1, 2))


def test_devices_that_run_nothing_are_no_obstacle() -> None:
    blocks = tuple(
        Block(name=name, devices=(2,), span=span, memory=units)
        for name, span, units in (("f", 0, 3), ("g", 4, 0), ("i", 1, 0), ("w", 0, -3))
    )
    edges = (Edge("g", "f", 1), Edge("f", "i", 1), Edge("i", "w"))
    placement = Placement(devices=3, blocks=blocks, edges=edges)
    found = find_schedule(placement, micro_batches=3, memory=(1, 1, 4), budget=SearchBudget(0.3))
    check_schedule(found)
