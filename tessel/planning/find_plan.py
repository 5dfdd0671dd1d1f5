"""Find the fastest way to run a training step on many devices, and say how fast any could be.

    families (degrees × micro-batch size × placement) → a bound for each, nothing cut yet
        → first cuts, timed in the orders of hand-written rules, families in order of their bounds
        → baselines, and moves of single cuts → search of the order for the most promising
        → moves of cuts judged by searched orders → all cuts, where there are few: a proof
        → why, the next best, and what planning again finds with more memory or faster links

A family whose bound is above the best step so far is never cut, and no order is searched before everything
was timed in orders of rules, which takes a fraction of a millisecond a cut. All steps come from one estimate
(`tessel.planning.costs.training_step`), baselines' too, and every baseline is a candidate, so the plan is
never slower than one. Phases take shares of one budget and charge what they do: the same call gives the same
plan. The bound holds for every layout that the options allow; of unequal devices, for the orders of them that
are tried. Checked in tests/tessel/planning/test_find_plan.py against all layouts, cuts and orders of tiny
models.

Source: the search over degrees and cuts after PipeDream (SOSP 2019), DAPPLE (PPoPP 2021), Piper (NeurIPS
2021) and Alpa (OSDI 2022); here the order is searched too, and nothing is assumed about the schedule.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from tessel.errors import InfeasibleError, ScheduleError
from tessel.orders import device_orders, earliest_starts
from tessel.planning.candidates.baselines import find_baselines
from tessel.planning.candidates.bounds import FamilyBound, FamilyBounds
from tessel.planning.candidates.families import Family, explain_none, families
from tessel.planning.candidates.pool import Candidate, Pool, Problem, candidate_of, has_room
from tessel.planning.candidates.sweep import climb, cut_operations, initial_cuts
from tessel.planning.cluster import Cluster
from tessel.planning.costs.training_step import estimate_step, step_of_figures
from tessel.planning.cutting.cuts import Cut, every_cut, neighbours
from tessel.planning.explanation import explain, find_changes
from tessel.planning.options import PlanOptions
from tessel.planning.orders.rule_orders import rules_of
from tessel.planning.plan_result import Baseline, Change, PlannedStep, PlanProgress, PlanResult, SearchCounts
from tessel.profiles.profile import Profile
from tessel.schedule import Schedule
from tessel.search.budget import LONGEST_S, SearchBudget, StoppedBy

logger = logging.getLogger(__name__)

DEFAULT_PLAN_WORK = 25.0
"""Units of work of a plan unless told otherwise."""

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

MOVES_SHARE = 0.5
"""Share of what is left that goes into cuts near the best, judged by searched orders."""

MAX_ENUMERATED = 2_000
"""Cuts of all families up to which all are looked at, one by one, for a proof."""

OPERATIONS_A_TASK_SEARCHED = 20_000
"""Charged at least for each task of an order that is searched: below, a search only sets up."""

OPERATIONS_A_BOUND = 1_000_000
"""Charged for the quick bound of a family."""

NEAREST_WORK = 3.0
"""Units of work that the search for a step nearest to fitting charges; it is not cut short."""

ALTERNATIVES = 5
"""Steps of other families that a plan lists."""

EXPLAINING_SHARE = 0.25
"""Share of the budget kept for planning again under other circumstances."""


def find_plan(
    profile: Profile,
    cluster: Cluster,
    *,
    global_batch: int,
    options: PlanOptions | None = None,
    budget: SearchBudget | None = None,
    seed: int = 0,
    on_progress: Callable[[PlanProgress], None] | None = None,
) -> PlanResult:
    """Return the fastest training step found on all devices of a cluster.

    An interrupt (Ctrl-C, or `budget.interrupt`) ends the search and returns the best step so far. With a
    limit on work, the default, equal calls give equal plans.

    Args:
        profile: layers and their costs.
        cluster: devices and links.
        global_batch: samples of a training step, over all replicas.
        options: what may be chosen from; everything if left out.
        budget: what may be spent; `DEFAULT_PLAN_WORK` units of work if left out.
        seed: seed of what is random.
        on_progress: told of each better step.

    Raises:
        InfeasibleError: nothing fits the devices' memory; says what needs how much.
        KeyboardInterrupt: interrupted before there was any step.
        ScheduleError: no degrees use the devices for this batch; says what to change.
    """
    if global_batch < 1:
        raise ScheduleError(f"a global batch of {global_batch} is no batch; give at least 1")
    options = options or PlanOptions()
    budget = budget or SearchBudget(work_limit=DEFAULT_PLAN_WORK, time_limit_s=LONGEST_S)
    problem = Problem(profile, cluster, global_batch, options)
    search = PlanSearch.of(problem, budget, seed=seed, on_progress=on_progress)
    budget.answer = search.answer
    try:
        search.run()
    except KeyboardInterrupt:
        if search.pool.best is None:
            raise
        budget.interrupt()
        logger.info("interrupted; the best step so far is kept")
    return _result(search)


def _result(search: PlanSearch, *, with_changes: bool = True) -> PlanResult:
    """Return the plan of a search; planning again for the explanation takes what is left of the budget."""
    pool = search.pool
    best = pool.best
    if best is None:
        if pool.problem.options.may_exceed_memory:
            return _nearest_to_fitting(search)
        raise InfeasibleError(_why_nothing_fits(search))
    planned = best.planned(with_schedule=True)
    others = sorted(
        (each for each in tuple(pool.by_family.values()) if each.order and each.family != best.family),
        key=lambda candidate: (candidate.step_us, repr(candidate.family)),
    )
    alternatives = tuple(candidate.planned() for candidate in others[:ALTERNATIVES])
    if with_changes and pool.problem.options.what_if:
        problem = pool.problem
        search.changes = find_changes(
            planned, problem.cluster, problem.options, problem.profile.micro_batches, search.plan_again
        )
    lower_bound_us = min(search.lower_bound_us(), planned.estimate.step_us)
    if with_changes:
        search.budget.is_proven = planned.estimate.step_us <= lower_bound_us * (1 + 1e-9)
    return PlanResult(
        best=planned,
        lower_bound_us=lower_bound_us,
        alternatives=alternatives,
        baselines=search.baselines,
        explanation=explain(planned, lower_bound_us, alternatives, search.baselines),
        changes=search.changes,
        counts=_counts(search),
        stopped_by=_stopped_by(search.budget),
        search_seconds=search.budget.elapsed_s,
    )


def _stopped_by(budget: SearchBudget) -> StoppedBy:
    """Return what ended the search: an interrupt, though some part of the work was used up before it."""
    return "interrupt" if budget.is_interrupted and not budget.is_proven else budget.stopped_by


def _nearest_to_fitting(search: PlanSearch) -> PlanResult:
    """Return the plan without limits whose fullest device holds least of what it may, in an order of a rule.

    Raises:
        InfeasibleError: no rule applies to any layout.
    """
    known = search.pool.problem
    limits = known.cluster
    free = msgspec.structs.replace(limits, memory_bytes=None, device_memory_bytes=())
    budget = SearchBudget(work_limit=NEAREST_WORK, time_limit_s=LONGEST_S)
    pool = Pool(Problem(known.profile, free, known.global_batch, known.options), budget)
    nearest: tuple[float, Candidate] | None = None
    for family in search.families:
        for recompute in (False, True) if known.options.recompute and known.profile.is_training else (False,):
            for cut in initial_cuts(pool, family):
                flags = (recompute,) * family.num_stages
                candidate = pool.price(family, replace(cut, recompute=flags))
                if candidate.estimate is None:
                    continue
                allowed = known.figures(family, candidate.layout).memory_bytes or ()
                excess = max(
                    held / limit for held, limit in zip(candidate.estimate.memory_bytes, allowed, strict=True)
                )
                if nearest is None or excess < nearest[0]:
                    nearest = excess, candidate
    if nearest is None:
        raise InfeasibleError(_why_nothing_fits(search))
    _, candidate = nearest
    assert candidate.estimate is not None  # only such candidates were kept
    limited = replace(
        candidate,
        figures=known.figures(candidate.family, candidate.layout),
        estimate=msgspec.structs.replace(candidate.estimate, fits=False),
    )
    search.pool.best = limited
    search.pool.by_family = {}
    planned = limited.planned(with_schedule=True)
    return PlanResult(
        best=planned,
        lower_bound_us=limited.lower_bound_us,
        alternatives=(),
        baselines=search.baselines,
        explanation=(f"{_why_nothing_fits(search)[:1].upper()}{_why_nothing_fits(search)[1:]}.",),
        changes=(),
        counts=_counts(search),
        stopped_by=_stopped_by(search.budget),
        search_seconds=search.budget.elapsed_s,
    )


def _counts(search: PlanSearch) -> SearchCounts:
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
    )
    return (candidate.order,) if candidate.order.partition("<")[0] in applicable else None


def _why_nothing_fits(search: PlanSearch) -> str:
    reasons = [bound.reason for bound in search.bounds.values() if bound.reason]
    if len(reasons) == len(search.bounds):
        return (
            f"nothing fits the devices in any of {len(reasons)} ways to use them (for example: "
            f"{reasons[-1]}); use more devices, more memory, recomputation or a smaller micro-batch"
        )
    return (
        "no layout that keeps the memory of every device was found; use more devices, more memory, "
        "recomputation or a smaller micro-batch, or allow a longer search"
    )


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The search of one plan.

    Attributes:
        pool: its candidates.
        budget: of the whole search.
        families: those that the plan chooses from.
        compared: those that only baselines choose from beside.
        seed: seed of what is random.
        seeds: candidates of another plan to begin with.
        bounds: by family.
        proven: by family, a bound that holds after all of its cuts were looked at.
        baselines: rows to compare with.
        changes: what planning again found under other circumstances.
    """

    pool: Pool
    budget: SearchBudget
    families: tuple[Family, ...]
    compared: tuple[Family, ...]
    seed: int
    seeds: tuple[Candidate, ...] = ()
    bounds: dict[Family, FamilyBound] = field(default_factory=dict)
    proven: dict[Family, float] = field(default_factory=dict)
    baselines: tuple[Baseline, ...] = ()
    changes: tuple[Change, ...] = ()
    _family_bounds: FamilyBounds = field(init=False)
    _cut_bounds: set[Family] = field(default_factory=set)
    _degrees_us: dict[tuple[int, ...], float] = field(default_factory=dict)

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
        every = tuple(
            families(
                problem.profile,
                problem.cluster,
                global_batch=problem.global_batch,
                options=problem.options,
            )
        )
        if not every:
            raise ScheduleError(
                explain_none(
                    problem.profile,
                    problem.cluster,
                    global_batch=problem.global_batch,
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
        compared = tuple(family for family in every if family not in is_chosen)
        return cls(pool, budget, chosen, compared, seed)

    def run(self) -> None:
        """Search until the best step is proven, or the budget is used up."""
        self._bound_families()
        for seed in self.seeds:
            self._begin_from(seed)
        with self._share(SWEEP_SHARE):
            self._sweep()
        if self.pool.problem.options.baselines:
            with self._share(BASELINES_SHARE):
                self.baselines = find_baselines(self.pool, self._by_promise(), self._quick_bound)
        with self._share(CLIMB_SHARE):
            self._climb()
        self._enumerate()
        for count, share in ROUNDS:
            self._search_orders(count, share)
        self._move_cuts()
        self._search_orders(1, 1.0)

    def answer(self) -> PlanResult | None:
        """Return the plan so far, or None before there is one; another thread may ask meanwhile."""
        return None if self.pool.best is None else _result(self, with_changes=False)

    def plan_again(self, cluster: Cluster, options: PlanOptions, share: float) -> PlannedStep | None:
        """Return the best step for another cluster or other options, None where there is none.

        It begins from this plan's own layout and order, where these are allowed and still keep the limits, so
        that more memory or faster links never seem to cost anything.
        """
        known, best = self.pool.problem, self.pool.best
        if self.budget.is_interrupted or best is None:
            return None
        problem = Problem(known.profile, cluster, known.global_batch, options)
        try:
            search = PlanSearch.of(problem, self.budget.part(share), seed=self.seed)
            if options.micro_batch in (None, best.layout.micro_batch):
                search.seeds = (best,)
            search.run()
        except ScheduleError:
            return None
        return None if search.pool.best is None else search.pool.best.planned()

    def lower_bound_us(self) -> float:
        """Return a step time that no layout allowed can beat."""
        return min(max(self.bounds[family].step_us, self.proven.get(family, 0.0)) for family in self.families)

    @contextmanager
    def _share(self, share: float) -> Iterator[None]:
        """Have the body spend a share of what is left at most."""
        whole = self.pool.budget
        self.pool.budget = whole.part(share)
        try:
            yield
        finally:
            self.pool.budget = whole

    @property
    def _is_done(self) -> bool:
        return self.pool.budget.is_over or self.pool.best_us <= self.lower_bound_us() * (1 + 1e-12)

    def _begin_from(self, known: Candidate) -> None:
        """Offer a layout, with the order that it has elsewhere where its blocks are the same here."""
        candidate = candidate_of(self.pool, known.layout)
        if known.schedule is None or known.schedule.micro_batches * len(known.figures.chains) != (
            known.layout.micro_batches
        ):
            return
        step = step_of_figures(candidate.layout, candidate.figures)
        if step.placement.blocks != known.schedule.placement.blocks:
            return
        orders = device_orders(known.schedule.placement, known.schedule.start_by_block())
        schedule = Schedule.of(
            step.placement,
            earliest_starts(step.placement, orders),
            micro_batches=step.micro_batches,
            memory=step.limits,
            found_by=known.schedule.found_by,
        )
        estimate = estimate_step(step, schedule)
        if estimate.fits and estimate.step_us <= candidate.step_us:
            self.pool.offer(replace(candidate, order=known.order, estimate=estimate, schedule=schedule))

    def _bound_families(self) -> None:
        problem = self.pool.problem
        self._family_bounds = FamilyBounds(problem.cluster, problem.options)
        for family in self.families:
            self.bounds[family] = self._family_bounds.quick(
                family, problem.sums(family), problem.prices(family)
            )
            self.budget.charge(OPERATIONS_A_BOUND)
        self.pool.lower_bound_us = self.lower_bound_us()

    def _bound_by_cuts(self, family: Family) -> None:
        """Bound a family by a look at all of its cuts together, the first time that it matters."""
        if family in self._cut_bounds:
            return
        self._cut_bounds.add(family)
        problem = self.pool.problem
        found = self._family_bounds.by_cuts(family, problem.sums(family), problem.prices(family))
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
        self._degrees_us = self._price_1f1b()
        alive = set(self._alive())
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

    def _by_promise(self) -> list[Family]:
        """All families, those of good degrees first."""
        return sorted(
            (*self.families, *self.compared),
            key=lambda family: (self._degrees_us.get(_degrees(family), math.inf), repr(family)),
        )

    def _quick_bound(self, family: Family) -> float:
        """Return a bound of a family, of one that only baselines choose from too."""
        problem = self.pool.problem
        if family in self.bounds:
            return self._bound_of(family)
        self.budget.charge(OPERATIONS_A_BOUND)
        return self._family_bounds.quick(family, problem.sums(family), problem.prices(family)).step_us

    def _price_1f1b(self) -> dict[tuple[int, ...], float]:
        """Time one cut of each family of one stage a device, and return the best of each of its degrees."""
        rule = "1f1b" if self.pool.problem.profile.is_training else "forwards"
        found: dict[tuple[int, ...], float] = {}
        for family in self._alive():
            if family.placement != "vshape" or (self.pool.budget.is_over and self.pool.best is not None):
                continue
            for cut in initial_cuts(self.pool, family, (rule,)):
                step_us = self.pool.price(family, cut, (rule,)).step_us
                found[_degrees(family)] = min(step_us, found.get(_degrees(family), math.inf))
        return found

    def _climb(self) -> None:
        cap = CLIMBS_PER_LAYER * len(self.pool.problem.profile.layers)
        for candidate in self.pool.finalists()[:CLIMBED_FAMILIES]:
            if candidate.order and not self.pool.budget.is_over and candidate.family in self.bounds:
                climb(self.pool, candidate, _rule_of(candidate), max_priced=cap)

    def _search_orders(self, count: int, share: float) -> None:
        """Search the orders of the most promising candidates, each with an equal part of a share."""
        finalists = self.pool.finalists()
        if self.pool.best is None:
            finalists = finalists or [
                candidate for candidate in self.pool.by_family.values() if has_room(candidate.figures)
            ]
        elif count == 1:
            finalists = [self.pool.best]
        affordable = self._affordable(finalists[:count], share)
        part = self.pool.budget.part(share)
        for done, candidate in enumerate(affordable):
            if self._is_done and self.pool.best is not None:
                return
            if candidate.lower_bound_us >= self.pool.best_us:
                continue
            own = part.part(1 / (len(affordable) - done))
            self.pool.search(candidate, own, seed=self.seed, proves=count == 1)

    def _affordable(self, finalists: Sequence[Candidate], share: float) -> list[Candidate]:
        """Return as many of the candidates as a share of the budget lets search well, at least one."""
        left = share * self.pool.budget.operations_left
        found: list[Candidate] = []
        for candidate in finalists:
            left -= OPERATIONS_A_TASK_SEARCHED * num_tasks(candidate)
            if found and left < 0:
                break
            found.append(candidate)
        return found

    def _move_cuts(self) -> None:
        """Move single cuts of the best, each judged by an order that is searched for a moment."""
        options = self.pool.problem.options
        part = self.pool.budget.part(MOVES_SHARE)
        is_better = self.pool.best is not None
        while is_better and not part.is_over:
            is_better = False
            best = self.pool.best
            assert best is not None  # looked at before the loop
            may_recompute = options.recompute and best.figures.memory_bytes is not None
            for cut in neighbours(best.cut, best.figures, may_recompute=may_recompute):
                if part.is_over or self._is_done:
                    return
                candidate = self.pool.price(best.family, cut)
                if candidate.lower_bound_us >= self.pool.best_us or not has_room(candidate.figures):
                    continue
                moment = part.part(0.05)
                if self.pool.search(candidate, moment, seed=self.seed).step_us < best.step_us * (1 - 1e-9):
                    is_better = True
                    break

    def _enumerate(self) -> None:
        """Look at all cuts of the families that may still win, if they are few, and keep what is proven."""
        alive = self._alive()
        if sum(self._num_cuts(family) for family in alive) > MAX_ENUMERATED:
            return
        priced = []
        for family in alive:
            self.proven[family] = math.inf
            for cut in self._every_cut(family):
                candidate = self.pool.price(family, cut)
                if has_room(candidate.figures):
                    priced.append(candidate)
        bounds = {id(candidate): candidate.lower_bound_us for candidate in priced}
        for candidate in sorted(priced, key=lambda candidate: candidate.lower_bound_us):
            if self.pool.budget.is_over or candidate.lower_bound_us >= self.pool.best_us * (1 - 1e-12):
                continue
            part = self.pool.budget.part(0.2)
            bounds[id(candidate)] = self.pool.search(
                candidate, part, seed=self.seed, proves=True
            ).lower_bound_us
        for candidate in priced:
            family = candidate.family
            self.proven[family] = min(self.proven[family], bounds[id(candidate)])

    def _num_cuts(self, family: Family) -> int:
        layers = len(self.pool.problem.profile.layers)
        found = math.comb(layers - 1, family.num_stages - 1)
        return found * 2**family.num_stages if self._may_recompute else found

    @property
    def _may_recompute(self) -> bool:
        cluster = self.pool.problem.cluster
        is_limited = cluster.memory_bytes is not None or bool(cluster.device_memory_bytes)
        return self.pool.problem.options.recompute and is_limited and self.pool.problem.profile.is_training

    def _every_cut(self, family: Family) -> Iterator[Cut]:
        return every_cut(
            len(self.pool.problem.profile.layers), family.num_stages, may_recompute=self._may_recompute
        )


def num_tasks(candidate: Candidate) -> int:
    """Return the blocks of all micro-batches of a layout, all options counted."""
    figures = candidate.figures
    forms = (figures.forward_us, figures.backward_us, figures.backward_input_us, figures.backward_weight_us)
    per_micro_batch = len(figures.devices) * sum(each is not None for each in forms)
    return per_micro_batch * candidate.layout.micro_batches // len(figures.chains)


def _degrees(family: Family) -> tuple[int, ...]:
    return family.data_parallel, family.pipeline, family.tensor_parallel, family.micro_batch


def _but_for_split(family: Family) -> tuple[object, ...]:
    return tuple(getattr(family, name) for name in Family.__dataclass_fields__ if name != "split_backward")
