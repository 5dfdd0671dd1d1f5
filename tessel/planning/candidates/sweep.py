"""First cuts of a family, and better ones near by, both judged by the time of their step.

A first cut balances devices (`tessel.planning.cutting`) for as many micro-batches in flight as the order of
a rule holds, 1F1B with fewer among them: the fewer, the less recomputation. `hill_climb` then moves single
cuts and recomputations as long as the step gets shorter in the order of a rule. Checked in
tests/tessel/planning/test_find_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from tessel.planning.candidates.candidate import Candidate
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.pool import Pool, in_flight_limits
from tessel.planning.candidates.problem import Problem
from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import position_speeds
from tessel.planning.costs.training_step import choose_step_us
from tessel.planning.cutting.chain_cut import OPERATIONS_A_CELL, chain_cut
from tessel.planning.cutting.chunked_cut import ChunkedDevices, chunked_cut
from tessel.planning.cutting.cut import Cut, neighbours, transfers
from tessel.planning.cutting.run_prices import RunPrices
from tessel.planning.orders.rules import rules_of
from tessel.planning.orders.timed_order import in_flight_by_stage, time_rule

CORRECTIONS = 6
"""Times that a cut is made again with less memory, by what its devices really hold beyond the estimate."""


def initial_cuts(pool: Pool, family: Family, rules: Sequence[str] | None = None) -> Iterator[Cut]:
    """Yield cuts to begin with, each once: under limits one for each rule, and some with less in flight.

    Args:
        pool: of the plan; it is charged.
        family: degrees and placement.
        rules: the rules in whose orders the cut is to fit; all that apply, and searched orders, if None.
    """
    problem = pool.problem
    layout = family.any_layout(problem.sums(family).num_layers)
    figures = problem.figures(family, layout)
    if figures.memory_bytes is None:
        cut = _cut(pool, family, (1.0,) * family.num_stages, None)
        assert cut is not None  # without limits there is always one
        yield cut
        return
    seen = set()
    if family.placement == "mshape":
        # Its hand-written orders follow the spans: cuts are made for orders that a search would find.
        for in_flight in _fewer_in_flight(family):
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
        in_flight = in_flight_by_stage(rule, layout, figures)
        cut = _cut_that_fits(pool, family, in_flight, figures.memory_bytes, rule)
        if cut is not None and cut not in seen:
            seen.add(cut)
            yield cut
    if rules is None and family.placement != "vshape":
        for in_flight in _fewer_in_flight(family):
            cut = _cut(pool, family, in_flight, figures.memory_bytes)
            if cut is not None and cut not in seen:
                seen.add(cut)
                yield cut


def cut_operations(problem: Problem, family: Family) -> int:
    """Return what a first cut of a family is charged."""
    cells = family.num_stages * (problem.sums(family).num_layers + 1) ** 2
    return OPERATIONS_A_CELL * cells * (1 if family.placement == "vshape" else 3)


def _fewer_in_flight(family: Family) -> Iterator[tuple[float, ...]]:
    """Yield micro-batches in flight by stage for orders that a search would find: 1F1B's, and less."""
    published = min(family.pipeline, family.micro_batches)
    for limit in sorted({published, max(1, published // 4), 1}, reverse=True):
        yield tuple(float(min(family.num_stages - stage, limit)) for stage in range(family.num_stages))


def _cut_that_fits(
    pool: Pool, family: Family, in_flight: Sequence[float], limits: tuple[int, ...], rule: str
) -> Cut | None:
    """Return a cut that fits in the order of a rule.

    Limits are lowered by what the order holds beyond the estimate that the cut was made with.
    """
    allowed = np.array(limits, dtype=np.float64)
    for _ in range(CORRECTIONS):
        cut = _cut(pool, family, in_flight, tuple(allowed.tolist()))
        if cut is None:
            return None
        layout = family.layout(cut.bounds, cut.recompute)
        figures = pool.problem.figures(family, layout)
        pool.charge_order(rule, layout, figures)
        estimate = time_rule(rule, layout, figures, choose_step_us(figures)).estimate
        if estimate.fits:
            return cut
        allowed -= np.maximum(np.array(estimate.memory_bytes) - np.array(limits), 0.0)
        if (allowed <= 0).any():
            return None
    return cut


def _cut(
    pool: Pool, family: Family, in_flight: Sequence[float], limits: Sequence[float] | None
) -> Cut | None:
    problem = pool.problem
    pool.budget.charge(cut_operations(problem, family))
    prices = problem.prices(family)
    layout = family.any_layout(problem.sums(family).num_layers)
    speeds = position_speeds(layout, problem.cluster)
    may_recompute = problem.options.recompute and problem.profile.is_training
    if family.placement == "mshape":
        return _cut_between_ends(prices, in_flight, speeds, limits, may_recompute=may_recompute)
    if family.placement == "vshape":
        return chain_cut(
            prices, in_flight=in_flight, speeds=speeds, limits=limits, may_recompute=may_recompute
        )
    devices = tuple(layout.device_of(stage) for stage in range(family.num_stages))
    if family.placement == "xshape":
        devices = (*devices, *(family.pipeline - 1 - device for device in devices))
    chunked = ChunkedDevices(
        devices=devices,
        in_flight=tuple(in_flight),
        speeds=speeds,
        limits=None if limits is None else tuple(limits),
        may_recompute=may_recompute,
    )
    return chunked_cut(prices, chunked, family.num_stages)


def _cut_between_ends(
    prices: RunPrices,
    in_flight: Sequence[float],
    speeds: FloatArray,
    limits: Sequence[float] | None,
    *,
    may_recompute: bool,
) -> Cut | None:
    """Return the cut of the layers between first and last, whose parts each device holds beside its stage.

    The first stage has most micro-batches in flight, and so does what is divided.
    """
    num_layers = len(prices.time) - 1
    if limits is not None:
        first, last = (0, 1), (num_layers - 1, num_layers)
        held = sum(
            float(prices.static[end] + max(1.0, flights) * prices.saved[end])
            for end, flights in ((first, in_flight[0]), (last, 1.0))
        )
        limits = [limit - held for limit in limits]
        if min(limits) <= 0:
            return None
    found = chain_cut(
        prices.between_ends(),
        in_flight=in_flight[1:-1],
        speeds=speeds,
        limits=limits,
        may_recompute=may_recompute,
    )
    if found is None:
        return None
    return Cut((0, *(1 + bound for bound in found.bounds), num_layers), (False, *found.recompute, False))


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
    options = pool.problem.options
    may_recompute = options.recompute and candidate.figures.memory_bytes is not None
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
