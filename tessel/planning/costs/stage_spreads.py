"""How much the work of each stage varies, where a table says so of its layers.

The layers of a stage vary together, so that a table whose rows all say 0.1 is planned as `--spread
lognormal:0.1`: a stage's sigma is the mean of its layers', each by its time. What does not vary, such as hops
that keep a device busy, counts with 0. Checked in tests/tessel/planning/costs/test_stage_spreads.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.profiles.profile import Profile


def stage_spreads(profiles: Sequence[Profile], layout: Layout, job: Job) -> FloatArray:
    """Return sigma of the stages' work; float64, shape (classes, stages).

    Args:
        profiles: of each class of micro-batches.
        layout: its cuts count layers.
    """
    alike = replace(job, mixture=None)

    def work_us(profile: Profile) -> FloatArray:
        figures = stage_figures(profile, layout, alike)
        return figures.forward_us + figures.least_backward_us()

    rows = [(work_us(each), work_us(each.widened)) for each in profiles]
    return np.array([wide / np.maximum(own, 1e-12) - (own > 0) for own, wide in rows])
