"""The phases of a plan's search, each with its share of one budget.

Families are bounded, the promising ones cut and timed in the orders of rules, the best of those compared,
moved and searched; each phase leaves off where nothing faster is possible. The phases come in rounds, each
longer than the one before and begun with all that is known. How long a round is does not depend on the
budget, which only ends the last: what less work finds, more work has found on its way, and the search's best
step is never longer. Checked in tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tessel.errors import ScheduleError
from tessel.handwritten.paired import timed_again
from tessel.planning.candidates.baselines import find_baselines, strongest
from tessel.planning.candidates.bounds import FamilyBound, FamilyBounds
from tessel.planning.candidates.candidate import Candidate, has_headroom, num_tasks, promise
from tessel.planning.candidates.families import (
    Family,
    explain_none,
    families,
    swapped_orders,
    tries_every_order,
)
from tessel.planning.candidates.own_degrees import Stem, moved_degrees, stems
from tessel.planning.candidates.pool import OPERATIONS_A_TASK_SEARCHED, Pool, candidate_of
from tessel.planning.candidates.problem import Problem
from tessel.planning.candidates.sweep import cut_operations, hill_climb, initial_cuts
from tessel.planning.costs.training_step import estimate_step, step_of_figures
from tessel.planning.cutting.cut import Cut, every_cut, neighbours, num_cuts
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.orders.rules import rules_of
from tessel.planning.plan_result import Baseline, PlannedStep, PlanProgress, SearchCounts
from tessel.search.budget import OPERATIONS_A_UNIT, SearchBudget, StoppedBy

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


MAX_ENUMERATED = 2_000
"""Cuts of all families up to which all are looked at, one by one, for a proof."""


OPERATIONS_A_BOUND = 1_000_000
"""Charged for the quick bound of a family."""


EQUAL_DEGREES_SHARE = 0.5
"""Share of the budget for stages of equal tensor-parallel degrees, where they may also differ."""


EXPLAINING_SHARE = 0.25
"""Share of the budget kept for planning again under other circumstances."""


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The search of one plan.

    Attributes:
        pool: its candidates.
        budget: of the whole search.
        families: those that the plan chooses from.
        later: those that it chooses from beside, after a search of the others.
        compared: those that only baselines choose from beside.
        seed: seed of what is random.
        seeds: candidates of another plan to begin with.
        bounds: by family.
        proven: by family, a bound that holds after all of its cuts were looked at.
        bounds_of_layers: by family, where stages are cut between groups of layers: a bound for every cut.
        untried_us: a step time that holds for orders of unequal devices, and for tensor-parallel degrees of
            stages, that no family has; infinite where families have all.
        stems: what ways to use the devices with such degrees have in common.
        baselines: rows to compare with.
        changed: what planning again found under other circumstances, by what would be different.
    """

    pool: Pool
    budget: SearchBudget
    families: tuple[Family, ...]
    compared: tuple[Family, ...]
    seed: int
    later: tuple[Family, ...] = ()
    stems: tuple[Stem, ...] = ()
    seeds: tuple[Candidate, ...] = ()
    bounds: dict[Family, FamilyBound] = field(default_factory=dict)
    proven: dict[Family, float] = field(default_factory=dict)
    bounds_of_layers: dict[Family, float] = field(default_factory=dict)
    untried_us: float = math.inf
    baselines: tuple[Baseline, ...] = ()
    changed: Mapping[str, PlannedStep] = field(default_factory=dict)
    _family_bounds: FamilyBounds = field(init=False)
    _bounds_of_layers: FamilyBounds = field(init=False)
    _class_bounds: list[FamilyBounds] = field(init=False)
    _cut_bounds: set[Family] = field(default_factory=set)
    _found_again: list[Candidate] = field(default_factory=list)
    _degrees_us: dict[tuple[int, ...], float] = field(default_factory=dict)
    _timed_by_rule: set[Family] = field(default_factory=set)
    _swept: set[Family] = field(default_factory=set)
    _climbed: set[tuple[Family, Cut]] = field(default_factory=set)
    _enumerated: dict[tuple[Family, Cut], Candidate] = field(default_factory=dict)
    _are_compared: bool = False
    _stems_us: tuple[float, ...] = ()

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
        asked: dict[str, Any] = {"global_batch": problem.job.global_batch, "options": problem.options}
        found = stems(problem.grouped, problem.cluster, **asked)
        alike = tuple(families(problem.grouped, problem.cluster, **asked))
        every = (*alike, *(family for stem in found for family in stem.families))
        if not every:
            raise ScheduleError(
                explain_none(
                    problem.profile,
                    problem.cluster,
                    global_batch=problem.job.global_batch,
                    options=problem.options,
                )
            )
        # An order that may split a backward may also not do it: joint families only serve as baselines.
        splittable = {_but_for_split(family) for family in every if family.split_backward}
        chosen = tuple(
            family for family in every if family.split_backward or _but_for_split(family) not in splittable
        )
        share = 1.0 - (EXPLAINING_SHARE if problem.options.what_if else 0.0)
        pool = Pool(problem, budget.part(share), on_progress)
        is_chosen = set(chosen)
        compared = tuple(family for family in alike or every if family not in is_chosen)
        later = tuple(family for family in chosen if alike and family.stage_tensor_parallel)
        first = tuple(family for family in chosen if not (alike and family.stage_tensor_parallel))
        return cls(pool, budget, first, compared, seed, later, found)

    def run(self) -> None:
        """Search until the best step is proven, or the budget is used up.

        Stages with degrees of their own come after a whole search of those with equal ones, whose step is
        then never shorter than the plan's.
        """
        self.bound_families()
        for seed in self.seeds:
            self._begin_from(seed)
        if self.stems and not self.later:
            self._bound_untried_degrees()
        elif self.stems:
            with self._share(EQUAL_DEGREES_SHARE):
                self._search()
            self._take_in_later()
        self._search()

    def _search(self) -> None:
        """Search the families in rounds."""
        whole, work, is_last = self.pool.budget, FIRST_ROUND, False
        while not is_last and (self.pool.best is None or not self._is_done):
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
                found = find_baselines(self.pool, alike or every, self._quick_bound)
                self._are_compared = not self.pool.budget.is_over
                overdrawn = self.pool.budget.overdrawn
            # Each row has something, whatever is left: that is shown, and took all work of large jobs.
            self.pool.budget.charge(-overdrawn)
            self.baselines = strongest(self.baselines, found)
        with self._share(CLIMB_SHARE):
            self._climb()
        with self._share(ENUMERATION_SHARE):
            self._enumerate()
        for count, share in ROUNDS:
            self._search_orders(count, share)
        if math.isfinite(self.untried_us):
            with self._share(DEVICES_SHARE):
                self._move_devices()
        self._move_cuts()

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

    def lower_bound_us(self) -> float:
        """Return a step time that no layout allowed can beat, whichever layers its stages begin at."""
        return min(
            self._searched_bound_us(), min(self._stems_us, default=math.inf) if self.later else math.inf
        )

    def _searched_bound_us(self) -> float:
        """Return the same for layouts of the families that are searched now."""
        if self.pool.problem.is_grouped:
            return min(*self.bounds_of_layers.values(), self.untried_us)
        tried = min(
            max(self.bounds[family].step_us, self.proven.get(family, 0.0)) for family in self.families
        )
        return min(tried, self.untried_us)

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

    @property
    def _is_done(self) -> bool:
        return self.pool.budget.is_over or self.pool.best_us <= self._searched_bound_us() * (1 + 1e-12)

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

    def bound_families(self) -> None:
        """Bound each family as a whole, before anything is cut."""
        problem = self.pool.problem
        self._family_bounds = FamilyBounds(problem.job, problem.options)
        self._bounds_of_layers = FamilyBounds(problem.job, problem.options)
        self._class_bounds = [FamilyBounds(problem.job, problem.options) for _ in problem.by_class]
        self._stems_us = tuple(
            self._bounds_of_layers.of_every_degree(stem.family, problem.least_sums_of_layers(stem.keys))
            for stem in self.stems
        )
        for family in self.families:
            self._bound(family)
        self._bound_untried_orders()
        self.pool.lower_bound_us = self.lower_bound_us()

    def _bound(self, family: Family) -> None:
        problem = self.pool.problem
        self.bounds[family] = self._quick(family)
        self.budget.charge(OPERATIONS_A_BOUND)
        if problem.is_grouped:
            sums = problem.bound_sums_of_layers(family)
            self.bounds_of_layers[family] = self._bounds_of_layers.of_every_cut(family, sums)

    def _take_in_later(self) -> None:
        """Search the families with degrees of their own, too, of which some cannot win by what they share."""
        bound_us = {
            family: us
            for stem, us in zip(self.stems, self._stems_us, strict=True)
            for family in stem.families
        }
        for family in self.later:
            if bound_us[family] < self.pool.best_us:
                self._bound(family)
            else:
                self.bounds[family] = FamilyBound(step_us=bound_us[family])
                self.bounds_of_layers[family] = bound_us[family]
        self.families, self.later = (*self.families, *self.later), ()
        self._bound_untried_degrees()
        self.pool.lower_bound_us = self.lower_bound_us()

    def _bound_untried_degrees(self) -> None:
        """Count the ways that no family has, of degrees of stages or of unequal devices in them."""
        untried = (us for stem, us in zip(self.stems, self._stems_us, strict=True) if not stem.is_every)
        self.untried_us = min(self.untried_us, min(untried, default=math.inf))

    def _bound_untried_orders(self) -> None:
        """Bound orders of devices that no family has, by families whose devices stand by speed."""
        problem = self.pool.problem
        cluster = problem.cluster
        by_speed = tuple(
            sorted(range(cluster.devices), key=lambda device: (-cluster.speed_of(device), device))
        )
        untried = {
            replace(family, device_order=by_speed)
            for family in self.families
            if not family.stage_tensor_parallel and not tries_every_order(cluster, family.widths)
        }
        for family in sorted(untried, key=repr):
            bound_us = self._bounds_of_layers.of_every_cut(
                family, problem.bound_sums_of_layers(family), any_order=True
            )
            self.untried_us = min(self.untried_us, bound_us)

    def _bound_by_cuts(self, family: Family) -> None:
        """Bound a family by a look at all of its cuts together, the first time that it matters."""
        if family in self._cut_bounds:
            return
        self._cut_bounds.add(family)
        problem = self.pool.problem
        prices = problem.stage_prices(family)
        if not family.stage_tensor_parallel:
            prices = (problem.bound_prices(family),)
        found = self._family_bounds.by_cuts(family, problem.bound_sums(family), prices)
        self.pool.budget.charge(cut_operations(problem, family))
        if found.step_us > self.bounds[family].step_us:
            self.bounds[family] = found

    def _alive(self) -> list[Family]:
        """Families that may hold something faster than the best, the lowest bound first."""
        return sorted(
            (family for family in self.families if self._bound_of(family) < self.pool.best_us),
            key=lambda family: (self._bound_of(family), repr(family)),
        )

    def _bound_of(self, family: Family) -> float:
        return max(self.bounds[family].step_us, self.proven.get(family, 0.0))

    def _sweep(self) -> None:
        """Time first cuts of the families in orders of rules, as long as they may win.

        One stage a device in the order of 1F1B takes least to look at, and tells which degrees are good: the
        other families of good degrees come first.
        """
        self._price_1f1b()
        alive = set(self._alive()) - self._swept
        for family in (each for each in self._by_promise() if each in alive):
            if self.pool.budget.is_over and self.pool.best is not None:
                return
            if self._bound_of(family) >= self.pool.best_us:
                continue
            self._bound_by_cuts(family)
            if self._bound_of(family) >= self.pool.best_us:
                continue
            for cut in initial_cuts(self.pool, family):
                self.pool.price(family, cut)
            self._swept.add(family)

    def _by_promise(self) -> list[Family]:
        """All families, those of good degrees first."""
        return sorted(
            (*self.families, *self.compared),
            key=lambda family: (
                self._degrees_us.get(_degrees(family), math.inf),
                repr(replace(family, branch_devices=0)),
                # Of ways to share the devices among branches, one is even.
                self._quick_bound(family) if family.branches is not None else 0.0,
            ),
        )

    def _quick_bound(self, family: Family) -> float:
        """Return a bound of a family, of one that only baselines choose from too."""
        if family in self.bounds:
            return self._bound_of(family)
        self.budget.charge(OPERATIONS_A_BOUND)
        return self._quick(family).step_us

    def _quick(self, family: Family) -> FamilyBound:
        """Return the quick bound of a family; where micro-batches differ, of each class by itself, too.

        Some replica has its share of a class, and runs it no faster because of others.
        """
        problem = self.pool.problem
        sums, prices = problem.bound_sums(family), problem.bound_prices(family)
        found = self._family_bounds.quick(family, sums, prices)
        counts = () if problem.job.mixture is None else problem.job.mixture.counts
        for of, (bounds, count) in enumerate(zip(self._class_bounds, counts, strict=True)):
            alone = replace(family, micro_batches=-(-count // family.data_parallel))
            step_us = bounds.of_every_cut(alone, problem.sums_of_class(family, of))
            if step_us > found.step_us:
                found = replace(found, step_us=step_us)
        return found

    def _price_1f1b(self) -> None:
        """Time one cut of each family of one stage a device, and note the best of each of its degrees.

        Of stages with degrees of their own there may be many ways: those that cannot win are left out.
        """
        rule = "1f1b" if self.pool.problem.profile.is_training else "forwards"
        found = self._degrees_us
        for family in sorted(self._alive(), key=lambda family: bool(family.stage_tensor_parallel)):
            if family.placement != "vshape" or family in self._timed_by_rule:
                continue
            if family.stage_tensor_parallel and self._bound_of(family) >= self.pool.best_us:
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
            if candidate.order and candidate.family in self.bounds:
                found = hill_climb(self.pool, candidate, _rule_of(candidate), max_priced=cap)
                if not self.pool.budget.is_over:
                    self._climbed.add((found.family, found.cut))

    def _search_orders(self, count: int, share: float) -> None:
        """Search the orders of the most promising candidates, each with an equal part of a share."""
        affordable = self._affordable(count, share)
        part = self.pool.budget.part(share)
        for done, candidate in enumerate(affordable):
            if self._is_done and self.pool.best is not None:
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
        elif self._is_done or best.lower_bound_us >= best.step_us:
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

    def _move_devices(self) -> None:
        """Swap unequal devices of the best layout, or move some, as long as its step gets shorter."""
        is_better = self.pool.best is not None
        while is_better and not self.pool.budget.is_over:
            is_better = False
            best = self.pool.best
            assert best is not None  # looked at before the loop
            for family in self._with_devices_moved(best.family):
                if self.pool.budget.is_over or self._is_done:
                    return
                if self._try_family(family).step_us < best.step_us * (1 - 1e-9):
                    is_better = True
                    break

    def _with_devices_moved(self, family: Family) -> Iterator[Family]:
        """Yield the families that differ in two positions, each to be cut anew."""
        cluster = self.pool.problem.cluster
        for order in swapped_orders(family, cluster):
            yield replace(family, device_order=order)
        if family.placement == "vshape" and self.pool.problem.options.tensor_parallel == "own":
            for stem in self.stems:
                if stem.is_of(family) and not stem.is_every:
                    yield from moved_degrees(family, stem.degrees, cluster)

    def _try_family(self, family: Family) -> Candidate:
        """Return the best of a family's first cuts, its order searched for a moment if that may win."""
        priced = [
            self.pool.price(family, cut) for cut in (*initial_cuts(self.pool, family), self._best_cut())
        ]
        found = min(priced, key=promise)
        if found.lower_bound_us >= self.pool.best_us or not has_headroom(found.figures):
            return found
        return self.pool.search(found, self.pool.budget.part(0.05), seed=self.seed)

    def _best_cut(self) -> Cut:
        assert self.pool.best is not None  # devices are swapped in it
        return self.pool.best.cut

    def _move_cuts(self) -> None:
        """Move single cuts of the best, each judged by an order that is searched for a moment."""
        problem = self.pool.problem
        part = self.pool.budget.part(MOVES_SHARE)
        is_better = self.pool.best is not None
        while is_better and not part.is_over:
            is_better = False
            best = self.pool.best
            assert best is not None  # looked at before the loop
            for cut in neighbours(best.cut, best.figures, may_recompute=problem.may_recompute):
                if part.is_over or self._is_done:
                    return
                if not best.family.allows(cut):
                    continue
                candidate = self.pool.price(best.family, cut)
                if candidate.lower_bound_us >= self.pool.best_us or not has_headroom(candidate.figures):
                    continue
                moment = part.part(0.05)
                if self.pool.search(candidate, moment, seed=self.seed).step_us < best.step_us * (1 - 1e-9):
                    is_better = True
                    break

    def _enumerate(self) -> None:
        """Look at all cuts of the families that may still win, if they are few, and keep what is proven.

        Nothing is, where the budget does not cover them all.
        """
        alive = self._alive()
        if sum(self._num_cuts(family) for family in alive) > MAX_ENUMERATED:
            return
        for family in alive:
            for cut in self._every_cut(family):
                if (family, cut) not in self._enumerated:
                    if self.pool.budget.is_over:
                        return
                    self._enumerated[family, cut] = self.pool.price(family, cut)
        priced = {
            key: candidate
            for key, candidate in self._enumerated.items()
            if key[0] in alive and has_headroom(candidate.figures)
        }
        for key, candidate in sorted(priced.items(), key=lambda item: item[1].lower_bound_us):
            if self.pool.budget.is_over or candidate.lower_bound_us >= self.pool.best_us * (1 - 1e-12):
                continue
            part = self.pool.budget.part(0.2)
            priced[key] = self.pool.search(candidate, part, seed=self.seed, proves=True)
        self._enumerated |= priced
        self.proven |= dict.fromkeys(alive, math.inf)
        for (family, _), candidate in priced.items():
            self.proven[family] = min(self.proven[family], candidate.lower_bound_us)

    def _num_cuts(self, family: Family) -> int:
        sections = family.sections(self.pool.problem.num_layers)
        return num_cuts(sections, may_recompute=self.pool.problem.may_recompute)

    def _every_cut(self, family: Family) -> Iterator[Cut]:
        sections = family.sections(self.pool.problem.num_layers)
        return every_cut(sections, may_recompute=self.pool.problem.may_recompute)


def _degrees(family: Family) -> tuple[int, ...]:
    return family.data_parallel, *family.tensor_degrees, family.micro_batch


def _but_for_split(family: Family) -> tuple[object, ...]:
    return tuple(getattr(family, name) for name in Family.__dataclass_fields__ if name != "split_backward")


def stopped_by(budget: SearchBudget) -> StoppedBy:
    """Return what ended the search: an interrupt, though some part of the work was used up before it."""
    return "interrupt" if budget.is_interrupted and not budget.is_proven else budget.stopped_by


def restrictions(search: PlanSearch) -> tuple[str, ...]:
    """Return sentences on what was not looked at one by one, though the bound holds for it."""
    problem, found = search.pool.problem, []
    if problem.is_grouped:
        found.append(
            f"Stages begin at {problem.num_layers} of the {len(problem.profile.layers)} layers; the bound "
            "holds for every cut."
        )
    if problem.cluster.is_uneven and math.isfinite(search.untried_us):
        found.append(
            "Of the orders of unequal devices a few were tried, and swaps in the best; the bound holds for "
            "every order."
        )
    alike = [
        each
        for each in search.pool.by_family.values()
        if each.order and not each.family.stage_tensor_parallel
    ]
    best = search.pool.best
    if alike and best is not None and best.family.stage_tensor_parallel:
        fastest = min(alike, key=lambda each: each.step_us).planned()
        us = fastest.estimate.step_us
        found.append(
            f"With one tensor-parallel degree for all stages, {us / 1e3:.1f} ms were found, "
            f"{us / best.step_us:.3f} times as long ({fastest.name})."
        )
    if problem.options.tensor_parallel == "own" and not search.stems:
        found.append(
            "No stages of unequal tensor-parallel degrees make up the devices with the degrees of the table; "
            "equal ones were tried."
        )
    if not all(stem.is_every for stem in search.stems):
        found.append(
            "Of the tensor-parallel degrees of many stages, two neighbouring ones were tried, and moves in "
            "the best; the bound holds for all degrees."
        )
    return tuple(found)


def counts_of(search: PlanSearch) -> SearchCounts:
    """Return how many families and layouts were looked at, and what became of them."""
    best_us = search.pool.best_us
    return SearchCounts(
        families=len(search.bounds),
        families_not_fitting=sum(math.isinf(bound.step_us) for bound in search.bounds.values()),
        families_cut_off=sum(best_us <= bound.step_us < math.inf for bound in search.bounds.values()),
        layouts=search.pool.layouts,
        orders=search.pool.orders,
    )


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
