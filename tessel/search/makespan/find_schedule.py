"""Find the shortest whole schedule of N micro-batches under memory limits, and say how short any could be.

    instance, bounds → initial schedules: one that always exists, hand-written rules, list scheduling
        → repetends with warm-up and cool-down, tabu search, window search, tighter bounds and, for small
          problems, an exact search and CP-SAT in turn, until proven or the budget is used up → schedule

Every phase offers schedules to one incumbent, and what comes next depends on the work done so far, never on
the limit: so the answer only gets better with work, one with a higher limit is never worse, and an interrupt
returns the best so far. Under a limit no phase can deadlock (`tessel.search.makespan.list_scheduling`). The
budget is looked at between rounds of fixed size, each charged for its work, so equal work gives equal
answers. Tabu searches start from the best schedule, one after the other, each for as long as it gets better;
where two begin at the same one, random choices among equal moves and critical paths lead them apart. What the
model leaves out is what placements leave out: contention between transfers. Checked in
tests/tessel/search/makespan/test_find_schedule.py against exhaustive search and the independent validation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.bounds.lower_bounds import makespan_lower_bound
from tessel.search.makespan.constraint_model import ConstraintSearch
from tessel.search.makespan.device_orders import Orders, orders_of
from tessel.search.makespan.exact.device_subsets import DeviceSubsetSearch
from tessel.search.makespan.exact.exact_search import ExactSearch
from tessel.search.makespan.exact.prover import Prover
from tessel.search.makespan.incumbent import Incumbent
from tessel.search.makespan.initial_schedules import (
    offer_held_back,
    offer_list_schedules,
    offer_rules,
    offer_serial,
)
from tessel.search.makespan.list_scheduling import NEVER
from tessel.search.makespan.option_search import OptionSearch
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.makespan.repeating_part import schedule_of
from tessel.search.makespan.tabu_search import tabu_search
from tessel.search.makespan.warmup_cooldown import RepetendSearch
from tessel.search.makespan.window_search import WindowSearch
from tessel.search.model.instance import Instance, IntArray, build_instance

logger = logging.getLogger(__name__)

FINISHING_S_A_TASK = 5e-7
"""Seconds it takes to write down one task of the answer: 0.05 s for 64 devices and 512 micro-batches, and as
much again to be safe."""

SETTING_UP_OPERATIONS = 2_000_000
"""Charged for bounds and arrays of any placement, however small."""

OPERATIONS_A_TASK = 6_000
"""Charged for each task of the schedule: its place in the arrays, and writing it down in the end."""


def find_schedule(  # noqa: PLR0913  # what is searched, what may be spent, and how it is answered
    placement: Placement,
    *,
    micro_batches: int,
    memory: Sequence[int] | int | None = None,
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    start_from: Schedule | None = None,
    params: MakespanParams | None = None,
    answered: Callable[[Schedule], Schedule] = lambda found: found,
) -> Schedule:
    """Return the best schedule found; it is valid, and no longer than the hand-written ones that fit.

    All rules are built before any limit counts, as published, and up to 20 000 tasks in all their variants;
    but `1f1b-limited` is left out where the time is over and another rule fits.

    Ends early when the makespan is proven optimal. An interrupt (Ctrl-C, or `budget.interrupt`) ends the
    search and returns the best schedule so far, once the rules are built: before that nobody is told of a
    schedule, and the budget has no answer. With a limit on work, the default, equal calls give equal
    schedules.

    Args:
        placement: blocks of one micro-batch.
        micro_batches: how many are run, >= 1.
        memory: limit in units, one a device or one for all; None for none.
        budget: what may be spent, who is told of each shorter schedule, and the clock; `DEFAULT_WORK` units
            of work if left out. A schedule comes back however little it is, and so do the hand-written
            rules, which take time linear in the tasks.
        time_limit_s: in place of a budget: seconds for everything, > 0, without a limit on work, so that the
            answer depends on how fast the machine is. What is under way when they are over takes some
            hundredths of a second to stop.
        seed: seed of what is random.
        start_from: a schedule of the same micro-batches that keeps the limits; the answer is never longer.
        params: how the budget is divided; the defaults of `MakespanParams` if left out.
        answered: makes the answer of the best schedule, here and where the budget is asked for it.

    Raises:
        InfeasibleError: no schedule keeps the limits; names a device and what it needs at least.
        KeyboardInterrupt: Ctrl-C before the rules were built.
    """
    if time_limit_s is not None and time_limit_s <= 0:
        raise ValueError(f"time_limit_s is {time_limit_s}; give a number of seconds above 0")
    budget = SearchBudget.of(budget, time_limit_s=time_limit_s)
    instance = build_instance(placement, micro_batches=micro_batches, memory=memory)
    best = Incumbent(
        instance=instance,
        lower_bound=makespan_lower_bound(instance),
        budget=_budget_of_search(budget, instance),
        params=params or MakespanParams(),
    )
    if start_from is not None:
        best.offer(_starts_of(start_from, instance), start_from.found_by)
    offer_serial(best)
    offer_rules(best)
    budget.answer = lambda: answered(_answer(best, budget))
    best.on_better = budget.report
    try:
        budget.report(best.makespan, best.lower_bound, best.best.found_by)
        windows = WindowSearch(best, state=seed & 0x7FFFFFFF)
        windows.rebuild_ends()
        offer_list_schedules(best)
        offer_held_back(best)
        _improve(best, windows, seed=seed)
    except KeyboardInterrupt:
        budget.interrupt()
        logger.info("interrupted; the best schedule so far is kept")
    return answered(_answer(best, budget))


def _budget_of_search(budget: SearchBudget, instance: Instance) -> SearchBudget:
    """Return what may be spent on the search itself: time is kept for writing down what it finds."""
    finishing_s = FINISHING_S_A_TASK * instance.num_tasks
    found = budget.part(1.0, kept_s=min(finishing_s, budget.seconds_left / 2))
    found.charge(SETTING_UP_OPERATIONS + OPERATIONS_A_TASK * instance.num_tasks)
    return found


def _starts_of(schedule: Schedule, instance: Instance) -> IntArray:
    """Return the starts by task of a schedule that is to be improved."""
    if (
        schedule.micro_batches != instance.micro_batches
        or len(schedule.placement.blocks) != instance.num_blocks
    ):
        raise ValueError("start_from is a schedule of another placement or number of micro-batches")
    limits = instance.memory
    if limits is not None and any(
        peak > limit for peak, limit in zip(schedule.peak_memory, limits, strict=True)
    ):
        raise ValueError(f"start_from holds {schedule.peak_memory} units, more than the limits {limits}")
    start = np.full(instance.num_tasks, -1, dtype=np.int64)
    for (block, micro_batch), when in schedule.start_by_block().items():
        start[micro_batch * instance.num_blocks + block] = when
    return start


def _improve(best: Incumbent, windows: WindowSearch, *, seed: int) -> None:
    """Cut repetends, search near the best schedule and raise the bound, a round each in turn."""
    repetends, prover = RepetendSearch.of(best), Prover.of(best)
    exact, model = ExactSearch.of(best), ConstraintSearch.of(best, seed=seed)
    subsets = DeviceSubsetSearch.of(best, prover, exact)
    repetends.run()
    exact.run()
    prover.run()
    subsets.run()
    local_search = _LocalSearch(best, state=seed & 0x7FFFFFFF)
    options = OptionSearch(best)
    while not best.is_over and not {Phase.TABU_SEARCH, Phase.WINDOWS} <= best.params.left_out:
        options.search_round()
        local_search.search_round()
        windows.search_round()
        repetends.run()
        exact.run(yields=subsets.tries_all)
        prover.run()
        subsets.run()
        model.run()


def _answer(best: Incumbent, budget: SearchBudget) -> Schedule:
    """Return the best schedule so far, and tell the budget whether it is proven."""
    found = best.best
    schedule = schedule_of(
        best.instance,
        found.start,
        lower_bound=best.lower_bound,
        search_seconds=best.budget.elapsed_s,
        found_by=f"{found.found_by}{best.proof}",
    )
    budget.is_proven = schedule.optimal
    return schedule


_ROUND_TASKS = 1_000_000
"""Tasks timed between two looks at the budget: a few hundredths of a second."""

_OPERATIONS_A_LOOK = 80
"""Charged for each task that a round looks at."""


@dataclass(slots=True)
class _LocalSearch:
    """The tabu search under way.

    Attributes:
        best: the incumbent, where it begins and what it improves.
        state: state of the random generator.
        orders: where it stands; None before it begins.
        makespan: the best that it has found.
        moves: moves so far.
        last_gain: moves so far when it last got better.
    """

    best: Incumbent
    state: int
    orders: Orders | None = None
    makespan: int = NEVER
    moves: int = 0
    last_gain: int = 0

    def search_round(self) -> None:
        """Go on with the search under way, or begin the next one, and offer what is better."""
        best = self.best
        if Phase.TABU_SEARCH in best.params.left_out:
            return
        if self.orders is None:
            self.orders = orders_of(best.instance.arrays, best.best.start)
            self.makespan, self.moves, self.last_gain = NEVER, 0, 0
        num_tasks = len(self.orders.sequence)
        patience = min(best.params.min_patience + 4 * len(best.best.start), best.params.max_patience)
        num_moves = min(max(_ROUND_TASKS // num_tasks, 10), patience)
        makespan, self.state, num_looks = tabu_search(
            best.instance.arrays,
            self.orders,
            self.makespan,
            self.moves,
            num_moves,
            best.lower_bound,
            self.state,
        )
        best.budget.charge(num_looks * _OPERATIONS_A_LOOK)
        self.moves += num_moves
        if makespan < self.makespan:
            self.makespan, self.last_gain = makespan, self.moves
        if makespan < best.makespan:
            best.offer(self.orders.best, "neighbourhood search")
        if self.moves - self.last_gain >= patience:
            self.orders = None
