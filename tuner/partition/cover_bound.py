"""Lower bounds for exact covers: node prices such that no option costs less than the sum over its nodes.

Then whatever is still uncovered costs at least the sum of its nodes' prices, which is an admissible and
consistent estimate for A*. The best such prices are the dual solution of the linear relaxation of the cover
problem; for chains and most networks that bound is tight, and the search walks straight to the answer. The
linear program works in floating point, so its prices are rounded down and repaired in whole numbers: the
bound is proven, not trusted. Checked in tests/tuner/partition/test_cover_bound.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array


def node_prices(num_nodes: int, insides: Sequence[Sequence[int]], costs: Sequence[int]) -> list[int]:
    """Return integer prices, one per node, whose sum over any option's nodes is at most the option's cost.

    Where the linear program has no solution, each node's price is its least share of an option, rounded down.

    Args:
        num_nodes: number of nodes to cover.
        insides: for each option the nodes it covers, each node in at least one option.
        costs: for each option its cost >= 0.
    """
    if not insides:
        return [0] * num_nodes
    relaxed = _relaxed_prices(num_nodes, insides, costs)
    if relaxed is None:
        return _least_shares(num_nodes, insides, costs)
    prices = [int(np.floor(price)) for price in relaxed]
    for inside, cost in zip(insides, costs, strict=True):
        excess = sum(prices[index] for index in inside) - cost
        if excess > 0:
            prices[inside[0]] -= excess
    return prices


def raised_prices(prices: Sequence[int], insides: Sequence[Sequence[int]], costs: Sequence[int]) -> list[int]:
    """Return prices of which none can be raised further, so that what rounding down took is given back.

    Args:
        prices: as `node_prices` returns them.
        insides: for each option the nodes it covers.
        costs: for each option its cost, at least the sum over its nodes.
    """
    slack = [
        cost - sum(prices[index] for index in inside) for inside, cost in zip(insides, costs, strict=True)
    ]
    holders: list[list[int]] = [[] for _ in prices]
    for number, inside in enumerate(insides):
        for index in inside:
            holders[index].append(number)
    raised = list(prices)
    for index, numbers in enumerate(holders):
        more = min((slack[number] for number in numbers), default=0)
        if more > 0:
            raised[index] += more
            for number in numbers:
                slack[number] -= more
    return raised


def _relaxed_prices(
    num_nodes: int, insides: Sequence[Sequence[int]], costs: Sequence[int]
) -> Sequence[float] | None:
    """Solve min cost·x with each node covered exactly once and x >= 0; return the duals of the covering."""
    columns = np.repeat(np.arange(len(insides)), [len(inside) for inside in insides])
    rows = np.concatenate([np.asarray(inside, dtype=np.int64) for inside in insides])
    covering = csr_array((np.ones(len(rows)), (rows, columns)), shape=(num_nodes, len(insides)))
    scale = max(max(costs), 1)
    solution = linprog(
        np.asarray(costs, dtype=np.float64) / scale,
        A_eq=covering,
        b_eq=np.ones(num_nodes),
        bounds=(0, None),
        method="highs",
    )
    if solution.status != 0:
        return None
    return [float(price) * scale for price in solution.eqlin.marginals]


def _least_shares(num_nodes: int, insides: Sequence[Sequence[int]], costs: Sequence[int]) -> list[int]:
    shares = [max(costs, default=0)] * num_nodes
    for inside, cost in zip(insides, costs, strict=True):
        for index in inside:
            shares[index] = min(shares[index], cost // len(inside))
    return shares
