"""Families that a plan chooses from, each with a bound: which may hold something faster than the best.

A family is bounded as a whole before anything is cut, by a look at all of its cuts together once it matters,
and by its single cuts where all of them were looked at. Where stages begin between groups of layers, or some
degrees or orders of unequal devices have no family, bounds of what is not tried count beside. Checked in
tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from tessel.errors import ScheduleError
from tessel.planning.candidates.bounds import FamilyBound, FamilyBounds
from tessel.planning.candidates.families import Family, explain_none, families, tries_every_order
from tessel.planning.candidates.own_degrees import Stem, stems
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.sweep import cut_operations
from tessel.search.budget import SearchBudget

OPERATIONS_A_BOUND = 1_000_000
"""Charged for the quick bound of a family."""


@dataclass(slots=True, eq=False)
class BoundedFamilies:
    """The families of one plan, and their bounds.

    Attributes:
        pool: what is known of their candidates.
        budget: of the whole search.
        chosen: those that the plan chooses from.
        compared: those that only baselines choose from beside.
        later: those that it chooses from beside, after a search of the others.
        stems: what ways to use the devices with degrees of each stage have in common.
        bounds: by family.
        proven: by family, a bound that holds after all of its cuts were looked at.
        bounds_of_layers: by family, where stages are cut between groups of layers: a bound for every cut.
        untried_us: a step time that holds for orders of unequal devices, and for tensor-parallel degrees of
            stages, that no family has; infinite where families have all.
    """

    pool: Pool
    budget: SearchBudget
    chosen: tuple[Family, ...]
    compared: tuple[Family, ...]
    later: tuple[Family, ...] = ()
    stems: tuple[Stem, ...] = ()
    bounds: dict[Family, FamilyBound] = field(default_factory=dict)
    proven: dict[Family, float] = field(default_factory=dict)
    bounds_of_layers: dict[Family, float] = field(default_factory=dict)
    untried_us: float = math.inf
    _family_bounds: FamilyBounds = field(init=False)
    _bounds_of_layers: FamilyBounds = field(init=False)
    _class_bounds: list[FamilyBounds] = field(init=False)
    _cut_bounds: set[Family] = field(default_factory=set)
    _stems_us: tuple[float, ...] = ()

    @classmethod
    def of(cls, pool: Pool, budget: SearchBudget) -> BoundedFamilies:
        """Return the families of the pool's problem, not bounded yet.

        Raises:
            ScheduleError: no degrees use the devices for this batch.
        """
        problem = pool.problem
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
        is_chosen = set(chosen)
        compared = tuple(family for family in alike or every if family not in is_chosen)
        later = tuple(family for family in chosen if alike and family.stage_tensor_parallel)
        first = tuple(family for family in chosen if not (alike and family.stage_tensor_parallel))
        return cls(pool, budget, first, compared, later, found)

    def bound_all(self) -> None:
        """Bound each family as a whole, before anything is cut."""
        problem = self.pool.problem
        self._family_bounds = FamilyBounds(problem.job, problem.options)
        self._bounds_of_layers = FamilyBounds(problem.job, problem.options)
        self._class_bounds = [FamilyBounds(problem.job, problem.options) for _ in problem.by_class]
        self._stems_us = tuple(
            self._bounds_of_layers.of_every_degree(stem.family, problem.least_sums_of_layers(stem.keys))
            for stem in self.stems
        )
        for family in self.chosen:
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

    def take_in_later(self) -> None:
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
        self.chosen, self.later = (*self.chosen, *self.later), ()
        self.bound_untried_degrees()
        self.pool.lower_bound_us = self.lower_bound_us()

    def bound_untried_degrees(self) -> None:
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
            for family in self.chosen
            if not family.stage_tensor_parallel and not tries_every_order(cluster, family.widths)
        }
        for family in sorted(untried, key=repr):
            bound_us = self._bounds_of_layers.of_every_cut(
                family, problem.bound_sums_of_layers(family), any_order=True
            )
            self.untried_us = min(self.untried_us, bound_us)

    def bound_by_cuts(self, family: Family) -> None:
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

    def lower_bound_us(self) -> float:
        """Return a step time that no layout allowed can beat, whichever layers its stages begin at."""
        return min(
            self.searched_bound_us(), min(self._stems_us, default=math.inf) if self.later else math.inf
        )

    def searched_bound_us(self) -> float:
        """Return the same for layouts of the families that are searched now."""
        if self.pool.problem.is_grouped:
            return min(*self.bounds_of_layers.values(), self.untried_us)
        tried = min(max(self.bounds[family].step_us, self.proven.get(family, 0.0)) for family in self.chosen)
        return min(tried, self.untried_us)

    @property
    def is_done(self) -> bool:
        """Whether the budget is used up, or nothing that is searched now is faster than the best."""
        return self.pool.budget.is_over or self.pool.best_us <= self.searched_bound_us() * (1 + 1e-12)

    def alive(self) -> list[Family]:
        """Return the families that may hold something faster than the best, the lowest bound first."""
        return sorted(
            (family for family in self.chosen if self.bound_of(family) < self.pool.best_us),
            key=lambda family: (self.bound_of(family), repr(family)),
        )

    def bound_of(self, family: Family) -> float:
        """Return a step time that no layout of a family beats."""
        return max(self.bounds[family].step_us, self.proven.get(family, 0.0))

    def quick_bound(self, family: Family) -> float:
        """Return a bound of a family, of one that only baselines choose from too."""
        if family in self.bounds:
            return self.bound_of(family)
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


def _but_for_split(family: Family) -> tuple[object, ...]:
    return tuple(getattr(family, name) for name in Family.__dataclass_fields__ if name != "split_backward")
