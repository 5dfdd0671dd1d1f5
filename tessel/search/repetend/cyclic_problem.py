"""A repetend as a system of differences: what must hold between the starts of one period's blocks.

With period T, block u of micro-batch m starts at t_u + m·T. Three kinds of rules tie the t's together:

- **Arcs** t_v - t_u >= length - iterations·T. Edges have iterations 0. Several copies of one block follow
  each other in order, and the first one of the next period follows the last (iterations 1); any schedule can
  be renumbered so.
- **Pairs** on a common device: one integer h, so that  span_u <= t_v + h·T - t_u <= T - span_v.
  It says which v is the next after u: the one of h micro-batches later.
- **Memory rows**: when u starts, mem_u + sum of mem_v·h_uv over the device's other blocks is held.

- **Lifetimes** follow from memory rows and narrow more than each of them: what is added on a device and freed
  there takes up units x steps, together at most limit x T in one period.

So a repetend is a choice of the h's, and its least period is a maximum cycle ratio. A longer period
never hurts: every length is >= 0, so no cycle of a feasible system has negative iterations.

Blocks that no memory limit ties together may be moved apart by whole periods, so edges between them do not
bind: only edges inside one strongly connected component of edges and limits are kept, and each component's
first block starts in one period. Left out: blocks that free more than they add, micro-batch by
micro-batch, on a device; there no limit binds in the long run. Checked in
tests/tessel/search/repetend/test_find_repetend.py.

Source: the model is modulo scheduling, Rau, Iterative Modulo Scheduling (MICRO-27, 1994), with one integer
per pair as in Roundy (1992) and Hanen (1994) on cyclic job shops; memory rows are new here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import numpy as np

from tessel.search.model.problem import UNLIMITED, IntArray, Problem

MAX_UNIT_STEPS = 2**60
"""Most that products of units and steps may come to."""


@dataclass(frozen=True, eq=False)
class CyclicProblem:
    """The rules of a repetend with `copies` copies of each block; node = copy * num_blocks + block.

    Attributes:
        problem: what it was made from.
        copies: micro-batches in one period.
        spans: int64, shape (num_nodes,).
        arcs: int64, shape (num_arcs, 4): from, to, length, iterations.
        components: int64, shape (num_nodes,): number of each node's component.
        spread: int64, shape (num_components, 2): starts in a component differ by at most
            `spread[., 0] + spread[., 1] * period`.
        pairs: int64, shape (num_pairs, 2): nodes that share a device, but for two of span 0 that do not both
            hold memory, in any order; the first one is never behind the second in topological order.
        is_low: int64, shape (num_pairs,): 1 where of two blocks of span 0 that start together the first one
            frees and the second adds, so that the lower of the two h's that fit holds less.
        row_start: int64, shape (num_rows + 1,): where each memory row's terms start.
        row_limits: int64, shape (num_rows,).
        term_pair: int64, shape (num_terms,): the pair whose h the term multiplies.
        term_sign: int64, shape (num_terms,): 1 where the term has h itself, -1 where it has 1 - h.
        term_memory: int64, shape (num_terms,): what it is multiplied by.
        lifetime_start: int64, shape (num_lifetimes + 1,): where each device's lifetimes start.
        lifetime_limits: int64, shape (num_lifetimes, 2): limit, and unit-steps that the frees themselves
            last.
        life_nodes: int64, shape (num_life_terms, 2): the node that adds and the one that frees.
        life_units: int64, shape (num_life_terms,): units that live from the one's start to the other's.
    """

    problem: Problem
    copies: int
    spans: IntArray
    arcs: IntArray
    components: IntArray
    spread: IntArray
    pairs: IntArray
    is_low: IntArray
    row_start: IntArray
    row_limits: IntArray
    term_pair: IntArray
    term_sign: IntArray
    term_memory: IntArray
    lifetime_start: IntArray
    lifetime_limits: IntArray
    life_nodes: IntArray
    life_units: IntArray

    @property
    def num_nodes(self) -> int:
        """Blocks of one period."""
        return len(self.spans)

    @property
    def longest_period(self) -> int:
        """A period in which one micro-batch after the other fits whole."""
        return max(1, self.copies * int(self.problem.spans.sum() + self.problem.lags.sum()))


def make_cyclic_problem(problem: Problem, copies: int, *, is_whole: bool = False) -> CyclicProblem:
    """Return the rules of a repetend of that many micro-batches.

    Args:
        problem: the blocks and limits.
        copies: micro-batches in one period.
        is_whole: keep every edge, as if all blocks were tied together.
    """
    nodes = _nodes_in_order(problem, copies)
    components = np.zeros(len(nodes), dtype=np.int64) if is_whole else _components(problem, copies)
    arcs = np.array(list(_arcs(problem, copies, components)), dtype=np.int64).reshape(-1, 4)
    pairs = _pairs(problem, copies, nodes)
    rows = list(_memory_rows(problem, copies, {pair: index for index, pair in enumerate(pairs)}))
    terms = [term for _, row in rows for term in row]
    lifetimes = list(_lifetimes(problem, copies, components))
    matched = [term for *_, found in lifetimes for term in found]
    return CyclicProblem(
        problem=problem,
        copies=copies,
        spans=np.tile(problem.spans, copies),
        arcs=arcs,
        components=components,
        spread=_spread(problem, copies, components),
        pairs=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        is_low=_are_low(problem, pairs),
        row_start=np.cumsum([0, *(len(row) for _, row in rows)], dtype=np.int64),
        row_limits=np.array([limit for limit, _ in rows], dtype=np.int64),
        term_pair=np.array([term[0] for term in terms], dtype=np.int64),
        term_sign=np.array([term[1] for term in terms], dtype=np.int64),
        term_memory=np.array([term[2] for term in terms], dtype=np.int64),
        lifetime_start=np.cumsum([0, *(len(found) for *_, found in lifetimes)], dtype=np.int64),
        lifetime_limits=np.array([numbers[:2] for numbers in lifetimes], dtype=np.int64).reshape(-1, 2),
        life_nodes=np.array([term[:2] for term in matched], dtype=np.int64).reshape(-1, 2),
        life_units=np.array([term[2] for term in matched], dtype=np.int64),
    )


def is_limited(problem: Problem, device: int) -> bool:
    """Return whether the device's limit can bind in the long run."""
    return bool(problem.limits[device] < UNLIMITED and problem.net_memory[device] >= 0)


