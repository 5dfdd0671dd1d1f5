"""Interval of a planned step where the times of its layers are predictions.

The plan stays as it is, layout and order of blocks; all layers take the low ends of their intervals, then all
the high ends, for a prediction errs alike on one device. Hops and collectives, which the user gives, stay.
Checked in tests/tessel/planning/test_step_interval.py.
"""

from __future__ import annotations

from tessel.orders import device_orders, earliest_starts
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.training_step import estimate_step, step_of_figures
from tessel.planning.job import Job
from tessel.planning.plan_result import PlannedStep
from tessel.profiles.profile import Profile
from tessel.schedule import Schedule


def step_interval_us(
    planned: PlannedStep,
    profile: Profile,
    job: Job,
) -> tuple[float, float] | None:
    """Return the least and most microseconds of the step; None where all times were measured.

    Args:
        planned: has a schedule.
        profile: the one that it was planned from.
    """
    if not profile.is_predicted or planned.schedule is None:
        return None
    low, high = (_step_us(planned, planned.schedule, profile.at_bound(index), job) for index in (0, 1))
    # Times are rounded up to whole steps of each schedule, which may turn by a step what hardly differs.
    return min(low, planned.estimate.step_us), max(high, planned.estimate.step_us)


def _step_us(
    planned: PlannedStep,
    schedule: Schedule,
    profile: Profile,
    job: Job,
) -> float:
    figures = stage_figures(profile, planned.layout, job)
    step = step_of_figures(planned.layout, figures)
    index = step.placement.index_by_name
    starts = {(index[start.block], start.micro_batch): start.start for start in schedule.starts}
    retimed = earliest_starts(step.placement, device_orders(step.placement, starts))
    same_order = Schedule.of(step.placement, retimed, micro_batches=schedule.micro_batches)
    return estimate_step(step, same_order).step_us
