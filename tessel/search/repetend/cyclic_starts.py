"""From the phases of a repetend to its least period and its least latency.

A search decides who is next on each device; the times follow. `tightest` keeps those decisions and shortens
the period as far as they allow (a maximum cycle ratio, found by bisection over positive cycles). `close_up`
keeps only the phases, and moves each block as many periods earlier as its edges allow, then blocks that add
memory as late as their successors allow. Checked in tests/tessel/search/repetend/test_find_repetend.py.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from tessel.search.jit.compiled import compiled
from tessel.search.model.problem import IntArray, Problem
from tessel.search.repetend.cyclic_problem import CyclicProblem
from tessel.search.repetend.steady_state_memory import keeps_memory


def tightest(cyclic: CyclicProblem, starts: IntArray, *, period: int, least: int) -> tuple[int, IntArray]:
    """Return the shortest period >= `least` that the order of these starts allows, and starts for it."""
    arcs = _decided_arcs(cyclic, starts, period)
    while least < period:
        middle = (least + period) // 2
        is_possible, earlier = earliest_starts(arcs, cyclic.num_nodes, middle)
        if is_possible:
            period, starts = middle, earlier
        else:
            least = middle + 1
    return period, starts


def close_up(cyclic: CyclicProblem, starts: IntArray, period: int) -> IntArray:
    """Return starts of all copies that keep every edge, in the phases given and with little latency.

    Returns:
        int64, shape (copies, num_blocks), the earliest 0.
    """
    problem = cyclic.problem
    phases = np.sort(starts.reshape(cyclic.copies, problem.num_blocks) % period, axis=0)
    offsets = _earliest_offsets(problem, phases, period)
    _delay_additions(problem, phases, period, offsets)
    found = _starts_at(phases, offsets, period)
    if not keeps_memory(problem, found, period):
        found = _shift_components(cyclic, starts, period)
    found -= found.min()
    return found


@compiled
def earliest_starts(arcs: IntArray, num_nodes: int, period: int) -> tuple[bool, IntArray]:
    """Return whether no cycle of the arcs is positive, and then the least starts >= 0 (Bellman-Ford)."""
    starts = np.zeros(num_nodes, dtype=np.int64)
    for _ in range(num_nodes + 1):
        changed = False
        for arc in range(len(arcs)):
            u, v = arcs[arc, 0], arcs[arc, 1]
            earliest = starts[u] + arcs[arc, 2] - arcs[arc, 3] * period
            if earliest > starts[v]:
                starts[v] = earliest
                changed = True
        if not changed:
            return True, starts
    return False, starts


def _decided_arcs(cyclic: CyclicProblem, starts: IntArray, period: int) -> IntArray:
    u, v = cyclic.pairs[:, 0], cyclic.pairs[:, 1]
    apart = starts[v] - starts[u]
    highest = (period - cyclic.spans[v] - apart) // period
    iterations = np.where(cyclic.is_low > 0, -((apart - cyclic.spans[u]) // period), highest)
    forwards = np.stack([u, v, cyclic.spans[u], iterations], axis=1)
    backwards = np.stack([v, u, cyclic.spans[v], 1 - iterations], axis=1)
    return np.concatenate([cyclic.arcs, forwards, backwards])


def _starts_at(phases: IntArray, offsets: IntArray, period: int) -> IntArray:
    """Start the j-th micro-batch's block at the (j + offset)-th of its slots, counted from step 0."""
    copies, num_blocks = phases.shape
    places = np.arange(copies)[:, None] + offsets[None, :]
    found: IntArray = phases[places % copies, np.arange(num_blocks)[None, :]] + (places // copies) * period
    return found


def _wait(phases: IntArray, period: int, source: int, target: int, steps: int) -> int:
    """Return the least offset of the target over the source's that leaves `steps` between their starts."""
    copies = len(phases)
    needed = phases[:, source] + steps
    iterations, rest = np.divmod(needed, period)
    places = iterations * copies + np.searchsorted(phases[:, target], rest)
    return int((places - np.arange(copies)).max())


def _earliest_offsets(problem: Problem, phases: IntArray, period: int) -> IntArray:
    offsets = np.zeros(problem.num_blocks, dtype=np.int64)
    for block in problem.order:
        for source, steps in problem.predecessors[block]:
            offsets[block] = max(
                offsets[block], offsets[source] + _wait(phases, period, source, block, steps)
            )
    return offsets


def _delay_additions(problem: Problem, phases: IntArray, period: int, offsets: IntArray) -> None:
    for block in reversed(problem.order):
        if problem.memory[block] > 0 and problem.successors[block]:
            offsets[block] = min(
                offsets[target] - _wait(phases, period, block, target, steps)
                for target, steps in problem.successors[block]
            )


def _shift_components(cyclic: CyclicProblem, starts: IntArray, period: int) -> IntArray:
    """Move whole components later, by whole periods, until the edges between them are kept."""
    problem, components = cyclic.problem, cyclic.components
    found = starts.reshape(cyclic.copies, problem.num_blocks).copy()
    between = nx.DiGraph()
    between.add_nodes_from(range(int(components.max()) + 1))
    for source in range(problem.num_blocks):
        for target, _ in problem.successors[source]:
            if components[source] != components[target]:
                between.add_edge(int(components[source]), int(components[target]))
    members = components[: problem.num_blocks]
    for component in nx.topological_sort(between):
        late = 0
        for source in range(problem.num_blocks):
            for target, steps in problem.successors[source]:
                if members[target] == component != members[source]:
                    late = max(late, int((found[:, source] + steps - found[:, target]).max()))
        found[:, members == component] += -(-late // period) * period
    return found
