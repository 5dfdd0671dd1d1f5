"""First cuts of a family, and better ones near by, both judged by the time of their step.

A first cut balances devices (`tessel.planning.cutting`) for as many micro-batches in flight as the order of
a rule holds, 1F1B with fewer among them: the fewer, the less recomputation. `hill_climb` then moves single
cuts and recomputations as long as the step gets shorter in the order of a rule. Checked in
tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tessel.planning.candidates.candidate import Candidate
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.pool import Pool, in_flight_limits
from tessel.planning.candidates.problem import Problem
from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import position_speeds
from tessel.planning.costs.training_step import StepEstimate
from tessel.planning.cutting.chain_cut import OPERATIONS_A_CELL, chain_cut
from tessel.planning.cutting.chunked_cut import ChunkedDevices, chunked_cut
from tessel.planning.cutting.cut import Cut, Section, neighbours, transfers
from tessel.planning.cutting.even_cuts import even_cuts
from tessel.planning.cutting.run_prices import RunPrices
from tessel.planning.layout import Layout
from tessel.planning.orders.rules import rules_of

CORRECTIONS = 6
"""Times that a cut is made again with less memory, by what its devices really hold beyond the estimate."""


def initial_cuts(pool: Pool, family: Family, rules: Sequence[str] | None = None) -> Iterator[Cut]:
    """Yield cuts to begin with, each once: under limits one for each rule, and some with less in flight.

    Where a rule's would recompute, or none fits, even ones are tried, too.

    Args:
        pool: of the plan; it is charged.
        family: degrees and placement.
        rules: the rules in whose orders the cut is to fit; all that apply, and searched orders, if None.
    """
    problem = pool.problem
    layout = family.any_layout(problem.sums(family).num_layers)
    figures = pool.figures(family, layout)
    if figures.memory_bytes is None:
        cut = _cut(pool, family, (1.0,) * family.num_stages, None)
        assert cut is not None  # without limits there is always one
        yield cut
        return
    seen = set()
    if layout.divided_stages:
        # Its hand-written orders follow the spans: cuts are made for orders that a search would find.
        for in_flight in _fewer_in_flight(family, layout, problem):
            cut = _cut(pool, family, in_flight, figures.memory_bytes)
            if cut is not None and cut not in seen:
                seen.add(cut)
                yield cut
        return
    names = rules
    if names is None:
        names = rules_of(
            layout,
            has_backward=figures.has_backward,
            is_split=figures.backward_input_us is not None,
            in_flight=in_flight_limits(layout),
        )
    for rule in names:
        pool.charge_order(rule, layout, figures)
        in_flight = pool.in_flight(rule, family)
        cut = _cut_that_fits(pool, family, in_flight, figures.memory_bytes, rule)
        cuts = [] if cut is None else [cut]
        if cut is None or any(cut.recompute):  # memory is tight
            even = list(even_cuts(problem.prices(family), family.num_stages))
            even = [each for each in even if family.allows(each)]
            cuts += [each for each in even if _estimate(pool, family, each, rule).fits]
        for each in cuts:
            if each not in seen:
                seen.add(each)
                yield each
    if rules is None and family.placement != "vshape":
        for in_flight in _fewer_in_flight(family, layout, problem):
            cut = _cut(pool, family, in_flight, figures.memory_bytes)
            if cut is not None and cut not in seen:
                seen.add(cut)
                yield cut


def cut_operations(problem: Problem, family: Family) -> int:
    """Return what a first cut of a family is charged."""
    cells = family.num_stages * (problem.sums(family).num_layers + 1) ** 2
    return OPERATIONS_A_CELL * cells * (1 if family.placement == "vshape" else 4)


def _fewer_in_flight(family: Family, layout: Layout, problem: Problem) -> Iterator[tuple[float, ...]]:
    """Yield micro-batches in flight by stage for orders that a search would find: 1F1B's, and less."""
    if not problem.profile.is_training:  # what is kept is kept to the end
        yield (float(family.micro_batches),) * family.num_stages
        return
    depth = [0] * family.num_stages
    for stage in reversed(range(family.num_stages)):
        following = layout.next_stage(stage)
        depth[stage] = 1 + (depth[following] if following >= 0 else 0)
    published = min(family.pipeline, family.micro_batches)
    for limit in sorted({published, max(1, published // 4), 1}, reverse=True):
        yield tuple(float(min(each, limit)) for each in depth)


def _cut_that_fits(
    pool: Pool, family: Family, in_flight: tuple[float, ...], limits: tuple[int, ...], rule: str
) -> Cut | None:
    """Return a cut that fits in the order of a rule.

    Limits are lowered by what the order holds beyond the estimate that the cut was made with.
    """
    allowed = np.array(limits, dtype=np.float64)
    for _ in range(CORRECTIONS):
        cut = _cut(pool, family, in_flight, tuple(allowed.tolist()))
        if cut is None:
            return None
        estimate = _estimate(pool, family, cut, rule)
        if estimate.fits:
            return cut
        allowed -= np.maximum(np.array(estimate.memory_bytes) - np.array(limits), 0.0)
        if (allowed <= 0).any():
            return None
    return cut


def _estimate(pool: Pool, family: Family, cut: Cut, rule: str) -> StepEstimate:
    """Return the step and memory of a cut in the order of a rule."""
    layout = family.layout(cut.bounds, cut.recompute)
    pool.charge_order(rule, layout, pool.figures(family, layout))
    return pool.time_in_order(rule, family, layout).estimate


def _cut(
    pool: Pool, family: Family, in_flight: tuple[float, ...], limits: tuple[float, ...] | None
) -> Cut | None:
    pool.budget.charge(cut_operations(pool.problem, family))
    key = family, in_flight, limits
    if key not in pool.known_cuts:
        pool.known_cuts[key] = _new_cut(pool.problem, family, in_flight, limits)
    return pool.known_cuts[key]


def _new_cut(
    problem: Problem, family: Family, in_flight: tuple[float, ...], limits: tuple[float, ...] | None
) -> Cut | None:
    layout = family.any_layout(problem.num_layers)
    speeds = position_speeds(layout, problem.cluster)
    may_recompute = problem.may_recompute
    if layout.divided_stages or family.tower_stages:
        around = _Around(family, layout, problem.prices(family), in_flight, speeds, limits, may_recompute)
        # What joins branches is many layers, which may have to recompute; an end is one.
        return around.cut() or (around.cut(recomputes=True) if family.joined and may_recompute else None)
    if family.placement == "vshape":
        return chain_cut(
            problem.stage_prices(family),
            in_flight=in_flight,
            speeds=speeds,
            limits=limits,
            may_recompute=may_recompute,
        )
    devices = tuple(layout.device_of(stage) for stage in range(family.num_stages))
    if family.placement == "xshape":
        devices = (*devices, *(family.pipeline - 1 - device for device in devices))
    chunked = ChunkedDevices(
        devices=devices,
        in_flight=in_flight,
        speeds=speeds,
        limits=limits,
        may_recompute=may_recompute,
    )
    return chunked_cut(problem.prices(family), chunked, family.num_stages)


@dataclass(frozen=True, slots=True)
class _Around:
    """The sections of a family whose stages have a device each, beside its part of divided ones."""

    family: Family
    layout: Layout
    prices: RunPrices
    in_flight: tuple[float, ...]
    speeds: FloatArray
    limits: Sequence[float] | None
    may_recompute: bool

    def cut(self, *, recomputes: bool = False) -> Cut | None:
        """Return the cut whose longest stage is shortest in each section; None where one does not fit.

        Args:
            recomputes: whether the divided stages recompute.
        """
        num_layers = len(self.prices.time) - 1
        sections = self.family.sections(num_layers)
        room = self._room(sections, recomputes=recomputes)
        if room is not None and min(room) <= 0:
            return None
        bounds: list[int] = []
        recompute: list[bool] = []
        for section in sections:
            if len(bounds) in self.layout.divided_stages:
                bounds.append(section.first)
                recompute.append(recomputes)
                continue
            stages = range(len(bounds), len(bounds) + section.num_stages)
            devices = [self.layout.device_of(stage) for stage in stages]
            found = chain_cut(
                (self.prices.of_layers(section.first, section.after),),
                in_flight=[self.in_flight[stage] for stage in stages],
                speeds=self.speeds[devices],
                limits=None if room is None else [room[device] for device in devices],
                may_recompute=self.may_recompute,
            )
            if found is None:
                return None
            bounds += [section.first + bound for bound in found.bounds[:-1]]
            recompute += found.recompute
        return Cut((*bounds, num_layers), tuple(recompute))

    def _room(self, sections: Sequence[Section], *, recomputes: bool) -> list[float] | None:
        """Return the bytes that each device has beside its part of the divided stages."""
        if self.limits is None:
            return None
        held, stage = 0.0, 0
        static = self.prices.recomputed_static if recomputes else self.prices.static
        saved = self.prices.kept if recomputes else self.prices.saved
        for section in sections:
            if stage in self.layout.divided_stages:
                run = section.first, section.after
                held += float(static[run] + max(1.0, self.in_flight[stage]) * saved[run])
            stage += section.num_stages
        return [limit - held for limit in self.limits]


def hill_climb(
    pool: Pool, candidate: Candidate, rules: Sequence[str] | None, *, max_priced: int
) -> Candidate:
    """Return the candidate after moves of cuts that each make its step shorter in the order of a rule.

    Args:
        pool: of the plan; it is charged.
        candidate: where from; it has an order.
        rules: orders in which cuts are timed; all that apply if None.
        max_priced: cuts that are priced at most.
    """
    may_recompute = pool.problem.may_recompute
    left = max_priced
    is_better = True
    while is_better and left > 0 and not pool.budget.is_over:
        is_better = False
        near = neighbours(candidate.cut, candidate.figures, may_recompute=may_recompute, reach=2)
        for cut in chain(near, transfers(candidate.cut, pool.problem.prices(candidate.family))):
            if not candidate.family.allows(cut):
                continue
            found = pool.price(candidate.family, cut, rules)
            left -= 1
            if found.step_us < candidate.step_us * (1 - 1e-12):
                candidate, is_better = found, True
                break
            if left <= 0 or pool.budget.is_over:
                break
    return candidate
