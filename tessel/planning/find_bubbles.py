"""Find the fastest step whose tower runs in bubbles: the language model planned, then orders with the tower.

    language model alone, devices with less memory → its best layouts
        → an order of the blocks of each and of the tower's, on any device → the best searched longer → step

The bound of a layout is the largest of three: that of the language model alone, which begins no earlier than
a forward of the tower ends; all work, shared evenly; the way of a micro-batch there and back. The language
model is cut and placed without a look at the tower, and single cuts are moved then: the gap says what that
may cost. Checked in tests/tessel/planning/test_towers.py against CP-SAT.

Source of the idea: as `tessel.planning.costs.tower_figures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np

from tessel.errors import InfeasibleError, ScheduleError
from tessel.planning.candidates.candidate import Candidate, has_headroom, rank
from tessel.planning.candidates.layout_bound import layout_bound
from tessel.planning.candidates.pool import Pool
from tessel.planning.candidates.problem import Problem
from tessel.planning.costs.held_bytes import job_shares
from tessel.planning.costs.stage_costs import costs_of
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.tower_figures import check_bubbles
from tessel.planning.cutting.cut import neighbours
from tessel.planning.cutting.run_prices import layer_times
from tessel.planning.explanation import counts_of, explain
from tessel.planning.job import Job
from tessel.planning.layout import TOWER_PLACEMENTS, PlacedTower, layout_of_layers
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanProgress, PlanResult
from tessel.planning.plan_search import PlanSearch, stopped_by
from tessel.profiles.profile import Profile
from tessel.profiles.towers import tower_layers, without_tower
from tessel.search.budget import SearchBudget

LANGUAGE_SHARE = 0.5
"""Part of the work for the language model alone."""

LAYOUTS = 4
"""Layouts that the tower is put into."""

COMPARING_SHARE = 0.5
"""Part of what is left then for the orders of all of them; the rest is for the best one's."""

MOVES_SHARE = 0.5
"""Part of that rest for moves of cuts."""