def _nodes_in_order(problem: Problem, copies: int) -> list[int]:
    return [copy * problem.num_blocks + block for block in problem.order for copy in range(copies)]


def _components(problem: Problem, copies: int) -> IntArray:
    """Number the nodes' components; copies of one block are always together."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.num_blocks))
    graph.add_edges_from(zip(problem.sources.tolist(), problem.targets.tolist(), strict=True))
    connected = list(map(sorted, nx.weakly_connected_components(graph)))
    for device in range(problem.num_devices):
        if is_limited(problem, device):
            for held in _tied_by_memory(problem, device, connected):
                nx.add_cycle(graph, held)
    component = np.zeros(problem.num_blocks, dtype=np.int64)
    found = sorted(nx.strongly_connected_components(graph), key=min)
    for number, members in enumerate(found):
        component[list(members)] = number
    return np.tile(component, copies)


def _tied_by_memory(problem: Problem, device: int, connected: list[list[int]]) -> Iterator[list[int]]:
    """Yield the blocks on a device whose iterations a limit ties together.

    Blocks connected by edges that free all they add stay by themselves: moved a period together, they hold
    what they held. The others are tied to each other.
    """
    others: list[int] = []
    for blocks in connected:
        held = [block for block in blocks if problem.memory[block] and problem.on_device[block, device]]
        if len(held) > 1 and problem.memory[held].sum() == 0:
            yield held
        else:
            others.extend(held)
    if len(others) > 1:
        yield others


def _arcs(problem: Problem, copies: int, components: IntArray) -> Iterator[tuple[int, int, int, int]]:
    size = problem.num_blocks
    for source in range(size):
        for target, steps in problem.successors[source]:
            if components[source] == components[target]:
                for copy in range(copies):
                    yield copy * size + source, copy * size + target, steps, 0
    if copies == 1:
        return
    for block in range(size):
        span = int(problem.spans[block])
        for copy in range(copies):
            following = (copy + 1) % copies
            yield copy * size + block, following * size + block, span, int(following == 0)


def _spread(problem: Problem, copies: int, components: IntArray) -> IntArray:
    """Bound how far apart a component's starts need to be.

    Sorted by start, no two neighbours need to be further apart than a period and the longest wait:
    else all later ones can move a period earlier, which keeps phases and edges, and holds no more memory.
    """
    longest = int(problem.spans.max(initial=0)) + int(problem.lags.max(initial=0))
    sizes = np.bincount(components)
    return np.stack([(sizes - 1) * longest, np.maximum(sizes - 1, 1)], axis=1).astype(np.int64)


def _pairs(problem: Problem, copies: int, nodes: list[int]) -> list[tuple[int, int]]:
    masks = [sum(1 << device for device in devices) for devices in problem.devices] * copies
    takes = (problem.spans > 0).tolist() * copies
    holds = (problem.memory != 0).tolist() * copies
    return [
        (u, v)
        for u, v in combinations(nodes, 2)
        if masks[u] & masks[v] and (takes[u] or takes[v] or (holds[u] and holds[v]))
    ]


def _are_low(problem: Problem, pairs: list[tuple[int, int]]) -> IntArray:
    u, v = np.array(pairs, dtype=np.int64).reshape(-1, 2).T % max(1, problem.num_blocks)
    frees_before_it_adds = (problem.memory[u] < 0) & (problem.memory[v] > 0)
    is_low: IntArray = ((problem.spans[u] + problem.spans[v] == 0) & frees_before_it_adds).astype(np.int64)
    return is_low


def _memory_rows(
    problem: Problem, copies: int, pair_index: dict[tuple[int, int], int]
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Yield limit and terms for each start of a block that adds memory on a limited device."""
    size = problem.num_blocks
    for device, blocks in enumerate(problem.blocks_by_device):
        if not is_limited(problem, device):
            continue
        held = [copy * size + block for copy in range(copies) for block in blocks if problem.memory[block]]
        for u in held:
            own = int(problem.memory[u % size])
            if own > 0:
                terms = [
                    (pair_index[u, v], 1, int(problem.memory[v % size]))
                    if (u, v) in pair_index
                    else (pair_index[v, u], -1, int(problem.memory[v % size]))
                    for v in held
                    if v != u
                ]
                yield int(problem.limits[device]) - own, terms


