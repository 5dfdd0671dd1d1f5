"""Read plans of tuned models, and compute every figure again that a file could have wrong.

A plan's blocks must be what its stages cost, on the devices that these have; its memory must be that of
their weights. Whatever else tables and pictures show is derived from those. Checked in
tests/tessel/test_loading.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from tessel.comparison import SEARCHED
from tessel.errors import DocumentError, ScheduleError, shown
from tessel.planning.cluster import OPTIMIZERS
from tessel.planning.costs.block_check import check_blocks
from tessel.profiles.profile import MAX_BYTES
from tessel.tuned_model.model_figures import figures_of_model
from tessel.tuned_plan import TunedPlan, read_plan


def load_plan(path: str | os.PathLike[str]) -> TunedPlan:
    """Read a plan of `tessel tune`.

    Raises:
        DocumentError: the file cannot be read, is not a plan, or contradicts itself; the message names the
            key, or the figure.
    """
    plan = read_plan(Path(path))
    try:
        for each in (plan, *plan.other_shapes):
            _check_figures(each)
    except (ScheduleError, ValueError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(
            f"{path} contradicts itself: {shown(error)}; it was changed by hand, or damaged: tune again"
        ) from error
    return plan


_BYTES = ("weight_bytes", "bound_bytes", "saved_bytes", "saved_for_weight_bytes", "boundary_bytes")
"""What a stage has that is counted in bytes."""


def _check_figures(plan: TunedPlan) -> None:
    """Refuse figures that do not follow from the measured stages."""
    if plan.optimizer not in OPTIMIZERS:
        raise ScheduleError(f"there is no optimizer {shown(plan.optimizer)!r}")
    if plan.state_sharding not in ("none", "optimizer"):
        raise ScheduleError(f"there is no sharding {shown(plan.state_sharding)!r} of a tuned model")
    if len(plan.hop_latency_us) != len(plan.stages) - 1:
        raise ScheduleError(
            f"hop_latency_us has {len(plan.hop_latency_us)} entries, and there are {len(plan.stages)} stages"
        )
    for stage in plan.stages:
        for name in _BYTES:
            if not 0 <= getattr(stage, name) <= MAX_BYTES:
                raise ScheduleError(f"{name} of {stage.name} is {getattr(stage, name)}")
    if plan.placement != plan.schedule.placement:
        raise ScheduleError("its placement is not that of its schedule")
    figures = figures_of_model(plan, optimizer=plan.optimizer, keeps_joint=True, sharding=plan.state_sharding)
    check_blocks(plan.placement, figures, plan.step_us)
    if plan.static_bytes != figures.static_bytes:
        raise ScheduleError(
            f"static_bytes are {list(plan.static_bytes)}, and its stages' weights give "
            f"{list(figures.static_bytes)}"
        )
    for row in plan.comparison:
        if row.schedule == SEARCHED and row.makespan != plan.schedule.makespan:
            raise ScheduleError(
                f"its comparison has {row.makespan} steps for the searched schedule, which takes "
                f"{plan.schedule.makespan}"
            )
