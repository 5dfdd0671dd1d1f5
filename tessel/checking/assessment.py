"""The whole assessment on a case: does it end, does it fit, how far is it from the best, and what to change.

The best is the shortest of the hand-written orders and a searched one on the same stages under the same
limits, and the bound is one that no order on these stages can beat. The critical path is the longest chain of
blocks and hops; a device's share of it says where a change can help. Checked in
tests/tessel/checking/test_assessment.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tessel.checking.advice import Advice, Search, best_orders, find_advice
from tessel.checking.case import Case, Simulated, simulate, simulated, task_orders
from tessel.checking.deadlock import explain_deadlock
from tessel.checking.overlap import Overlapped, overlapped
from tessel.dag import Dag, Task
from tessel.errors import InfeasibleError
from tessel.orders import DeadlockError
from tessel.schedule import Schedule
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.model.instance import build_instance

MAX_ADVICE = 3
"""Changes that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathShare:
    """A device's part of the critical path.

    Attributes:
        device: its number; None for hops between devices.
        share: part of the makespan.
    """

    device: int | None
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is found out about a case.

    Attributes:
        case: what was checked.
        deadlock: who waits for whom, a sentence a task of the cycle; empty where it ends.
        found: its figures; None where it deadlocks.
        best: the best schedule that was found on the same stages; None where none fits.
        lower_bound: steps that no order on these stages can beat.
        critical_path: tasks that follow each other without a pause.
        shares: what devices and hops have of it, the largest first.
        advice: the changes worth most, the best first.
        overlapped: what it takes where pairs of a forward and a backward run together; None where none do.
            Everything else is of blocks one after the other.
    """

    case: Case
    deadlock: tuple[str, ...]
    found: Simulated | None
    best: Simulated | None
    lower_bound: int
    critical_path: tuple[Task, ...] = ()
    shares: tuple[PathShare, ...] = ()
    advice: tuple[Advice, ...] = ()
    overlapped: Overlapped | None = None

    @property
    def fits(self) -> bool:
        """Whether it ends and every device keeps its limit."""
        return self.found is not None and self.found.fits

    @property
    def is_good(self) -> bool:
        """Whether it ends and fits."""
        return not self.deadlock and self.fits


def assess(case: Case, *, search: Search | None = None, max_advice: int = MAX_ADVICE) -> Assessment:
    """Return the assessment on a case.

    Args:
        search: looks for better orders; None for the hand-written ones alone.
        max_advice: changes that are named at most.

    Raises:
        ScheduleError: an order has a block that the placement has not.
    """
    orders = best_orders(case, search)
    rooms = None if case.limits is None or min(case.limits) < 0 else case.limits
    bound = max(
        _least_makespan(case, rooms),
        *(schedule.lower_bound for schedule in orders),
        0,
    )
    try:
        found = simulate(case)
    except DeadlockError as error:
        sentences = explain_deadlock(case.placement, task_orders(case.placement, case.orders), error)
        best = _shortest(case, orders)
        return Assessment(case=case, deadlock=sentences, found=None, best=best, lower_bound=bound)
    factor = case.overlap_factor
    advice = find_advice(case, found, orders, search=search)
    path = Dag.of_schedule(found.schedule).critical_path()
    return Assessment(
        case=case,
        deadlock=(),
        found=found,
        best=_shortest(case, (found.schedule, *orders)),
        lower_bound=bound,
        critical_path=path,
        shares=_shares(found.schedule, path),
        advice=advice[:max_advice],
        overlapped=None if factor is None else overlapped(case, case.pairs, factor),
    )


def _least_makespan(case: Case, limits: Sequence[int] | None) -> int:
    """A makespan that no schedule beats; where none keeps the limits, that of schedules without any."""
    try:
        instance = build_instance(case.placement, micro_batches=case.micro_batches, memory=limits)
    except InfeasibleError:
        instance = build_instance(case.placement, micro_batches=case.micro_batches, memory=None)
    return makespan_lower_bound(instance)


def _shortest(case: Case, schedules: Sequence[Schedule]) -> Simulated | None:
    """Return the shortest of the schedules that fit."""
    found = [simulated(case, schedule) for schedule in schedules]
    return min((each for each in found if each.fits), key=lambda each: each.schedule.makespan, default=None)


def _shares(schedule: Schedule, path: tuple[Task, ...]) -> tuple[PathShare, ...]:
    steps: Counter[int | None] = Counter()
    blocks = schedule.placement.blocks
    for task in path:
        steps[blocks[task.block_index].devices[0]] += task.duration
    steps[None] = schedule.makespan - sum(steps.values())
    return tuple(
        PathShare(device=device, share=count / schedule.makespan)
        for device, count in sorted(steps.items(), key=lambda item: -item[1])
        if count
    )
