"""The phases of a plan's search, each with its share of one budget.

Families are bounded, the promising ones cut and timed in the orders of rules, the best of those compared,
moved and searched; each phase leaves off where nothing faster is possible. The phases come in rounds, each
longer than the one before and begun with all that is known. How long a round is does not depend on the
budget, which only ends the last: what less work finds, more work has found on its way, and the search's best
step is never longer. Checked in tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from tessel.errors import ScheduleError
from tessel.handwritten.paired import timed_again
from tessel.planning.candidates.baselines import find_baselines, strongest
from tessel.planning.candidates.bounded_families import BoundedFamilies
from tessel.planning.candidates.candidate import Candidate, has_headroom, num_tasks
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.neighbourhood import Neighbourhood
from tessel.planning.candidates.pool import OPERATIONS_A_TASK_SEARCHED, Pool, candidate_of
from tessel.planning.candidates.problem import Problem
from tessel.planning.candidates.sweep import hill_climb, initial_cuts
from tessel.planning.costs.training_step import estimate_step, step_of_figures
from tessel.planning.cutting.cut import Cut
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.orders.rules import rules_of
from tessel.planning.plan_result import Baseline, PlannedStep, PlanProgress
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget, StoppedBy

logger = logging.getLogger(__name__)

FIRST_ROUND = 3 / 8

ROUND_GROWTH = 7.19
"""Units of work of the first round, and how many times as many each next one may spend. A plan's default,
less what is kept for planning again, ends with a whole third one, which has 86 % of it. With a factor of 3, a
budget of half a unit ended in the midst of its fourth, and three plans of twenty got up to 1 % longer; with 2
or 3 while families are left to be cut, Llama-3.1 405B on 512 devices got 4 % longer, as no round had enough
for one large order."""


SWEEP_SHARE = 0.35

BASELINES_SHARE = 0.3

CLIMB_SHARE = 0.2
"""Shares, each of what is left, of first cuts, of baselines and of moves of cuts in orders of rules."""


CLIMBED_FAMILIES = 6
"""Families whose cuts are improved in orders of rules before any order is searched."""


CLIMBS_PER_LAYER = 6
"""Cuts priced in that, for each layer of the model."""


ROUNDS = ((12, 0.25), (4, 0.35))
"""Candidates whose orders are searched, and the share of what is left: fewer, and longer, each time."""


DEVICES_SHARE = 0.3
"""Share of what is left that goes into swaps of unequal devices, if not all orders of them are families."""


MOVES_SHARE = 0.5
"""Share of what is left that goes into cuts near the best, judged by searched orders."""


ENUMERATION_SHARE = 0.5
"""Share of what is left that goes into looking at all cuts. Without a share it took everything where a looser
limit let 1024 sets of stages recompute, and the plan's step got 3 % longer: no order was searched."""


FINAL_SHARE = 0.25
"""Share of the budget kept for the order of the best layout."""


FINDING_SHARE = 0.5
"""Share of that which goes into a shorter order alone, before any into the bound too."""


SETTLED = 1.01
"""Step over its layout's bound below which a shorter order of the most promising layout is sought, not of the
best."""


EQUAL_DEGREES_SHARE = 0.5
"""Share of the budget for stages of equal tensor-parallel degrees, where they may also differ."""


