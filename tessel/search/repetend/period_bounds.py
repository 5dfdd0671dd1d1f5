"""Bounds of the period: the busiest device, and the memory that one micro-batch needs for how long.

Work: a device runs a micro-batch's blocks one at a time. Memory: a unit is held from the start of the block
that adds it to the *end* of the one that frees it, because while that one runs nothing else starts there.
With limit L, at most L units are held at any time, so the period of one micro-batch is at least

    (steps x units that one micro-batch holds) / L           a fraction: several copies may come closer to it

The steps are longest paths between the two blocks; where several blocks add and free, units are matched so
that the product is greatest (any matching is a bound). Left out: what devices do to each other's waits.
Checked in tests/tessel/search/repetend/test_period_bounds.py and tests/tessel/search/test_every_bound.py.

Source: Tessel (HPCA 2024) uses the work bound; the resource bounds of modulo scheduling are Rau's ResMII.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import networkx as nx

from tessel.search.model.problem import UNREACHABLE, IntArray, Problem
from tessel.search.repetend.cyclic_problem import is_limited


def device_bounds(problem: Problem) -> tuple[Fraction, ...]:
    """Return the bound that each device imposes, by its work or by its memory."""
    bounds = [Fraction(int(steps)) for steps in problem.work]
    for device in range(problem.num_devices):
        if is_limited(problem, device):
            bounds[device] = max(bounds[device], memory_bound(problem, device))
    return tuple(bounds)


def memory_bound(problem: Problem, device: int, paths: IntArray | None = None) -> Fraction:
    """Return the period that a device's limit alone imposes on one micro-batch, as a fraction.

    Args:
        paths: int64, shape (num_blocks, num_blocks), steps from start to start known to be needed, if they
            are not to be those of the problem.
    """
    limit = int(problem.limits[device])
    added, freed = _holders(problem, device)
    if limit <= 0 or not added or problem.net_memory[device] != 0:
        return Fraction(0)
    paths = problem.paths if paths is None else paths
    frees_at_end = all(problem.spans[block] > 0 for block in added)
    steps = {
        (u, v): int(paths[u, v]) + (int(problem.spans[v]) if frees_at_end else 0)
        for u in added
        for v in freed
        if paths[u, v] > UNREACHABLE
    }
    return Fraction(max(0, _greatest_live_time(problem, added, freed, steps)), limit)


def _holders(problem: Problem, device: int) -> tuple[list[int], list[int]]:
    blocks = problem.blocks_by_device[device]
    return (
        [block for block in blocks if problem.memory[block] > 0],
        [block for block in blocks if problem.memory[block] < 0],
    )


def _greatest_live_time(
    problem: Problem, added: Sequence[int], freed: Sequence[int], steps: dict[tuple[int, int], int]
) -> int:
    """Return the largest sum of units x steps over matchings of what is added with what is freed."""
    if len(steps) < len(added) * len(freed) and not _is_matchable(problem, added, freed, steps):
        return 0
    if len(added) == 1 or len(freed) == 1:
        few = freed if len(added) == 1 else added
        return sum(
            abs(int(problem.memory[block]))
            * steps[(added[0], block) if len(added) == 1 else (block, freed[0])]
            for block in few
        )
    graph = _matching_graph(problem, added, freed, steps)
    return -int(nx.network_simplex(graph)[0])


def _is_matchable(
    problem: Problem, added: Sequence[int], freed: Sequence[int], steps: dict[tuple[int, int], int]
) -> bool:
    try:
        nx.network_simplex(_matching_graph(problem, added, freed, steps))
    except nx.NetworkXUnfeasible:
        return False
    return True


def _matching_graph(
    problem: Problem, added: Sequence[int], freed: Sequence[int], steps: dict[tuple[int, int], int]
) -> nx.DiGraph:
    graph = nx.DiGraph()
    for block in (*added, *freed):
        graph.add_node(block, demand=-int(problem.memory[block]))
    for (u, v), length in steps.items():
        graph.add_edge(u, v, weight=-length)
    return graph
