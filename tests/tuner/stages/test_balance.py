"""Cuts are compared with every possible cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import TunerError
from tuner.stages import choose_cuts

layers = st.one_of(
    st.lists(st.tuples(st.integers(0, most), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)
    for most in (9, 5, 1)
)
"""Costs, bytes and costs of sending; of few different costs there are many equal cuts."""


def slowest_even_and_sent(cuts, costs, memory, sending, limit):
    borders = (0, *cuts, len(costs))
    stages = list(itertools.pairwise(borders))
    if any(sum(memory[first:last]) > limit for first, last in stages):
        return None
    totals = [sum(costs[first:last]) for first, last in stages]
    return max(totals), sum(total**2 for total in totals), sum(sending[cut - 1] for cut in cuts)


@settings(max_examples=300, deadline=None)
@given(layers=layers, num_stages=st.integers(1, 5), limit=st.integers(0, 30))
def test_cuts_equal_the_best_of_all_cuts(layers, num_stages, limit):
    costs, memory, sending = (list(column) for column in zip(*layers, strict=True))
    sending = sending[:-1]
    every = itertools.combinations(range(1, len(costs)), num_stages - 1)
    scored = [
        (score, cuts)
        for cuts in every
        if (score := slowest_even_and_sent(cuts, costs, memory, sending, limit))
    ]
    arguments = {"memory_limit_bytes": limit, "communication_us": sending}
    if not scored:
        with pytest.raises(TunerError):
            choose_cuts(costs, memory, num_stages, **arguments)
        return
    assert choose_cuts(costs, memory, num_stages, **arguments) == min(scored)[1]


def test_six_equal_layers_and_a_heavy_head():
    # An embedding, six blocks of 10 and a head of 25: 31, 30 and 25 rather than 21, 30 and 35.
    assert choose_cuts([1, 10, 10, 10, 10, 10, 10, 25], [1] * 8, 3) == (4, 7)


def test_what_a_heavy_head_leaves_is_even():
    # The head sets the pace; an embedding and twelve blocks are still shared out among three stages.
    assert choose_cuts([1] + [10] * 12 + [90], [1] * 14, 4) == (5, 9, 13)


def test_the_slowest_stage_comes_before_evenness():
    # Stages of 8, 9 and 2 have more squares than 5, 4 and 10, and none is as slow as 10.
    assert choose_cuts([5, 3, 1, 8, 2], [1] * 5, 3) == (2, 4)
    assert choose_cuts([2, 8, 1, 3, 5], [1] * 5, 3) == (1, 2)


def test_the_least_communication_breaks_ties():
    assert choose_cuts([5, 0, 5], [0, 0, 0], 2, communication_us=[9.0, 1.0]) == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1], 2), "1 layers that can be cut apart, fewer than the 2 stages"),
        (([1.0, 1.0], [1, 9], 2, 5, ("a", "b")), "layer 'b' needs 9 bytes"),
        (([1.0] * 4, [4] * 4, 2, 5, tuple("abcd")), "at least 4 are needed"),
    ],
)
def test_what_cannot_be_cut_is_named(arguments, message):
    costs, memory, num_stages, *rest = arguments
    limit, names = rest or (None, None)
    with pytest.raises(TunerError, match=message):
        choose_cuts(costs, memory, num_stages, memory_limit_bytes=limit, names=names)


@pytest.mark.parametrize(
    "arguments",
    [
        ([1.0], [1, 2], 1),
        ([float("nan")], [1], 1),
        ([-1.0], [1], 1),
        ([1.0], [-1], 1),
        ([1.0], [1], 0),
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=r"layers came with|no finite number|at least one"):
        choose_cuts(*arguments)


@pytest.mark.parametrize("more", [{"names": ("a", "b", "c")}, {"communication_us": [1.0, 1.0]}])
def test_names_and_costs_of_other_lengths_are_refused(more):
    with pytest.raises(ValueError, match="2 layers came with"):
        choose_cuts([1.0, 1.0], [1, 1], 2, **more)


def test_wrong_costs_of_sending_are_refused():
    with pytest.raises(ValueError, match="no finite number"):
        choose_cuts([1.0, 1.0], [1, 1], 2, communication_us=[-1.0])
