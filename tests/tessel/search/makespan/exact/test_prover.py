"""The prover raises a bound to what is known to be least, within its share of the work."""

from __future__ import annotations

import numpy as np

from benchmarks.cpsat.makespan import solve_makespan
from tessel.placement import Placement
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.exact.prover import Prover
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.list_scheduling import by_priority, list_schedule
from tessel.search.makespan.params import MakespanParams
from tessel.search.model.instance import build_instance
from tessel.shapes import vshape

MICRO_BATCHES, MEMORY = 4, (3, 3, 3)


def tight() -> Placement:
    """Return three stages whose bound by ramps and work alone is 28 and that of diagrams 32."""
    return vshape(3, lag=1)


def begun(params: MakespanParams) -> Incumbent:
    instance = build_instance(tight(), micro_batches=MICRO_BATCHES, memory=MEMORY)
    best = Incumbent(instance, makespan_lower_bound(instance), SearchBudget(5.0), params)
    start = np.empty(instance.num_tasks, dtype=np.int64)
    options = np.empty((0, MICRO_BATCHES), dtype=np.int64)
    list_schedule(
        instance.arrays, by_priority(instance.arrays, np.arange(len(start))), options, start, is_active=True
    )
    best.offer(start, "list scheduling")
    return best


def test_the_bound_rises_and_never_above_the_least_makespan() -> None:
    best = begun(MakespanParams(first_bound_work=1.0))
    before = best.lower_bound
    Prover.of(best).run()
    truth = solve_makespan(tight(), micro_batches=MICRO_BATCHES, memory=MEMORY, time_limit_s=60.0)
    assert truth.is_optimal
    assert truth.makespan is not None
    assert before < best.lower_bound <= truth.makespan


def test_it_takes_its_share_of_the_work_and_more_while_nothing_is_found() -> None:
    none = {"first_bound_work": 0.0, "bound_share": 0.0, "bound_share_while_stuck": 0.0}
    shares = ({}, {"bound_share": 0.1}, {"bound_share_while_stuck": 0.1}, {"first_bound_work": 0.1})
    used = []
    for share in shares:
        best = begun(MakespanParams(**{**none, **share}))
        best.budget.charge(OPERATIONS_A_UNIT)
        prover = Prover.of(best)
        prover.run()
        used.append(prover.used)
    assert used[0] == 0
    assert min(used[1:]) > 0
    found_now = begun(MakespanParams(**{**none, "bound_share_while_stuck": 0.1}))
    found_now.budget.charge(OPERATIONS_A_UNIT)
    found_now.best = type(found_now.best)(
        found_now.best.makespan, found_now.best.start, "", found_now.budget.operations
    )
    prover = Prover.of(found_now)
    prover.run()
    assert prover.used == 0
