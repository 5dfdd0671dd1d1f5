"""The same period with less latency: how soon a micro-batch that has begun is done.

The period decides how fast micro-batches follow each other, the latency how long the first and the last one
take, and with it warm-up and cool-down. Among the repetends of one period those with less latency have
shorter ones and hold less memory. A limit on the latency is an arc from each last block of a copy back to
each of its first, so the search for orders answers it too; the limit is bisected. Each try gets few steps and
counts as impossible when they are used up, so the latency found is short, not proven optimal.

Checked in tests/tessel/search/repetend/test_latency.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tessel.search.budget import SearchBudget
from tessel.search.model.problem import IntArray, Problem
from tessel.search.repetend.branch_and_bound import Feasibility, OrderSearch
from tessel.search.repetend.cyclic_problem import CyclicProblem, make_cyclic_problem
from tessel.search.repetend.params import RepetendParams, RepetendPhase
from tessel.search.repetend.steady_state_memory import keeps_memory


def shorten_latency(
    problem: Problem, starts: IntArray, period: int, budget: SearchBudget, params: RepetendParams
) -> IntArray:
    """Return starts of the same period in which no copy takes longer, and if possible all less long.

    Args:
        problem: the blocks and limits.
        starts: int64, shape (copies, num_blocks), a repetend.
        budget: charged for each try, and looked at before it.
        params: how much a try may take, and how many blocks are tried.

    Returns:
        int64, of the same shape, the earliest 0.
    """
    copies = len(starts)
    if starts.size > params.max_latency_blocks or RepetendPhase.LATENCY in params.left_out:
        return starts
    least, shortest = int((problem.heads + problem.tails).max()), latency(problem, starts)
    if least == shortest:
        return starts
    cyclic = make_cyclic_problem(problem, copies, is_whole=True)
    while least < shortest and not budget.is_over:
        middle = (least + shortest) // 2
        search = OrderSearch(_with_latency(cyclic, middle), period)
        answer = search.run(params.latency_try_work + cyclic.num_nodes**3)
        budget.charge(search.operations)
        if answer is Feasibility.FEASIBLE and search.starts is not None:
            found = search.starts.reshape(copies, -1)
            if not keeps_memory(problem, found, period):
                return starts
            starts, shortest = found, latency(problem, found)
        else:
            least = middle + 1
    return starts


def latency(problem: Problem, starts: IntArray) -> int:
    """Return the steps from the first start of a copy to its last end; of several copies the longest."""
    return int(((starts + problem.spans).max(axis=1) - starts.min(axis=1)).max())


def _with_latency(cyclic: CyclicProblem, limit: int) -> CyclicProblem:
    problem = cyclic.problem
    size = problem.num_blocks
    first = [block for block in range(size) if not problem.predecessors[block]]
    last = [block for block in range(size) if not problem.successors[block]]
    arcs = [
        (copy * size + end, copy * size + begin, int(problem.spans[end]) - limit, 0)
        for copy in range(cyclic.copies)
        for end in last
        for begin in first
    ]
    return replace(cyclic, arcs=np.concatenate([cyclic.arcs, np.array(arcs, dtype=np.int64)]))
