"""Prices of nodes: never above an option, tight where the relaxation is, and there even when it fails."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.partition.cover_bound import node_prices, raised_prices

Case = tuple[int, list[tuple[int, ...]], list[int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw options over a few nodes, each node alone among them."""
    count = draw(st.integers(1, 7))
    groups = draw(st.lists(st.sets(st.integers(0, count - 1), min_size=2), max_size=8)) if count > 1 else []
    insides = [(index,) for index in range(count)] + [tuple(sorted(group)) for group in groups]
    costs = draw(st.lists(st.integers(0, 10**9), min_size=len(insides), max_size=len(insides)))
    return count, insides, costs


@settings(max_examples=50, deadline=None)
@given(cases())
def test_no_option_costs_less_than_its_nodes(case: Case) -> None:
    count, insides, costs = case
    prices = node_prices(count, insides, costs)
    assert all(isinstance(price, int) for price in prices)
    slack = [
        cost - sum(prices[index] for index in inside) for inside, cost in zip(insides, costs, strict=True)
    ]
    assert min(slack) >= 0


@settings(max_examples=50, deadline=None)
@given(cases())
def test_of_raised_prices_none_could_be_higher(case: Case) -> None:
    count, insides, costs = case
    prices = node_prices(count, insides, costs)
    raised = raised_prices(prices, insides, costs)
    assert all(high >= low for high, low in zip(raised, prices, strict=True))
    slack = [
        cost - sum(raised[index] for index in inside) for inside, cost in zip(insides, costs, strict=True)
    ]
    for index in range(count):
        assert min(each for each, inside in zip(slack, insides, strict=True) if index in inside) == 0


def test_the_bound_of_a_chain_is_the_cheapest_cover() -> None:
    # Singles at 10, neighbouring pairs at 12, 11, 17: the cheapest cover is {0, 1}, {2, 3}.
    insides = [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3)]
    prices = node_prices(4, insides, [10, 10, 10, 10, 12, 11, 17])
    assert sum(prices) == pytest.approx(29, abs=4)


def test_without_a_fractional_cover_each_node_has_its_least_share() -> None:
    # Both options hold node 1, so that no weights cover every node exactly once.
    assert node_prices(3, [(0, 1), (1, 2)], [8, 10]) == [4, 4, 5]
