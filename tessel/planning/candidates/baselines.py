"""Hand-written ways to use the devices, each as strong as it can be: its own degrees, cut and recomputation.

A comparison with 1F1B is fair only against the best that 1F1B can do under the same memory. So each row
chooses among all degrees and micro-batch sizes that the plan may, is cut by the same dynamic programme and
improved by the same moves of cuts, timed in its own order; and every rule that applies to the plan's own
stages is tried on these in the end, as `tessel compare` does, so that no other table has a stronger row of
that name. `torch-auto` is the exception: equal parts by time, blind to memory, as torch's automatic partition
proposes them. Checked in
tests/tessel/planning/candidates/test_baselines.py.

Source: `torch-auto` after the proposal in pytorch/pytorch#179212: FLOPs of consecutive layers, min-max.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tessel.handwritten import HANDWRITTEN, OVERLAPPING
from tessel.handwritten.paired import paired_rule
from tessel.planning.candidates.candidate import Candidate
from tessel.planning.candidates.families import Family
from tessel.planning.candidates.pool import Pool, offer_by_hand
from tessel.planning.candidates.problem import Problem
from tessel.planning.candidates.sweep import hill_climb, initial_cuts
from tessel.planning.costs.training_step import estimate_step
from tessel.planning.cutting.chain_cut import chain_cut
from tessel.planning.cutting.cut import Cut
from tessel.planning.layout import Layout, layout_of_groups
from tessel.planning.plan_result import Baseline, PlannedStep

CLIMBED_FAMILIES = 2
"""Families of a baseline whose cuts are improved: those that are fastest as first cut."""

CLIMBS_PER_LAYER = 8
"""Cuts priced in that, for each layer of the model."""

MAX_TASKS_COMPARED = 10_000
"""Tasks of a step up to which every rule is tried on the plan's own stages, in tenths of a second each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRule:
    """One row.

    Attributes:
        rule: order in which its cuts are timed.
        chunks: stages per device.
        splits: whether backwards run in halves; None for whichever is faster.
        is_one_device: whether the whole model is on each device.
        is_one_replica: whether every layer is split over all devices.
    """

    name: str
    rule: str
    placement: str = "vshape"
    chunks: int = 1
    splits: bool | None = None
    is_one_device: bool = False
    is_one_replica: bool = False

    def is_of(self, family: Family) -> bool:
        """Whether a family is one of those that the row chooses from."""
        return (
            family.placement == self.placement
            and (self.placement in ("vshape", "mshape", "kshape") or family.chunks == self.chunks)
            and self.splits in (None, family.split_backward)
            and (family.pipeline == 1) == self.is_one_device
            and (not self.is_one_replica or family.data_parallel == 1 < family.tensor_parallel)
        )


def baseline_rules(families: Sequence[Family], *, overlaps: bool = False) -> Iterator[BaselineRule]:
    """Yield the rows for these families: interleaving for each number of chunks that there is.

    Args:
        families: those that the plan chooses from.
        overlaps: whether blocks may run together, for which Megatron has an order of its own.
    """
    yield BaselineRule(name="data-parallel", rule="1f1b", is_one_device=True)
    if any(family.tensor_parallel > 1 for family in families):
        yield BaselineRule(name="tensor-parallel", rule="1f1b", is_one_device=True, is_one_replica=True)
    yield BaselineRule(name="gpipe", rule="gpipe")
    yield BaselineRule(name="1f1b", rule="1f1b")
    yield BaselineRule(name="eager-1f1b", rule="eager-1f1b")
    for chunks in sorted({family.chunks for family in families if family.placement == "interleaved"}):
        yield BaselineRule(
            name=f"interleaved-{chunks}", rule="interleaved", placement="interleaved", chunks=chunks
        )
        if overlaps:
            name = f"combined-1f1b-{chunks}"
            yield BaselineRule(name=name, rule="combined-1f1b", placement="interleaved", chunks=chunks)
    yield BaselineRule(name="zb-h1", rule="zb-h1", splits=True)
    yield BaselineRule(name="zb-h2", rule="zb-h2", splits=True)
    for rule in ("zb-v", "v-half", "v-min"):
        yield BaselineRule(name=rule, rule=rule, placement="zbv", chunks=2, splits=True)
    yield BaselineRule(name="dualpipe-v", rule="dualpipe-v", placement="zbv", chunks=2)
    yield BaselineRule(name="chimera", rule="chimera", placement="xshape")
    if any(family.placement == "mshape" for family in families):
        yield BaselineRule(name="mshape-1f1b", rule="1f1b", placement="mshape")
    if any(family.placement == "kshape" for family in families):
        yield BaselineRule(name="kshape-1f1b", rule="1f1b", placement="kshape")