def _lifetimes(
    problem: Problem, copies: int, components: IntArray
) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Yield, by limited device, its limit, the unit-steps of the frees, and (adds, frees, units).

    The sum over all terms is the same however adds and frees are matched. A unit lifetimes to the end of the
    block that frees it, while which nothing else starts on the device, unless what adds takes no time.
    """
    longest = 1 + int(problem.spans.sum() + problem.lags.sum())
    for device, blocks in enumerate(problem.blocks_by_device):
        held = [block for block in blocks if problem.memory[block]]
        limit = int(problem.limits[device])
        if not held or problem.net_memory[device] != 0 or not is_limited(problem, device):
            continue
        units = int(np.abs(problem.memory[held]).sum())
        # Sums of units x steps have to fit 64 bits.
        is_large = 2 * (limit + units) * longest * copies**3 * problem.num_blocks >= MAX_UNIT_STEPS
        if is_large or len(set(components[held].tolist())) > 1:
            continue
        matched = _matched(problem, held)
        frees = [block for block in held if problem.memory[block] < 0]
        is_lived_out = all(problem.spans[block] > 0 for block in held if problem.memory[block] > 0)
        last = sum(-int(problem.memory[block]) * int(problem.spans[block]) for block in frees)
        terms = [
            (copy * problem.num_blocks + source, copy * problem.num_blocks + target, amount)
            for copy in range(copies)
            for source, target, amount in matched
        ]
        yield limit, copies * last if is_lived_out else 0, terms


def _matched(problem: Problem, held: list[int]) -> list[tuple[int, int, int]]:
    """Match what blocks add with what blocks free, the farthest apart first."""
    left = {block: abs(int(problem.memory[block])) for block in held}
    pairs = sorted(
        (-int(problem.paths[source, target]), source, target)
        for source in held
        for target in held
        if problem.memory[source] > 0 > problem.memory[target]
    )
    matched = []
    for _, source, target in pairs:
        amount = min(left[source], left[target])
        if amount:
            left[source] -= amount
            left[target] -= amount
            matched.append((source, target, amount))
    return matched
