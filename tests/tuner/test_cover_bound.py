"""Prices of nodes are a proven bound: no option is cheaper than its nodes, and no cover than their sum."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.cover_bound import node_prices


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[list[int]], list[int]]:
    num_nodes = draw(st.integers(1, 5))
    nodes = st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=num_nodes, unique=True)
    insides = [[index] for index in range(num_nodes)] + draw(st.lists(nodes, max_size=5))
    costs = draw(st.lists(st.integers(0, 10**9), min_size=len(insides), max_size=len(insides)))
    return num_nodes, insides, costs


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_no_option_and_no_cover_is_cheaper_than_its_nodes(
    problem: tuple[int, list[list[int]], list[int]],
) -> None:
    num_nodes, insides, costs = problem
    prices = node_prices(num_nodes, insides, costs)
    assert len(prices) == num_nodes
    for inside, cost in zip(insides, costs, strict=True):
        assert sum(prices[index] for index in inside) <= cost
    assert sum(prices) <= least_cover(num_nodes, insides, costs)


def least_cover(num_nodes: int, insides: list[list[int]], costs: list[int]) -> int:
    least = None
    for count in range(1, num_nodes + 1):
        for chosen in itertools.combinations(range(len(insides)), count):
            covered = sorted(index for option in chosen for index in insides[option])
            if covered == list(range(num_nodes)):
                cost = sum(costs[option] for option in chosen)
                least = cost if least is None else min(least, cost)
    assert least is not None
    return least
