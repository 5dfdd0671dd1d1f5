"""Rules followed as well as they allow: never worse than published, and better where something is free."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessel.comparison import compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.handwritten.strongest import build_strongest
from tessel.search import SearchBudget, find_schedule
from tessel.shapes import make_shape, vshape, zbv
from tessel.validation import find_violations

RULES = {rule.name: rule for rule in HANDWRITTEN}


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from(("vshape", "zbv", "interleaved", "xshape", "mshape")),
    spans=st.tuples(*[st.integers(1, 5)] * 4),
    lag=st.integers(0, 3),
    micro_batches=st.integers(1, 6),
    limit=st.none() | st.integers(1, 8),
    recompute=st.booleans(),
)
def test_the_strongest_is_valid_and_no_longer_than_the_published_one(
    shape: str,
    spans: tuple[int, int, int, int],
    lag: int,
    micro_batches: int,
    limit: int | None,
    recompute: bool,
) -> None:
    names = ("forward_span", "backward_span", "backward_input_span", "backward_weight_span")
    options = dict(zip(names, spans, strict=True))
    placement = make_shape(shape, 3, choose_backward=True, lag=lag, recompute=recompute, **options)
    memory = None if limit is None else (limit,) * 3
    for rule in HANDWRITTEN:
        if rule.why_not(placement, micro_batches, memory) is not None:
            continue
        published = rule.build(placement, micro_batches=micro_batches, memory=memory)
        strongest = build_strongest(rule, placement, micro_batches=micro_batches, memory=memory)
        assert find_violations(strongest) == ()
        assert strongest.found_by == rule.name
        assert strongest.makespan <= published.makespan
        assert memory is None or max(strongest.peak_memory) <= max(memory)


FAMILIES = [
    ("eager-1f1b", "1f1b"),
    ("zb-h1", "1f1b"),
    ("zb-h2", "zb-h1"),
    ("v-half", "v-min"),
    ("zb-v", "v-half"),
]
"""A rule and a weaker one of its family, which needs no more memory."""


@settings(max_examples=30, deadline=None)
@given(
    pair=st.sampled_from(FAMILIES),
    spans=st.tuples(*[st.lists(st.integers(1, 60), min_size=6, max_size=6)] * 4),
    lag=st.integers(0, 12),
    micro_batches=st.integers(1, 3),
)
def test_no_rule_is_worse_than_a_weaker_one_of_its_family(
    pair: tuple[str, str], spans: tuple[list[int], ...], lag: int, micro_batches: int
) -> None:
    shape = "zbv" if pair[0] in ("v-half", "zb-v") else "vshape"
    devices = 6 if shape == "vshape" else 3
    names = ("forward_span", "backward_span", "backward_input_span", "backward_weight_span")
    options = dict(zip(names, spans, strict=True))
    placement = make_shape(shape, devices, choose_backward=True, lag=lag, **options)
    number = 3 * micro_batches
    strong, weak = (build_strongest(RULES[name], placement, micro_batches=number) for name in pair)
    assert strong.makespan <= weak.makespan
    assert find_violations(strong) == ()


def test_1f1b_on_a_v_keeps_up_with_gpipe_where_there_is_a_choice() -> None:
    """As it was, first come first served and joint, it took twice as long as GPipe's published order."""
    placement = zbv(
        4,
        choose_backward=True,
        forward_span=500,
        backward_span=1100,
        backward_input_span=650,
        backward_weight_span=500,
        lag=50,
    )
    ours = build_strongest(RULES["1f1b"], placement, micro_batches=16)
    gpipe = build_strongest(RULES["gpipe"], placement, micro_batches=16)
    assert ours.makespan <= 1.1 * gpipe.makespan
    assert max(ours.peak_memory) <= max(gpipe.peak_memory) / 3
    found = find_schedule(placement, micro_batches=16, memory=ours.peak_memory, budget=SearchBudget(0.0))
    assert found.makespan <= ours.makespan


def test_1f1b_takes_halves_where_they_are_shorter() -> None:
    placement = vshape(
        3, choose_backward=True, backward_span=6, backward_input_span=2, backward_weight_span=2
    )
    published = RULES["1f1b"].build(placement, micro_batches=6)
    strongest = build_strongest(RULES["1f1b"], placement, micro_batches=6)
    # Two steps of six are saved in every backward, and the gradient is there before the weight half.
    assert (published.makespan, strongest.makespan) == ((6 + 2) * 7, (6 + 2) * 5 - 2 * 2)
    assert {start.block for start in strongest.starts} >= {"b0_input", "b0_weight"}


def test_where_nothing_is_free_it_is_the_published_schedule() -> None:
    placement = vshape(4, forward_span=10, backward_span=20, lag=1)
    for name in ("1f1b", "gpipe"):
        published = RULES[name].build(placement, micro_batches=8)
        assert build_strongest(RULES[name], placement, micro_batches=8).makespan == published.makespan


@pytest.mark.parametrize("rule", ["eager-1f1b", "zb-h2"])
def test_a_warm_up_shrinks_to_what_fits(rule: str) -> None:
    placement = vshape(4, forward_span=2, lag=1, split_backward=rule == "zb-h2")
    memory = (5, 5, 5, 5)
    assert RULES[rule].why_not(placement, 8, memory) is not None
    strongest = build_strongest(RULES[rule], placement, micro_batches=8, memory=memory)
    assert max(strongest.peak_memory) <= 5
    assert strongest.makespan <= RULES["1f1b"].build(placement, micro_batches=8).makespan


def test_a_device_with_room_does_not_wait_for_a_full_one() -> None:
    placement = vshape(4, lag=2)
    found = build_strongest(RULES["1f1b-limited"], placement, micro_batches=8, memory=(2, 4, 4, 4))
    assert find_violations(found) == ()
    assert found.peak_memory[0] <= 2


def test_the_search_is_never_longer_than_a_row_that_fits() -> None:
    placement = vshape(3, choose_backward=True, backward_span=6, backward_input_span=2, lag=1)
    for limit in (2, 3, 5):
        budget = SearchBudget(0.01)
        found = find_schedule(placement, micro_batches=6, memory=limit, budget=budget)
        comparison = compare_schedules(found)
        (ours,) = (row for row in comparison.rows if row.schedule == "searched")
        assert ours.found_by == found.found_by
        assert ours.title == f"ours (by {found.found_by})"
        assert all(row.makespan >= ours.makespan for row in comparison.rows if row.fits)
        assert all(row.title == row.schedule for row in comparison.rows if row is not ours)