EXPLAINING_SHARE = 0.25
"""Share of the budget kept for planning again under other circumstances."""


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The search of one plan.

    Attributes:
        budget: of the whole search.
        seeds: candidates of another plan to begin with.
        baselines: rows to compare with.
        changed: what planning again found under other circumstances, by what would be different.
    """

    pool: Pool
    budget: SearchBudget
    families: BoundedFamilies
    near: Neighbourhood
    seed: int
    seeds: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    changed: Mapping[str, PlannedStep] = field(default_factory=dict)
    _found_again: list[Candidate] = field(default_factory=list)
    _degrees_us: dict[tuple[int, ...], float] = field(default_factory=dict)
    _timed_by_rule: set[Family] = field(default_factory=set)
    _swept: set[Family] = field(default_factory=set)
    _climbed: set[tuple[Family, Cut]] = field(default_factory=set)
    _are_compared: bool = False

    @classmethod
    def of(
        cls,
        problem: Problem,
        budget: SearchBudget,
        *,
        seed: int,
        on_progress: Callable[[PlanProgress], None] | None = None,
    ) -> PlanSearch:
        """Return the search of a problem, not yet begun.

        Raises:
            ScheduleError: no degrees use the devices for this batch.
        """
        share = 1.0 - (EXPLAINING_SHARE if problem.options.what_if else 0.0)
        pool = Pool(problem, budget.part(share), on_progress)
        bounded = BoundedFamilies.of(pool, budget)
        return cls(pool, budget, bounded, Neighbourhood(pool, bounded, seed), seed)

    def run(self) -> None:
        """Search until the best step is proven, or the budget is used up.

        Stages with degrees of their own come after a whole search of those with equal ones, whose step is
        then never shorter than the plan's.
        """
        self.families.bound_all()
        for seed in self.seeds:
            self._begin_from(seed)
        if self.families.stems and not self.families.later:
            self.families.bound_untried_degrees()
        elif self.families.stems:
            with self._share(EQUAL_DEGREES_SHARE):
                self._search()
            self.families.take_in_later()
        self._search()

    def run_until_interrupted(self) -> None:
        """Search; an interrupt ends that and keeps the best step so far.

        Raises:
            KeyboardInterrupt: interrupted before there was any step.
        """
        try:
            self.run()
        except KeyboardInterrupt:
            if self.pool.best is None:
                raise
            self.budget.interrupt()
            logger.info("interrupted; the best step so far is kept")

    def _search(self) -> None:
        """Search the families in rounds."""
        whole, work, is_last = self.pool.budget, FIRST_ROUND, False
        while not is_last and (self.pool.best is None or not self.families.is_done):
            is_last = not whole.covers(work * OPERATIONS_A_UNIT)
            with self._within(whole.part_of_work(work)):
                with self._share(1.0 - FINAL_SHARE):
                    self._choose_layout()
                self._search_best(FINDING_SHARE, proves=False)
                self._search_best(1.0, proves=True)
            work *= ROUND_GROWTH

    def _choose_layout(self) -> None:
        """Time families in orders of rules, search the orders of the most promising, and move their cuts."""
        with self._share(SWEEP_SHARE):
            self._sweep()
        if self.pool.problem.options.baselines and not self._are_compared:
            with self._share(BASELINES_SHARE):
                every = self._by_promise()
                alike = [family for family in every if not family.stage_tensor_parallel]
                found = find_baselines(self.pool, alike or every, self.families.quick_bound)
                self._are_compared = not self.pool.budget.is_over
                overdrawn = self.pool.budget.overdrawn
            # Each row has something, whatever is left: that is shown, and took all work of large jobs.
            self.pool.budget.charge(-overdrawn)
            self.baselines = strongest(self.baselines, found)
        with self._share(CLIMB_SHARE):
            self._climb()
        with self._share(ENUMERATION_SHARE):
            self.near.enumerate()
        for count, share in ROUNDS:
            self._search_orders(count, share)
        if math.isfinite(self.families.untried_us):
            with self._share(DEVICES_SHARE):
                self.near.move_devices()
        self.near.move_cuts(MOVES_SHARE)

    def plan_again(self, job: Job, options: PlanOptions, share: float) -> PlannedStep | None:
        """Return the best step for another job or other options, None where there is none.

        It begins from this plan's own layout and order, where these are allowed and still keep the limits, so
        that more memory or faster links never seem to cost anything. Its layout and order are offered to this
        plan: what keeps this plan's own limits is no gain of the other cluster.
        """
        known, best = self.pool.problem, self.pool.best
        if self.budget.is_interrupted or best is None:
            return None
        problem = known.changed(job, options)
        try:
            search = PlanSearch.of(problem, self.budget.part(share), seed=self.seed)
            if options.micro_batch in (None, best.layout.micro_batch):
                search.seeds = (best, *self._found_again)
            search.run()
        except ScheduleError:
            return None
        if search.pool.best is None:
            return None
        self._begin_from(search.pool.best)
        self._found_again.append(search.pool.best)
        return search.pool.best.planned()

    def _share(self, share: float) -> AbstractContextManager[None]:
        """Have the body spend a share of what is left at most."""
        return self._within(self.pool.budget.part(share))

    @contextmanager
    def _within(self, part: SearchBudget) -> Iterator[None]:
        """Have the body spend a part of the budget at most."""
        whole = self.pool.budget
        self.pool.budget = part
        try:
            yield
        finally:
            self.pool.budget = whole

    def _begin_from(self, known: Candidate) -> None:
        """Offer a layout, with the order that it has elsewhere where its blocks are the same here."""
        candidate = candidate_of(self.pool, known.layout)
        if known.schedule is None or known.schedule.micro_batches * len(known.figures.chains) != (
            known.layout.micro_batches
        ):
            return
        step = step_of_figures(candidate.layout, candidate.figures)
        if step.batch is not None or step.placement.blocks != known.schedule.placement.blocks:
            return
        schedule = timed_again(known.schedule, step.placement, step.limits)
        estimate = estimate_step(step, schedule)
        if estimate.fits and estimate.step_us <= candidate.step_us:
            self.pool.offer(replace(candidate, order=known.order, estimate=estimate, schedule=schedule))

    def _sweep(self) -> None:
        """Time first cuts of the families in orders of rules, as long as they may win.

        One stage a device in the order of 1F1B takes least to look at, and tells which degrees are good: the
        other families of good degrees come first.
        """
        self._price_1f1b()
        alive = set(self.families.alive()) - self._swept
        for family in (each for each in self._by_promise() if each in alive):
            if self.pool.budget.is_over and self.pool.best is not None:
                return
            if self.families.bound_of(family) >= self.pool.best_us:
                continue
            self.families.bound_by_cuts(family)
            if self.families.bound_of(family) >= self.pool.best_us:
                continue
            for cut in initial_cuts(self.pool, family):
                self.pool.price(family, cut)
            self._swept.add(family)

    def _by_promise(self) -> list[Family]:
        """All families, those of good degrees first."""
        return sorted(
            (*self.families.chosen, *self.families.compared),
            key=lambda family: (
                self._degrees_us.get(_degrees(family), math.inf),
                repr(replace(family, branch_devices=0)),
                # Of ways to share the devices among branches, one is even.
                self.families.quick_bound(family) if family.branches is not None else 0.0,
            ),
        )

    def _price_1f1b(self) -> None:
        """Time one cut of each family of one stage a device, and note the best of each of its degrees.

        Of stages with degrees of their own there may be many ways: those that cannot win are left out.
        """
        rule = "1f1b" if self.pool.problem.profile.is_training else "forwards"
        found = self._degrees_us
        for family in sorted(self.families.alive(), key=lambda family: bool(family.stage_tensor_parallel)):
            if family.placement != "vshape" or family in self._timed_by_rule:
                continue
            if family.stage_tensor_parallel and self.families.bound_of(family) >= self.pool.best_us:
                continue
            if self.pool.budget.is_over and self.pool.best is not None:
                return
            for cut in initial_cuts(self.pool, family, (rule,)):
                step_us = self.pool.price(family, cut, (rule,)).step_us
                found[_degrees(family)] = min(step_us, found.get(_degrees(family), math.inf))
            self._timed_by_rule.add(family)

    def _climb(self) -> None:
        cap = CLIMBS_PER_LAYER * self.pool.problem.num_layers
        for candidate in self.pool.finalists()[:CLIMBED_FAMILIES]:
            if (candidate.family, candidate.cut) in self._climbed or self.pool.budget.is_over:
                continue
            if candidate.order and candidate.family in self.families.bounds:
                found = hill_climb(self.pool, candidate, _rule_of(candidate), max_priced=cap)
                if not self.pool.budget.is_over:
                    self._climbed.add((found.family, found.cut))

    def _search_orders(self, count: int, share: float) -> None:
        """Search the orders of the most promising candidates, each with an equal part of a share."""
        affordable = self._affordable(count, share)
        part = self.pool.budget.part(share)
        for done, candidate in enumerate(affordable):
            if self.families.is_done and self.pool.best is not None:
                return
            if candidate.lower_bound_us >= self.pool.best_us:
                continue
            own = part.part(1 / (len(affordable) - done))
            self.pool.search(candidate, own, seed=self.seed)

    def _search_best(self, share: float, *, proves: bool) -> None:
        """Search the order of the best layout."""
        best = self.pool.best
        if best is None:
            best = next(iter(self._searchable()), None)
        elif self.families.is_done or best.lower_bound_us >= best.step_us:
            return
        if best is not None:
            part = self.pool.budget.part(share)
            if not proves and best.step_us < best.lower_bound_us * SETTLED:
                best = next(iter(self._affordable(1, share)), best)
            self.pool.search(best, part, seed=self.seed, proves=proves)

    def _searchable(self) -> list[Candidate]:
        """Return the candidates whose order may be searched, the most promising first."""
        finalists = self.pool.finalists()
        if self.pool.best is None and not finalists:
            return [
                candidate for candidate in self.pool.by_family.values() if has_headroom(candidate.figures)
            ]
        return finalists

    def _affordable(self, count: int, share: float) -> list[Candidate]:
        """Return the most promising candidates whose orders a share of the budget lets search well.

        There is one at least. None takes more than half of what is left, or stands in the way of others.
        """
        left = share * self.pool.budget.operations_left
        finalists = self._searchable()
        found: list[Candidate] = []
        for candidate in finalists:
            operations = OPERATIONS_A_TASK_SEARCHED * num_tasks(candidate)
            if operations <= left / 2 and len(found) < count:
                left -= operations
                found.append(candidate)
        return found or finalists[:1]


def _degrees(family: Family) -> tuple[int, ...]:
    return family.data_parallel, *family.tensor_degrees, family.micro_batch


def stopped_by(budget: SearchBudget) -> StoppedBy:
    """Return what ended the search: an interrupt, though some part of the work was used up before it."""
    return "interrupt" if budget.is_interrupted and not budget.is_proven else budget.stopped_by


def _rule_of(candidate: Candidate) -> tuple[str, ...] | None:
    """Return the rule of a candidate's order, where it applies to its placement; None for all that do.

    A searched order is named by what found it, which may be a rule for placements of any kind.
    """
    applicable = rules_of(
        candidate.layout,
        has_backward=candidate.figures.has_backward,
        is_split=candidate.figures.backward_input_us is not None,
        overlaps=candidate.figures.overlap_factor is not None,
    )
    return (candidate.order,) if candidate.order.partition("<")[0] in applicable else None
