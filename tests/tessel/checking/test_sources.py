"""Cases from CSVs and layouts: what they run is what the file says, and what is missing is said."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_plans import cluster, profile

from tessel.checking.case import simulate
from tessel.checking.sources import Pricing, balanced_cuts, case_of_csv, case_of_megatron, cuts_of_layout
from tessel.engine.actions import actions_from_csv, actions_of, actions_to_csv
from tessel.errors import ScheduleError
from tessel.exports.megatron import read_layout
from tessel.handwritten import HANDWRITTEN
from tessel.planning.job import Job
from tessel.shapes import interleaved, vshape, zbv

RULES = {rule.name: rule for rule in HANDWRITTEN}


def pricing(**changes: object) -> Pricing:
    values = {"profile": profile(), "job": Job(cluster=cluster(2))}
    return Pricing(**(values | changes))  # type: ignore[arg-type]  # fields of Pricing


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("1f1b", vshape(4, backward_span=2)),
        ("interleaved", interleaved(4, backward_span=2)),
        ("zb-h1", vshape(4, split_backward=True, backward_span=2)),
        ("zb-v", zbv(4, split_backward=True, backward_span=2)),
        ("dualpipe-v", zbv(4, choose_backward=True, backward_span=2)),
    ],
)
def test_a_csv_without_a_profile_takes_one_and_two_steps_a_stage(name: str, placement: object) -> None:
    schedule = RULES[name].build(placement, micro_batches=8)  # type: ignore[arg-type]  # a placement
    case = case_of_csv("x", actions_from_csv(actions_to_csv(actions_of(schedule))))
    assert simulate(case).schedule.makespan == schedule.makespan
    assert case.make_orders is not None


def test_orders_of_a_known_rule_are_made_for_other_micro_batches() -> None:
    case = case_of_csv("x", actions_of(RULES["1f1b"].build(vshape(3), micro_batches=4)))
    assert case.make_orders is not None
    orders = case.make_orders(case.placement, 7)
    assert orders is not None
    assert [len(order) for order in orders] == [14, 14, 14]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_balanced_cuts_are_the_best_of_all(work: list[int], num_stages: int) -> None:
    if len(work) < num_stages:
        with pytest.raises(ScheduleError):
            balanced_cuts(work, num_stages)
        return
    cuts = balanced_cuts(work, num_stages)
    assert [layer for first, last in cuts for layer in range(first, last + 1)] == list(range(len(work)))
    largest = max(sum(work[first : last + 1]) for first, last in cuts)
    every = (
        max(sum(work[a:b]) for a, b in itertools.pairwise((0, *inner, len(work))))
        for inner in itertools.combinations(range(1, len(work)), num_stages - 1)
    )
    assert largest == min(every)


def test_a_layout_takes_a_row_of_the_profile_a_letter() -> None:
    layout = read_layout("Et*3|t*3L", 2)
    assert cuts_of_layout(layout, profile()) == ((0, 3), (4, 7))
    case = case_of_megatron("x", layout, pricing(), micro_batches=4)
    assert case.priced is not None
    assert case.priced.layout.cuts == ((0, 3), (4, 7))
    with pytest.raises(ScheduleError, match="the layout has 7 layers"):
        cuts_of_layout(read_layout("Et*3|t*2L", 2), profile())
    with pytest.raises(ScheduleError, match="stage 1 has no layer"):
        cuts_of_layout(read_layout("Et*3||t*3|L", 2), profile())


def test_a_layout_without_a_profile_counts_layers() -> None:
    case = case_of_megatron("x", read_layout("Et*3|t*2L", 2), micro_batches=1)
    assert simulate(case).schedule.makespan == 3 * (3 + 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n0F1,0B1\n", "stage 0 has actions on ranks 0 and 1"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 has no action"),
        ("0F0,0B0\n\n1F0,1B0\n", "rank 1 has no action"),
        ("", "no rank has an action"),
        ("0F0\n1F0,1B0\n1", "no action; write"),
        ("0F0,0B0,0F1\n1F0,1B0\n", "rank 0 runs 0F1 of stage 0"),
    ],
)
def test_incomplete_orders_are_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        case_of_csv("x", actions_from_csv(text))
    assert message in str(error.value)


def test_halves_that_the_profile_has_not_are_asked_for() -> None:
    actions = actions_of(RULES["zb-h1"].build(vshape(2, split_backward=True), micro_batches=4))
    with pytest.raises(ScheduleError, match="give backward_input_ms and backward_weight_ms"):
        case_of_csv("x", actions, pricing(profile=profile(halves=False)))
    assert simulate(case_of_csv("x", actions, pricing())).length > 0


@pytest.mark.parametrize(
    ("cuts", "message"), [(((0, 7),), "1 cuts are given for 2 stages"), (((0, 3), (4, 6)), "layers 0 to 7")]
)
def test_cuts_that_do_not_fit_are_refused(cuts: tuple[tuple[int, int], ...], message: str) -> None:
    actions = actions_of(RULES["1f1b"].build(vshape(2), micro_batches=4))
    with pytest.raises(ScheduleError, match=message):
        case_of_csv("x", actions, pricing(), cuts=cuts)
