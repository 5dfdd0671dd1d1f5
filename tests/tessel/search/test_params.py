"""Parameters of the searches: wrong ones are refused, others decide what is tried and never what is valid."""

from __future__ import annotations

import pytest

from tessel.search import (
    MakespanParams,
    Phase,
    Progress,
    RepetendParams,
    SearchBudget,
    find_frontier,
    find_makespan_frontier,
    find_repetend,
    find_schedule,
)
from tessel.shapes import make_shape, zbv
from tessel.validation import check_schedule


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rhythms": (1.0, -0.5)}, "rhythms are"),
        ({"repetend_share": 0.0}, "repetend_share is 0.0"),
        ({"min_patience": 0}, "min_patience is 0"),
        ({"max_patience": 100}, "min_patience is 200 and max_patience 100"),
        ({"bound_share": 1.5}, "bound_share is 1.5"),
        ({"first_bound_work": float("nan")}, "first_bound_work nan"),
        ({"first_exact_work": float("nan")}, "first_exact_work nan"),
        ({"exact_share": -0.1}, "exact_share is -0.1"),
        ({"subset_share": 1.1}, "subset_share is 1.1"),
        ({"work_before_subsets": float("nan")}, "work_before_subsets is nan"),
        ({"first_repetend_work": 0.0}, "first_repetend_work is 0.0"),
    ],
)
def test_wrong_makespan_params_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MakespanParams(**wrong)  # type: ignore[arg-type]  # the wrong values have several types


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"copies_share": 0.0}, "copies_share is 0.0"),
        ({"max_assignments": 0}, "max_assignments is 0.*1 or more"),
        ({"first_try_work": 0}, "first_try_work is 0.*1 or more"),
        ({"max_latency_blocks": -1}, "max_latency_blocks is -1.*0 or more"),
    ],
)
def test_wrong_repetend_params_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepetendParams(**wrong)  # type: ignore[arg-type]  # the wrong values have several types


@pytest.mark.parametrize(
    ("params", "left_out"),
    [
        (MakespanParams(rhythms=()), "list scheduling"),
        (MakespanParams(left_out=frozenset({Phase.REPETENDS})), "repetend with warm-up and cool-down"),
    ],
)
def test_what_is_left_out_finds_nothing_and_the_schedule_stays_valid(
    params: MakespanParams, left_out: str
) -> None:
    placement = make_shape("nnshape", 4)

    def found_by(given: MakespanParams | None) -> set[str]:
        told: list[Progress] = []
        budget = SearchBudget(0.3, on_progress=told.append)
        check_schedule(find_schedule(placement, micro_batches=12, memory=6, budget=budget, params=given))
        return {each.found_by for each in told}

    assert left_out in found_by(None)
    assert left_out not in found_by(params)


def test_the_fewest_of_everything_still_gives_a_valid_schedule() -> None:
    params = MakespanParams(
        rhythms=(), min_patience=1, max_patience=1,
        bound_share=0.0, bound_share_while_stuck=0.0, first_bound_work=0.0,
        exact_share=0.0, first_exact_work=0.0,
        left_out=frozenset(Phase),
    )  # fmt: skip
    placement = zbv(3, split_backward=True)
    check_schedule(
        find_schedule(placement, micro_batches=4, memory=6, budget=SearchBudget(0.1), params=params)
    )


def test_tries_of_any_size_prove_the_same_period() -> None:
    placement = make_shape("mshape", 4)
    small = RepetendParams(first_try_work=1_000, max_try_work=50_000, max_blocks_ordered_first=0)
    usual, other = (find_repetend(placement, memory=3, max_copies=1, params=each) for each in (None, small))
    assert usual.optimal
    assert other.optimal
    assert (usual.period, usual.lower_bound) == (other.period, other.lower_bound)


def test_frontiers_hand_their_params_on() -> None:
    placement = make_shape("nnshape", 4)

    def found_by(params: MakespanParams | None) -> set[str]:
        budget = SearchBudget(0.3)
        points = find_makespan_frontier(placement, micro_batches=4, budget=budget, params=params)
        return {point.found_by for point in points}

    assert "repetend with warm-up and cool-down" in found_by(None)
    without = MakespanParams(left_out=frozenset({Phase.REPETENDS}))
    assert "repetend with warm-up and cool-down" not in found_by(without)
    hurried = RepetendParams(copies_share=1e-9)
    usual, cut = (
        find_frontier(placement, budget=SearchBudget(0.2), params=params) for params in (None, hurried)
    )
    assert {point.rate for point in cut} < {point.rate for point in usual}


def test_options_that_are_not_listed_keep_the_bound_open() -> None:
    placement = make_shape("vshape", 3, choose_backward=True, backward_input_span=2)
    listed = find_repetend(placement, memory=3, max_copies=1)
    params = RepetendParams(max_assignments=1, max_local_assignments=1)
    likely = find_repetend(placement, memory=3, max_copies=1, params=params)
    assert likely.rate_lower_bound <= listed.rate_lower_bound <= listed.rate <= likely.rate