def find_bubbles(
    profile: Profile,
    job: Job,
    *,
    options: PlanOptions,
    budget: SearchBudget,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the fastest step found whose tower runs in bubbles; arguments as of `find_plan`.

    The first layers of the profile are a tower's, as their names say. Degrees and placements that the options
    allow are the language model's.

    Raises:
        InfeasibleError: nothing that was found for the language model leaves room for the tower.
        ScheduleError: there is no tower, or the job or the options cannot have it in bubbles.
    """
    own = tower_layers(profile)
    if not own:
        raise ScheduleError(
            f"{profile.name} has no tower in front of a language model by the names of its layers, such as "
            "vision.layers.0; name them so, or leave the tower out"
        )
    check_bubbles(job, is_training=profile.is_training)
    if options.spread is not None or options.robust is not None or profile.has_spreads:
        raise ScheduleError(
            "a tower in bubbles is planned for durations that do not vary; leave spread and robust out"
        )
    allowed = TOWER_PLACEMENTS["bubbles"]
    placements = tuple(each for each in options.placements if not isinstance(each, str) or each in allowed)
    if not placements:
        raise ScheduleError(
            f"a tower runs in bubbles with {', '.join(allowed)}, not with {options.placements[0]}; give one"
        )
    options = replace(
        options, placements=placements, baselines=False, what_if=False, by_hand=None, tower="first"
    )
    return _Search(profile, own, job, options, budget, seed, on_progress).result()


@dataclass(slots=True, eq=False)
class _Search:
    """The search of one plan; attributes as `find_bubbles` takes them, and

    Attributes:
        own: layers of the tower.
    """

    profile: Profile
    own: int
    job: Job
    options: PlanOptions
    budget: SearchBudget
    seed: int
    on_progress: Callable[[PlanProgress], None] | None

    def result(self) -> PlanResult:
        """Return the best step, with its bound."""
        language = without_tower(self.profile)
        least, roomy = self._reserves()
        bounds = PlanSearch.of(
            Problem(language, self._with_reserve(least), self.options), self.budget.part(0.1), seed=self.seed
        )
        bounds.families.bound_all()
        lower_bound_us = self._lower_bound_us(bounds)
        for reserve in dict.fromkeys((roomy, least)):
            problem = Problem(language, self._with_reserve(reserve), self.options)
            search = PlanSearch.of(problem, self.budget.timed_part(LANGUAGE_SHARE), seed=self.seed)
            search.run_until_interrupted()
            pool = Pool(problem, self.budget, self.on_progress, lower_bound_us=lower_bound_us)
            self.budget.answer = partial(self._answer, search, pool)
            self._put_tower(search, pool)
            if pool.best is not None:
                break
        if pool.best is None:
            raise InfeasibleError(
                f"no layout that was found for the {len(language.layers)} layers behind the tower leaves its "
                f"devices room for a copy of the tower and what it keeps, {roomy / 2**30:.2f} GiB; use more "
                "memory or smaller micro-batches, or run the tower first"
            )
        return self._result(search, pool)

    def _result(self, search: PlanSearch, pool: Pool) -> PlanResult:
        """Return the plan of what was found for the language model and with the tower."""
        assert pool.best is not None, "something was found"
        lower_bound_us = pool.lower_bound_us
        planned = pool.best.planned(with_schedule=True)
        lower_bound_us = min(lower_bound_us, planned.estimate.step_us)
        others = (each for each in pool.by_family.values() if each.order and each.family != pool.best.family)
        alternatives = tuple(each.planned() for each in sorted(others, key=rank))
        self.budget.is_proven = planned.estimate.step_us <= lower_bound_us * (1 + 1e-9)
        return PlanResult(
            job=self.job,
            best=planned,
            lower_bound_us=lower_bound_us,
            alternatives=alternatives,
            baselines=(),
            explanation=explain(planned, lower_bound_us, alternatives, ()),
            changes=(),
            counts=counts_of(search.families),
            stopped_by=stopped_by(self.budget),
            search_seconds=self.budget.elapsed_s,
        )

    def _answer(self, search: PlanSearch, pool: Pool) -> PlanResult | None:
        return None if pool.best is None else self._result(search, pool)

    def _with_reserve(self, num_bytes: int) -> Job:
        """Return the job whose devices hold so many bytes beside the language model."""
        runtime = self.job.runtime
        held = msgspec.structs.replace(runtime, context_bytes=runtime.context_bytes + num_bytes)
        return replace(self.job, runtime=held)

    def _reserves(self) -> tuple[int, int]:
        """Return the least bytes of a copy of the tower, and those with what a micro-batch of it keeps."""
        devices = self.job.cluster.devices
        shares = job_shares(self.job, trains=True, replicas=devices, expert_replicas=devices)
        every = [table.costs[: self.own] for table in self.profile.tables]
        weights = ((sum(c.weight_bytes for c in own), sum(c.updated_bytes for c in own)) for own in every)
        least = int(min(shares.held(held, trained, 0, 0) for held, trained in weights))
        kept = min(sum(cost.saved_bytes for cost in own) + own[-1].boundary_bytes for own in every)
        return least, least + kept

    def _lower_bound_us(self, search: PlanSearch) -> float:
        """Return a step time that no layout with the tower in bubbles beats."""
        speed = self.job.cluster.speed_of(0)
        found = []
        for family in search.families.chosen:
            costs = costs_of(self.profile, family.table_key)
            ahead = sum(cost.forward_us for cost in costs[: self.own])
            back = sum(cost.joint_backward_us or 0.0 for cost in costs[: self.own])
            sums = search.pool.problem.bound_sums_of_layers(family)
            splits = family.split_backward and sums.is_splittable
            work = ahead + back + float(layer_times(sums, splits=splits)[-1])
            shared_us = family.micro_batches * work / family.pipeline
            gradients = np.diff(sums.backward)
            if splits:
                gradients = np.minimum(gradients, np.diff(sums.backward_input))
            path_us = ahead + back + float(sums.forward[-1] + gradients.sum())
            alone_us = search.families.bounds_of_layers.get(family, search.families.bounds[family].step_us)
            found.append(max(alone_us + ahead / speed, shared_us / speed, path_us / speed))
        return min(*found, search.families.untried_us)

    def _put_tower(self, search: PlanSearch, pool: Pool) -> None:
        """Search orders of the language model's best layouts with the tower in bubbles, and near the best."""
        known = sorted((each for each in search.pool.by_family.values() if each.order), key=rank)[:LAYOUTS]
        may_recompute = pool.problem.may_recompute
        part = self.budget.timed_part(COMPARING_SHARE)
        for number, language in enumerate(known):
            own = part.part(1 / (len(known) - number))
            for recompute in (False, True)[: 1 + may_recompute]:
                if self._search(pool, language, own, recompute=recompute).order:
                    break
        part, before = self.budget.timed_part(MOVES_SHARE), None
        while pool.best is not None and pool.best is not before and not part.is_over:
            before = pool.best
            assert before.layout.bubbles is not None, "it was planned so"
            recompute = before.layout.bubbles.recompute
            for cut in neighbours(before.cut, before.figures, may_recompute=may_recompute):
                moved = replace(before, cut=cut, layout=before.family.layout(cut.bounds, cut.recompute))
                self._search(pool, moved, part.part(0.05), recompute=recompute)
                if pool.best is not before or part.is_over:
                    break
        if pool.best is not None:
            pool.search(pool.best, self.budget.part(1.0), seed=self.seed, proves=True)

    def _search(self, pool: Pool, language: Candidate, budget: SearchBudget, *, recompute: bool) -> Candidate:
        """Return a layout of the language model with the tower in bubbles, in the best order found.

        It has none where nothing fits, or its bound says that it is no better than the best.
        """
        layout = layout_of_layers(language.layout, pool.problem.bounds)
        layout = msgspec.structs.replace(
            layout,
            cuts=tuple((first + self.own, last + self.own) for first, last in layout.cuts),
            tower=PlacedTower(where="bubbles", layers=self.own, recompute=recompute),
        )
        figures = stage_figures(self.profile, layout, self.job)
        candidate = replace(
            language,
            layout=layout,
            figures=figures,
            order="",
            estimate=None,
            schedule=None,
            lower_bound_us=layout_bound(figures, micro_batches=layout.micro_batches),
        )
        if not has_headroom(figures) or candidate.lower_bound_us >= pool.best_us:
            return candidate
        return pool.search(candidate, budget, seed=self.seed)