def find_baselines(
    pool: Pool, families: Sequence[Family], bound_us: Callable[[Family], float]
) -> tuple[Baseline, ...]:
    """Return the rows; what they find takes part in the plan.

    Args:
        pool: of the plan; it is charged.
        families: those allowed, with joint and with split backwards, the most promising first.
        bound_us: a step time that no layout of a family can beat.
    """
    found = []
    for baseline in baseline_rules(families, overlaps=pool.problem.job.overlap_factor is not None):
        own = [family for family in families if baseline.is_of(family)]
        found.append(_strongest(pool, baseline, own, bound_us))
    found.append(_torch_auto(pool, [family for family in families if _is_for_torch(family)]))
    by_hand = pool.problem.options.by_hand
    if by_hand is not None:
        found.append(_row("by-hand", offer_by_hand(pool, layout_of_groups(by_hand, pool.problem.bounds))))
    return tuple(found)


def rules_on_stages(own: PlannedStep) -> tuple[PlannedStep, ...]:
    """Return the plan's own stages in the order of each hand-written rule that applies and fits."""
    step = own.step
    if step.batch is not None:
        return ()  # every rule that applies was timed on the stages of each layout
    if len(step.placement.blocks) * step.micro_batches > MAX_TASKS_COMPARED or not step.figures.has_backward:
        return ()
    found = []
    factor = step.figures.overlap_factor
    for rule in HANDWRITTEN if factor is None else OVERLAPPING:
        limits = step.limits if rule.needs_limit else None
        if rule.why_not(step.placement, step.micro_batches, limits) is not None:
            continue
        schedule = paired_rule(
            rule, step.placement, micro_batches=step.micro_batches, factor=factor, memory=step.limits
        )
        estimate = estimate_step(step, schedule)
        if estimate.fits:
            found.append(replace(own, order=rule.name, estimate=estimate, schedule=schedule))
    return tuple(found)


def with_rules_on_stages(
    baselines: Sequence[Baseline], on_stages: Sequence[PlannedStep]
) -> tuple[Baseline, ...]:
    """Return the rows, each rule's on the plan's own stages where it is faster there, and further ones.

    A rule that is only simulated on such stages, not published for them, has a row if it is the strongest.

    Args:
        baselines: rows with degrees and cuts of their own.
        on_stages: what `rules_on_stages` found.
    """
    rows = {row.name: row for row in baselines}
    strongest_us = min(map(_step_us, baselines), default=math.inf)
    for each in on_stages:
        layout = each.layout
        is_published = each.order in _PUBLISHED.get(layout.placement, ())
        name = _row_name(each.order, layout) if is_published else f"{layout.placement}-{each.order}"
        known_us = _step_us(rows[name]) if name in rows else math.inf
        if not is_published:
            known_us = min(known_us, strongest_us)
        if each.estimate.step_us < known_us * (1 - 1e-12):
            rows[name] = Baseline(name=name, planned=replace(each, schedule=None), fits=True)
    return tuple(rows.values())


def strongest(known: Sequence[Baseline], found: Sequence[Baseline]) -> tuple[Baseline, ...]:
    """Return the rows that were found, each as it was known where it was faster then."""
    before = {row.name: row for row in known}
    return tuple(min((row, before.get(row.name, row)), key=_step_us) for row in found)


_PUBLISHED = {
    "vshape": ("1f1b", "gpipe", "eager-1f1b", "early-recompute-1f1b", "1f1b-limited", "zb-h1", "zb-h2"),
    "interleaved": ("interleaved", "combined-1f1b", "breadth-first", "interleaved-zb"),
    "zbv": ("zb-v", "v-half", "v-min", "dualpipe-v"),
    "xshape": ("chimera",),
}
"""Rules by the placement that they are published for."""


def _row_name(rule: str, layout: Layout) -> str:
    return f"{rule}-{layout.chunks}" if layout.placement == "interleaved" else rule


def _step_us(row: Baseline) -> float:
    return math.inf if row.planned is None else row.planned.estimate.step_us


