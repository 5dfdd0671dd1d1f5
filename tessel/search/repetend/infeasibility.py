"""Whether memory limits leave room for any repetend, and which device to blame if not.

Checked in tests/tessel/search/repetend/test_find_repetend.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tessel.errors import InfeasibleError
from tessel.search.budget import SearchBudget
from tessel.search.model.memory_need import least_memory
from tessel.search.model.problem import UNLIMITED, Problem
from tessel.search.repetend.branch_and_bound import Feasibility, OrderSearch
from tessel.search.repetend.cyclic_problem import make_cyclic_problem

MAX_WORK = 50_000_000
"""Units of work spent on explaining one device's need."""


def limit_violation(problem: Problem) -> str | None:
    """Return what is wrong with the limits, device by device; None where each device alone could keep its."""
    for device in range(problem.num_devices):
        limit = int(problem.limits[device])
        if limit >= UNLIMITED:
            continue
        kept = int(problem.net_memory[device])
        if kept > 0:
            return (
                f"every micro-batch leaves {kept} units behind on device {device}, so that its limit {limit} "
                "is passed in the long run; free them in a later block, or give no limit"
            )
        needed = least_memory(problem, device)
        if needed > limit:
            return (
                f"device {device} needs at least {needed} unit{'s' * (needed != 1)} for one micro-batch, "
                f"its limit is {limit}; raise the limit, or recompute instead of keeping"
            )
    return None


def infeasible_error(problem: Problem, budget: SearchBudget) -> InfeasibleError:
    """Return the error for limits that each device alone could keep, but not all together."""
    limits = tuple(int(limit) for limit in problem.limits)
    for device, limit in enumerate(limits):
        if budget.is_over or limit >= UNLIMITED:
            continue
        needed = _least_limit(problem, device, budget)
        if needed is not None:
            return InfeasibleError(
                f"device {device} needs at least {needed} units for one micro-batch while the other devices "
                f"keep their limits, its limit is {limit}; raise the limit, or recompute instead of keeping"
            )
    return InfeasibleError(
        f"no repetend keeps the memory limits {list(limits)}, and no single higher one would do; raise "
        "several of them"
    )


def _least_limit(problem: Problem, device: int, budget: SearchBudget) -> int | None:
    """Return the least limit of one device with which some period works; None where none helps."""
    blocks = list(problem.blocks_by_device[device])
    low = int(problem.limits[device]) + 1
    high = int(np.maximum(problem.memory[blocks], 0).sum())
    if not _works(problem, device, high, budget):
        return None
    while low < high:
        middle = (low + high) // 2
        if _works(problem, device, middle, budget):
            high = middle
        else:
            low = middle + 1
    return high


def _works(problem: Problem, device: int, limit: int, budget: SearchBudget) -> bool:
    limits = problem.limits.copy()
    limits[device] = limit
    cyclic = make_cyclic_problem(replace(problem, limits=limits), 1)
    search = OrderSearch(cyclic, cyclic.longest_period)
    answer = search.run(MAX_WORK)
    budget.charge(search.operations)
    return answer is Feasibility.FEASIBLE
