"""The best candidates of a plan's search: layouts priced, timed in the orders of rules, and searched.

The `Pool` keeps the best candidate of each family, counts and charges what is done, and tells of
improvements. Checked in tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from tessel.batches import Batch
from tessel.errors import InfeasibleError
from tessel.handwritten import OVERLAPPING
from tessel.handwritten.strongest import MAX_TASKS
from tessel.planning.candidates.candidate import Candidate, cut_of, has_headroom, num_tasks, promise, rank
from tessel.planning.candidates.families import Family, family_of
from tessel.planning.candidates.layout_bound import layout_bound
from tessel.planning.candidates.problem import Problem
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import (
    TrainingStep,
    choose_step_us,
    estimate_step,
    step_of_figures,
)
from tessel.planning.cutting.cut import Cut
from tessel.planning.layout import Layout
from tessel.planning.orders.class_order import rows_timed
from tessel.planning.orders.rule_order import PAIRINGS, order_key
from tessel.planning.orders.rules import rules_of
from tessel.planning.orders.timed_order import (
    OPERATIONS_A_LAYOUT,
    OPERATIONS_A_NEW_TASK,
    OPERATIONS_A_SIMULATED_TASK,
    OPERATIONS_A_TASK,
    TimedOrder,
    in_flight_by_stage,
    schedule_in_order,
    time_rule,
)
from tessel.planning.plan_result import SEARCHED, PlanProgress
from tessel.schedule import Schedule
from tessel.search.batches.assignment import Assignment, assign_micro_batches
from tessel.search.batches.find_batch_schedule import find_batch_schedule
from tessel.search.budget import SearchBudget
from tessel.search.makespan.find_schedule import find_schedule
from tessel.search.makespan.params import MakespanParams, Phase
from tessel.search.overlap.find_overlapped import find_overlapped

MAX_BLOCKS_PROVEN = 16
"""Blocks of a micro-batch up to which every order is looked at before it is said that none fits: the search
of one gives up after 200 000 sets of blocks (`tessel.search.model.instance`)."""

OPERATIONS_A_TASK_SEARCHED = 20_000
"""Charged at least for each task of an order that is searched: below, a search only sets up."""

PROVING = MakespanParams()

NOT_PROVING = MakespanParams(left_out=frozenset({Phase.DECISION_DIAGRAMS}))
"""Of orders that are only compared: decision diagrams took two thirds of the time."""


MAX_KNOWN = 2048
"""Layouts whose figures, and as many whose steps in the orders of rules, are kept: baselines and moves of
cuts come back to what first cuts were timed with. Some 20 kB each, of a hundred stages."""


_RULE_NAMES = frozenset(rule.name for rule in OVERLAPPING)


@dataclass(slots=True, eq=False)
class Pool:
    """The candidates of one search.

    Attributes:
        budget: what may be spent.
        on_progress: told of each better step.
        lower_bound_us: no layout has a shorter step.
        best: the fastest candidate with an order.
        by_family: the fastest of each family.
        displaced: candidates that a layout given by hand took the place of, still to be searched.
        layouts: how many were priced.
        orders: how many orders were searched.
        figures: from a family and a layout of it to times and bytes of its stages.
        time_in_order: from a rule, a family and a layout of it to the step in the rule's order.
        in_flight: from a rule and a family to the micro-batches that each stage holds in the rule's order.
        known_cuts: first cuts by what they were made for; None for none that fits.
    """

    problem: Problem
    budget: SearchBudget
    on_progress: Callable[[PlanProgress], None] | None = None
    lower_bound_us: float = 0.0
    best: Candidate | None = None
    by_family: dict[Family, Candidate] = field(default_factory=dict)
    displaced: list[Candidate] = field(default_factory=list)
    layouts: int = 0
    orders: int = 0
    figures: Callable[[Family, Layout], StageFigures] = field(init=False)
    time_in_order: Callable[[str, Family, Layout], TimedOrder] = field(init=False)
    in_flight: Callable[[str, Family], tuple[float, ...]] = field(init=False)
    known_cuts: dict[object, Cut | None] = field(default_factory=dict)
    _known_orders: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        figures = lru_cache(MAX_KNOWN)(self.problem.figures)

        def time_in_order(rule: str, family: Family, layout: Layout) -> TimedOrder:
            own = figures(family, layout)
            return time_rule(rule, layout, own, choose_step_us(own))

        def in_flight(rule: str, family: Family) -> tuple[float, ...]:
            layout = family.any_layout(self.problem.num_layers)
            return in_flight_by_stage(rule, layout, figures(family, layout))

        self.figures = figures
        self.in_flight = lru_cache(MAX_KNOWN)(in_flight)
        self.time_in_order = lru_cache(MAX_KNOWN)(time_in_order)

    @property
    def best_us(self) -> float:
        """Microseconds of the best step so far; infinite before there is one."""
        return math.inf if self.best is None else self.best.step_us

    def price(self, family: Family, cut: Cut, rules: Iterable[str] | None = None) -> Candidate:
        """Return the candidate of a cut with the best fitting order of some rules, and keep it if it is good.

        Args:
            family: degrees and placement.
            cut: where stages begin, and which recompute.
            rules: names of rules; every one that applies if None.
        """
        layout = family.layout(cut.bounds, cut.recompute)
        figures = self.figures(family, layout)
        self.layouts += 1
        self.budget.charge(OPERATIONS_A_LAYOUT)
        micro_batches = layout.micro_batches // len(figures.chains)
        if rules is None:
            rules = rules_of(
                layout,
                has_backward=figures.has_backward,
                is_split=figures.backward_input_us is not None,
                in_flight=in_flight_limits(layout),
                overlaps=figures.overlap_factor is not None,
            )
        timed = self._best_of_rules(rules, family, layout) if has_headroom(figures) else None
        candidate = Candidate(
            family=family,
            cut=cut,
            layout=layout,
            figures=figures,
            order="" if timed is None else timed.rule,
            estimate=None if timed is None else timed.estimate,
            lower_bound_us=layout_bound(figures, micro_batches=micro_batches),
        )
        self.offer(candidate)
        return candidate

    def _best_of_rules(self, rules: Iterable[str], family: Family, layout: Layout) -> TimedOrder | None:
        figures = self.figures(family, layout)
        found = []
        for rule in rules:
            self.charge_order(rule, layout, figures)
            timed = self.time_in_order(rule, family, layout)
            if timed.estimate.fits:
                found.append(timed)
        return min(found, key=lambda timed: timed.estimate.step_us, default=None)

    def charge_order(self, rule: str, layout: Layout, figures: StageFigures) -> None:
        """Charge a walk over the order of a rule, and writing it down the first time."""
        if layout.divided_stages:
            tasks = len(figures.groups) * layout.micro_batches * 2
            self.budget.charge(OPERATIONS_A_SIMULATED_TASK * tasks)
            return
        key = order_key(rule, layout, figures)
        tasks = len(figures.devices) * key.micro_batches * 2
        ways = rows_timed(figures, layout.data_parallel)
        ways *= 1 if figures.overlap_factor is None else len(PAIRINGS)
        self.budget.charge(OPERATIONS_A_TASK * tasks * ways)
        if key not in self._known_orders:
            self._known_orders.add(key)
            self.budget.charge(OPERATIONS_A_NEW_TASK * tasks * ways)

    def search(
        self,
        candidate: Candidate,
        budget: SearchBudget,
        *,
        seed: int,
        proves: bool = False,
    ) -> Candidate:
        """Return the candidate with the best order that a search finds, never a slower one.

        Args:
            candidate: its layout has room for one micro-batch.
            budget: what may be spent on it, a part of the pool's.
            proves: whether a part goes into the bound of its orders, which few layouts need.

        Returns:
            Of a large step the candidate itself, where the budget does not cover a search.
        """
        tasks = num_tasks(candidate)
        if candidate.order and tasks > MAX_TASKS and not budget.covers(OPERATIONS_A_TASK_SEARCHED * tasks):
            return candidate  # to set up alone times the published rules once more
        step = step_of_figures(candidate.layout, candidate.figures)
        self.orders += 1
        if step.batch is not None:
            return self._search_unequal(candidate, step, step.batch, budget, seed=seed)
        start_from = candidate.schedule
        if start_from is None and candidate.order:
            start_from = schedule_in_order(candidate.order, step)
        factor = step.figures.overlap_factor
        find = find_schedule if factor is None else partial(find_overlapped, factor=factor)
        best = _Fastest(step, candidate)
        budget.on_progress = lambda progress: best.look_at(progress.makespan, budget.answer)
        try:
            schedule = find(
                step.placement,
                micro_batches=step.micro_batches,
                memory=step.limits,
                budget=budget,
                seed=seed,
                start_from=start_from,
                params=PROVING if proves else NOT_PROVING,
            )
        except InfeasibleError:
            # All orders of few blocks were looked at; with more, one might have been missed.
            is_proof = len(step.placement.blocks) <= MAX_BLOCKS_PROVEN
            return replace(candidate, lower_bound_us=math.inf) if is_proof else candidate
        best.judge(schedule)
        bound_us = max(candidate.lower_bound_us, step_bound_us(step, schedule.lower_bound))
        found = replace(best.found, lower_bound_us=bound_us)
        self.offer(found)
        return found

    def _search_unequal(
        self, candidate: Candidate, step: TrainingStep, batch: Batch, budget: SearchBudget, *, seed: int
    ) -> Candidate:
        """Return the candidate with the best assignment and orders that a search finds, likewise."""
        replicas = candidate.layout.data_parallel
        try:
            if replicas == 1:
                schedule = find_batch_schedule(
                    step.placement, batch, memory=step.limits, budget=budget, seed=seed
                )
                shared = Assignment.of_one(schedule)
            else:
                shared = assign_micro_batches(
                    step.placement, batch, replicas=replicas, memory=step.limits, budget=budget, seed=seed
                )
        except InfeasibleError:
            return candidate
        estimate = estimate_step(step, *shared.schedules)
        bound_us = max(candidate.lower_bound_us, step_bound_us(step, shared.lower_bound))
        found = replace(candidate, lower_bound_us=bound_us)
        if estimate.fits and estimate.step_us < candidate.step_us * (1 - 1e-12):
            found = replace(found, order=SEARCHED, estimate=estimate, shared=shared)
        self.offer(found)
        return found

    def offer(self, candidate: Candidate) -> None:
        """Keep a candidate if it is the best of its family, and tell if it is the best of all."""
        known = self.by_family.get(candidate.family)
        if known is None or rank(candidate) <= rank(known):
            self.by_family[candidate.family] = candidate
        if candidate.estimate is None:
            return
        if candidate.step_us < self.best_us * (1 - 1e-12):
            self.best = candidate
            budget: SearchBudget | None = self.budget
            while budget is not None:
                budget.has_answer = True
                budget = budget.whole
            if self.on_progress is not None:
                self.on_progress(
                    PlanProgress(
                        step_us=candidate.step_us,
                        lower_bound_us=min(self.lower_bound_us, candidate.step_us),
                        elapsed_s=self.budget.elapsed_s,
                        name=candidate.planned().name,
                    )
                )
        elif (
            self.best is not None
            and candidate.layout == self.best.layout
            and candidate.step_us <= self.best.step_us
        ):
            self.best = candidate

    def finalists(self) -> list[Candidate]:
        """Return the best candidate of each family that may still win, the most promising first.

        Promising is what is fast in the order of a rule, or may be by its bound: half of each.
        """
        alive = [
            candidate
            for candidate in (*self.by_family.values(), *self.displaced)
            if candidate.lower_bound_us < self.best_us and has_headroom(candidate.figures)
        ]
        return sorted(alive, key=lambda candidate: (promise(candidate), rank(candidate)))


@dataclass(slots=True, eq=False)
class _Fastest:
    """The fastest step of those whose orders a search finds on its way; its last is the shortest pipeline.

    Attributes:
        found: the candidate with the best order so far.
    """

    step: TrainingStep
    found: Candidate

    def look_at(self, makespan: int, answer: Callable[[], object] | None) -> None:
        """Judge the order that the search has now, unless its makespan says that it is no faster."""
        if answer is not None and step_bound_us(self.step, makespan) < self.found.step_us * (1 - 1e-12):
            schedule = answer()
            assert isinstance(schedule, Schedule)  # the search's own
            self.judge(schedule)

    def judge(self, schedule: Schedule) -> None:
        """Keep an order if its step is shorter, or if there is none of the same step yet."""
        estimate = estimate_step(self.step, schedule)
        known = self.found
        if not estimate.fits:
            return
        if estimate.step_us < known.step_us * (1 - 1e-12):
            order = schedule.found_by if schedule.found_by in _RULE_NAMES else SEARCHED
            self.found = replace(known, order=order, estimate=estimate, schedule=schedule)
        elif known.schedule is None and estimate.step_us <= known.step_us:
            self.found = replace(known, schedule=schedule)


def step_bound_us(step: TrainingStep, makespan_steps: int) -> float:
    """Return a step time that follows from a bound on the makespan.

    The block that ends last ends some stage, or the tower, on its device, whose all-reduce and update follow.
    """
    figures = step.figures
    us_of = {stage: each.us for each in figures.synchronisations for stage in each.stages}
    return makespan_steps * step.step_us + min(
        us_of.get(stage, 0.0) + figures.after_us[device]
        for stage, group in enumerate(figures.places)
        for device in group
    )


def in_flight_limits(layout: Layout) -> Sequence[int]:
    """Return limits of micro-batches in flight that are tried where memory is tight, at most three."""
    published = min(layout.pipeline, layout.micro_batches)
    return tuple(sorted({limit for limit in (published // 2, published // 4, 1) if limit}, reverse=True))


def candidate_of(pool: Pool, layout: Layout) -> Candidate:
    """Return the candidate of a layout that was given."""
    return pool.price(family_of(layout), cut_of(layout))


def offer_by_hand(pool: Pool, layout: Layout) -> Candidate:
    """Return the candidate of a layout that a user wrote, without giving up what is known of its family.

    In the order of a rule it is often the fastest cut of its family, and with a searched order another one.
    """
    known = pool.by_family.get(family_of(layout))
    candidate = candidate_of(pool, layout)
    if known is not None and known.cut != candidate.cut:
        pool.displaced.append(known)
    return candidate
