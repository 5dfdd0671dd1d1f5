"""One layout with its best order so far, and how promising it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tessel.errors import InfeasibleError
from tessel.planning.candidates.families import Family
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import (
    StepEstimate,
    check_headroom,
    step_of_figures,
)
from tessel.planning.cutting.cut import Cut
from tessel.planning.layout import Layout
from tessel.planning.orders.class_order import assignment_in_order
from tessel.planning.orders.timed_order import (
    schedule_in_order,
)
from tessel.planning.plan_result import PlannedStep
from tessel.schedule import Schedule
from tessel.search.batches.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A layout and its best order so far.

    Attributes:
        family: degrees and placement.
        cut: where stages begin, and which recompute.
        order: name of its best order; empty where none fits yet.
        estimate: of that order.
        lower_bound_us: no order of the layout is faster.
        schedule: of a searched order.
        shared: of searched orders where micro-batches differ, which replica runs which, and how.
    """

    family: Family
    cut: Cut
    layout: Layout
    figures: StageFigures
    order: str
    estimate: StepEstimate | None
    lower_bound_us: float
    schedule: Schedule | None = None
    shared: Assignment | None = None

    @property
    def step_us(self) -> float:
        """Microseconds of its best order; infinite where none fits."""
        return math.inf if self.estimate is None else self.estimate.step_us

    def planned(self, *, with_schedule: bool = False) -> PlannedStep:
        """Return it as a part of a plan."""
        assert self.estimate is not None  # only candidates with an order become part of a plan
        step = step_of_figures(self.layout, self.figures)
        schedule, shared = self.schedule, self.shared
        if with_schedule and step.batch is not None:
            shared = shared or assignment_in_order(self.order, step)
            schedule = shared.slowest
        if with_schedule and schedule is None:
            schedule = schedule_in_order(self.order, step)
        return PlannedStep(
            layout=self.layout,
            order=self.order,
            step=step,
            estimate=self.estimate,
            lower_bound_us=self.lower_bound_us,
            schedule=schedule if with_schedule else None,
            shared=shared,
        )


def rank(candidate: Candidate) -> tuple[float, float]:
    """Return what candidates are sorted by: the step that is known, then how short it may become."""
    return candidate.step_us, candidate.lower_bound_us


def promise(candidate: Candidate) -> float:
    """Return microseconds that a search may come to: halfway from the known step to its bound."""
    known = candidate.step_us
    return (known + candidate.lower_bound_us) / 2 if math.isfinite(known) else 1.1 * candidate.lower_bound_us


def has_headroom(figures: StageFigures) -> bool:
    """Whether each device can hold its weights and one micro-batch."""
    try:
        check_headroom(figures)
    except InfeasibleError:
        return False
    return figures.headroom is None or min(figures.headroom) >= 0


def cut_of(layout: Layout) -> Cut:
    """Return where a layout's stages begin, and which recompute."""
    bounds = (*(first for first, _ in layout.cuts), layout.cuts[-1][1] + 1)
    return Cut(bounds, layout.recompute or (False,) * len(layout.cuts))


def num_tasks(candidate: Candidate) -> int:
    """Return the blocks of all micro-batches of a layout, all options counted."""
    figures = candidate.figures
    forms = (figures.forward_us, figures.backward_us, figures.backward_input_us, figures.backward_weight_us)
    per_micro_batch = len(figures.devices) * sum(each is not None for each in forms)
    return per_micro_batch * candidate.layout.micro_batches // len(figures.chains)
