"""Documents of plans to run, for small models of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from planned_models import plan_on_tvm
from random_schedules import draw_schedule

from tessel.comparison import compare_schedules
from tessel.plan import Plan, save_plan
from tessel.shapes import make_shape


def save_planned(model: str, cut: str, path: Path) -> Path:
    """Save a plan for two ranks, with micro-batches in any order, and return where."""
    tuned = plan_on_tvm(model, [cut])
    placement = make_shape("vshape", 2, choose_backward=True)
    schedule = draw_schedule(placement, 4, np.random.default_rng(0))
    save_plan(
        Plan(
            **{name: getattr(tuned, name) for name in tuned.__struct_fields__},
            step_us=1000.0,
            memory_limit_bytes=None,
            static_bytes=(0, 0),
            optimizer="sgd",
            placement=placement,
            schedule=schedule,
            comparison=compare_schedules(schedule).rows,
        ),
        path,
    )
    return path