def _strongest(
    pool: Pool, baseline: BaselineRule, families: Sequence[Family], bound_us: Callable[[Family], float]
) -> Baseline:
    """Return the fastest step in the order of a rule over families, cuts and recomputation.

    A family is looked at unless its bound is above the row's own best, or the budget is over and the row has
    something already.
    """
    if not families:
        return Baseline(
            name=baseline.name, planned=None, fits=False, reason=_why_none(pool.problem, baseline)
        )
    rule = baseline.rule if pool.problem.profile.is_training else "forwards"
    starts: list[Candidate] = []
    best_us = math.inf
    for family in families:
        if not _applies(rule, family) or (pool.budget.is_over and starts) or bound_us(family) >= best_us:
            continue
        for cut in initial_cuts(pool, family, (rule,)):
            start = pool.price(family, cut, (rule,))
            starts.append(start)
            best_us = min(best_us, start.step_us)
    starts = sorted((start for start in starts if start.order), key=lambda candidate: candidate.step_us)
    if not starts:
        reason = f"no cut keeps the memory of every device in the order of {rule}"
        if not any(_applies(rule, family) for family in families):
            reason = _why_inapplicable(rule)
        return Baseline(name=baseline.name, planned=None, fits=False, reason=reason)
    cap = CLIMBS_PER_LAYER * pool.problem.num_layers
    best = min(
        (hill_climb(pool, start, (rule,), max_priced=cap) for start in starts[:CLIMBED_FAMILIES]),
        key=lambda candidate: candidate.step_us,
    )
    return _row(baseline.name, best)


def _applies(rule: str, family: Family) -> bool:
    if rule == "chimera":
        return family.pipeline % 2 == 0
    if rule == "forwards":
        return family.placement not in ("xshape", "mshape", "kshape")
    if rule == "dualpipe-v":
        return family.micro_batches >= 2 * family.pipeline
    return rule not in ("interleaved", "combined-1f1b") or family.micro_batches % family.pipeline == 0


def _why_inapplicable(rule: str) -> str:
    if rule == "chimera":
        return "it needs an even number of pipeline devices"
    if rule == "forwards":
        return "it is an order of forwards and backwards, and there are no backwards"
    if rule == "dualpipe-v":
        return "it needs two micro-batches a device of the pipeline at least"
    return "the micro-batches of a replica are no multiple of its stages"


def _why_none(problem: Problem, baseline: BaselineRule) -> str:
    if baseline.splits and not any(
        all(cost.is_splittable for cost in table.costs) for table in problem.profile.tables
    ):
        return "the profile does not have the halves of backwards"
    return "the options or the batch leave no degrees for it"


def _is_for_torch(family: Family) -> bool:
    is_any_cut = family.placement == "vshape" and not family.tower_stages
    return is_any_cut and not family.split_backward and family.pipeline > 1


def _torch_auto(pool: Pool, families: Sequence[Family]) -> Baseline:
    """Return 1F1B on parts of equal forward time, whichever degrees suit them best."""
    name = "torch-auto"
    rule = "1f1b" if pool.problem.profile.is_training else "forwards"
    if not families:
        return Baseline(
            name=name, planned=None, fits=False, reason="the options or the batch leave no degrees for it"
        )
    priced = [pool.price(family, _equal_parts(pool.problem, family), (rule,)) for family in families]
    fitting = [candidate for candidate in priced if candidate.order]
    if not fitting:
        return Baseline(
            name=name,
            planned=None,
            fits=False,
            reason="its equal parts exceed a device's memory, whatever the degrees",
        )
    return _row(name, min(fitting, key=lambda candidate: candidate.step_us))


def _equal_parts(problem: Problem, family: Family) -> Cut:
    """Return the cut whose longest part has the least forward time."""
    sums, prices = problem.sums(family), problem.prices(family)
    forward = sums.forward[None, :] - sums.forward[:, None]
    cut = chain_cut(
        (prices.with_times(np.where(np.isfinite(prices.time), forward, np.inf)),),
        in_flight=(1,) * family.num_stages,
        speeds=np.ones(family.num_stages),
        limits=None,
        may_recompute=False,
    )
    assert cut is not None  # without limits there is always one
    return cut


def _row(name: str, candidate: Candidate) -> Baseline:
    if not candidate.order:
        return Baseline(name=name, planned=None, fits=False, reason="it exceeds a device's memory")
    return Baseline(name=name, planned=candidate.planned(), fits=True)
