"""Result of planning: the best step found, what it is compared with, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tessel.planning.costs.training_step import StepEstimate, TrainingStep
from tessel.planning.job import Job
from tessel.planning.layout import Layout, layout_of_layers
from tessel.schedule import Schedule
from tessel.search.budget import StoppedBy

if TYPE_CHECKING:
    from tessel.search.batches.assignment import Assignment

SEARCHED = "searched"
"""Name of an order that the search found, where no rule's is as short."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedStep:
    """One way to run a training step.

    Attributes:
        layout: degrees, cuts, placement, recomputation.
        order: name of the rule that gives the order, or `searched`.
        step: what the order was searched for.
        estimate: time and memory.
        lower_bound_us: no order of this layout is faster.
        schedule: the order and its times, of the slowest replica where they differ; None for the steps that a
            plan is only compared with.
        shared: where micro-batches differ, which replica runs which, and how; else None.
    """

    layout: Layout
    order: str
    step: TrainingStep
    estimate: StepEstimate
    lower_bound_us: float
    schedule: Schedule | None = None
    shared: Assignment | None = None

    def of_layers(self, bounds: Sequence[int]) -> PlannedStep:
        """Return the same whose cuts count layers, given where the groups begin that they count here."""
        layout = layout_of_layers(self.layout, bounds)
        return replace(self, layout=layout, step=replace(self.step, layout=layout))

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        layout = self.layout
        parts = [
            f"{layout.data_parallel} × data" if layout.data_parallel > 1 else "",
            f"{layout.named_tensor_degrees} × tensor" if layout.tensor_parallel > 1 else "",
            f"{layout.context_parallel} × context" if layout.context_parallel > 1 else "",
            f"{layout.expert_parallel} × expert" if layout.expert_parallel > 1 else "",
            f"{layout.pipeline} × pipeline",
        ]
        order = "an order of ours" if self.order == SEARCHED else self.order
        return (
            f"{', '.join(part for part in parts if part)}, {layout.placement_words}, "
            f"{layout.micro_batches} micro-batches of {layout.micro_batch}, {order}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Baseline:
    """A hand-written way to use the devices, with its own best degrees and cut under the same memory.

    Attributes:
        name: `data-parallel`, `gpipe`, `1f1b`, `interleaved-2`, …, `zb-h1`, `zb-v`, `torch-auto`, `by-hand`.
        planned: its best step; None where there is none.
        fits: whether it keeps the memory limit.
        reason: why there is none, or why it does not fit; empty otherwise.
    """

    name: str
    planned: PlannedStep | None
    fits: bool
    reason: str = ""

    def of_layers(self, bounds: Sequence[int]) -> Baseline:
        """Return the same whose cuts count layers; see `PlannedStep.of_layers`."""
        return self if self.planned is None else replace(self, planned=self.planned.of_layers(bounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What planning again finds if one thing were different.

    Attributes:
        change: what would be different.
        step_us: the best step found then.
        saves_us: how much shorter it is; negative where longer.
        name: the step found then, in a few words.
    """

    change: str
    step_us: float
    saves_us: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """What a plan looked at.

    Attributes:
        families: degrees, micro-batch sizes and placements.
        families_not_fitting: of these, those of which no cut fits.
        families_cut_off: of these, those whose bound is above the best step.
        layouts: cuts that were priced.
        orders: layouts whose order was searched.
    """

    families: int
    families_not_fitting: int
    families_cut_off: int
    layouts: int
    orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """The state of a plan at one improvement.

    Attributes:
        step_us: the best step so far.
        lower_bound_us: no layout has a shorter one, as far as is proven now.
        elapsed_s: seconds since the search began.
        name: the best step, in a few words.
    """

    step_us: float
    lower_bound_us: float
    elapsed_s: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """What a step takes where durations vary, in microseconds.

    Attributes:
        name: the plan, in a few words.
        step_us: with every block at its mean.
        mean_us: on average.
        quantiles_us: by `QUANTILES`.
        chosen_us: the percentile that plans are chosen by; the median where they are not.
        greedy_us: the same percentile of a greedy runtime; None of large or divided stages.
        static_us: of the static order, over the samples that the greedy runtime had; None likewise.
        is_chosen: whether this is the plan.
    """

    name: str
    step_us: float
    mean_us: float
    quantiles_us: tuple[float, ...]
    chosen_us: float
    greedy_us: float | None
    static_us: float | None
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanResult:
    """A plan.

    Attributes:
        job: what it was made for.
        best: the fastest step found; it has a schedule.
        lower_bound_us: no allowed layout, cut, recomputation and order has a shorter step.
        alternatives: the best steps of other degrees or placements, fastest first.
        baselines: hand-written ways to use the devices.
        explanation: sentences that say why this step, and what the next best costs.
        changes: what planning again finds with more memory, faster links or other micro-batch sizes.
        counts: what was looked at.
        stopped_by: what ended the search.
        search_seconds: wall-clock time.
        spreads: distributions of the finalists' steps, the one with the shortest step first; none where
            durations do not vary.
    """

    job: Job
    best: PlannedStep
    lower_bound_us: float
    alternatives: tuple[PlannedStep, ...]
    baselines: tuple[Baseline, ...]
    explanation: tuple[str, ...]
    changes: tuple[Change, ...]
    counts: SearchCounts
    stopped_by: StoppedBy
    search_seconds: float
    spreads: tuple[StepSpread, ...] = ()

    @property
    def gap(self) -> float:
        """How far the step may be from the least one, as a fraction of the bound; 0 where proven."""
        return max(0.0, self.best.estimate.step_us / self.lower_bound_us - 1) if self.lower_bound_us else 0.0

    @property
    def optimal(self) -> bool:
        """Whether the step is proven optimal, up to rounding."""
        return self.gap <= PROVEN_GAP


PROVEN_GAP = 1e-9
"""Of the step: differences below are rounding errors of floating point."""
