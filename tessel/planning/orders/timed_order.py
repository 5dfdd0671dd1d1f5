"""Time a layout in the order of a rule: when each stage ends, and what each device holds at most.

A walk over the tasks with the spans of one layout, O(tasks), some nanoseconds each. Checked in
tests/tessel/planning/orders/test_rule_orders.py against the schedules of `tessel.handwritten`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import (
    StepEstimate,
    TrainingStep,
    estimate_ends,
    estimate_step,
    step_of_figures,
    whole_steps,
)
from tessel.planning.layout import Layout
from tessel.planning.orders.block_figures import memory_of_blocks, spans_of_blocks
from tessel.planning.orders.class_order import time_classes
from tessel.planning.orders.rule_order import IntArray, RuleOrder, order_key, rule_order
from tessel.schedule import Schedule
from tessel.search.jit.compiled import compiled

OPERATIONS_A_TASK = 25
"""Charged for each task that is timed."""


OPERATIONS_A_LAYOUT = 400_000
"""Charged for pricing the stages of one layout and ending its step."""


OPERATIONS_A_NEW_TASK = 4_000
"""Charged for each task of an order that is made for the first time."""


OPERATIONS_A_SIMULATED_TASK = 20_000
"""Charged for each task of an order that is simulated anew for each layout: some 20 us."""


_PARTS = 1024
"""Parts of a micro-batch in which those in flight are counted."""


@dataclass(frozen=True, slots=True)
class TimedOrder:
    """A layout in the order of a rule.

    Attributes:
        rule: its name.
        estimate: of the step.
    """

    rule: str
    estimate: StepEstimate


def time_rule(rule: str, layout: Layout, figures: StageFigures, step_us: float) -> TimedOrder:
    """Return what a step takes in the order of a rule, spans rounded up to whole steps."""
    if layout.divided_stages:
        step = step_of_figures(layout, figures)
        return TimedOrder(rule, estimate_step(step, _built(rule, step)))
    key = order_key(rule, layout, figures)
    if figures.mixture is not None:
        return TimedOrder(rule, time_classes(layout.data_parallel, key, figures, step_us))
    order = rule_order(key)
    ends, peaks = time_order(order, figures, step_us)
    return TimedOrder(
        rule,
        estimate_ends(
            figures,
            stage_ends_us=(ends * step_us).tolist(),
            activation_bytes=peaks.tolist(),
            micro_batches=key.micro_batches,
        ),
    )


def time_order(order: RuleOrder, figures: StageFigures, step_us: float) -> tuple[IntArray, IntArray]:
    """Return the end of each stage's last block in steps, and the most bytes that each device holds."""
    ends, peaks, _ = _timed(order, figures, step_us)
    return ends, peaks


def in_flight_by_stage(rule: str, layout: Layout, figures: StageFigures) -> tuple[float, ...]:
    """Return micro-batches that each stage of the chain holds at once in the order of a rule.

    Of several stages on a device each gets the same part of what the device holds at most.
    """
    order = rule_order(order_key(rule, layout, figures))
    num_stages = len(figures.devices)
    ones = np.full(num_stages, _PARTS, dtype=np.int64)
    # A micro-batch between the halves of its backward holds a part of what it did before.
    ratio = np.divide(figures.halved_bytes, figures.kept_bytes, out=0.0 * ones, where=figures.kept_bytes > 0)
    halved = np.round(_PARTS * np.minimum(ratio, 1.0)).astype(np.int64)
    memory = np.concatenate([ones, -ones, halved - ones, -halved])
    work = np.stack((np.ones(4 * num_stages, dtype=np.int64), memory))
    peaks = np.zeros(len(figures.static_bytes), dtype=np.int64)
    end = np.zeros(order.num_tasks, dtype=np.int64)
    _time(order, work, np.zeros(num_stages, dtype=np.int64), 0 * ones, peaks, end)
    chunks = _PARTS * np.bincount(np.array(figures.devices))
    return tuple((peaks / chunks)[np.array(figures.devices[: len(layout.cuts)])].tolist())


def schedule_in_order(rule: str, step: TrainingStep) -> Schedule:
    """Return the schedule of a step in the order of a rule; it may exceed the limits."""
    if step.layout.divided_stages:
        return _built(rule, step)
    key = order_key(rule, step.layout, step.figures)
    order = rule_order(key)
    _, _, end = _timed(order, step.figures, step.step_us)
    start = end - spans_of_blocks(step.figures, step.step_us)[order.block]
    num_stages = len(step.figures.devices)
    index = [
        step.placement.index_by_name.get(name.format(stage), -1)
        for name in ("f{}", "b{}", "b{}_input", "b{}_weight")
        for stage in range(num_stages)
    ]
    tasks = zip(order.block.tolist(), order.micro_batch.tolist(), start.tolist(), strict=True)
    return Schedule.of(
        step.placement,
        {(index[block], micro_batch): when for block, micro_batch, when in tasks},
        micro_batches=key.micro_batches,
        memory=step.limits,
        found_by=rule,
    )


_SIMULATED = {rule.name: rule for rule in (ONE_F_ONE_B, GPIPE)}
"""Rules that apply to stages on several devices, where what runs next depends on the spans."""


def _built(rule: str, step: TrainingStep) -> Schedule:
    """Return the schedule of a rule on a placement with divided stages; some milliseconds."""
    schedule = _SIMULATED[rule].build(step.placement, micro_batches=step.micro_batches)
    return Schedule.of(
        step.placement,
        schedule.start_by_block(),
        micro_batches=step.micro_batches,
        memory=step.limits,
        found_by=rule,
    )


def _timed(order: RuleOrder, figures: StageFigures, step_us: float) -> tuple[IntArray, IntArray, IntArray]:
    ends = np.zeros(len(figures.devices), dtype=np.int64)
    peaks = np.zeros(len(figures.static_bytes), dtype=np.int64)
    end = np.zeros(order.num_tasks, dtype=np.int64)
    lags = whole_steps(figures.hop_us, step_us)
    work = np.stack((spans_of_blocks(figures, step_us), memory_of_blocks(figures)))
    _time(order, work, lags, ends, peaks, end)
    return ends, peaks, end


@compiled
def _time(
    order: RuleOrder, work: IntArray, lag: IntArray, ends: IntArray, peaks: IntArray, end: IntArray
) -> None:
    """Write the last end of each stage, the peak of each device, and the end of each task.

    Args:
        order: the tasks.
        work: spans and memory by block, shape (2, 4 · num_stages).
        lag: steps by hop.
        ends: by stage; zeros.
        peaks: by device; zeros.
        end: by task; overwritten.
    """
    num_stages = len(ends)
    free = np.zeros(len(peaks), dtype=np.int64)
    held = np.zeros(len(peaks), dtype=np.int64)
    for place in range(len(end)):
        task, here = order.block[place], order.device[place]
        start = free[here]
        if order.source[place] >= 0:
            start = max(start, end[order.source[place]] + lag[order.hop[place]])
        end[place] = start + work[0, task]
        free[here] = end[place]
        held[here] += work[1, task]
        peaks[here] = max(peaks[here], held[here])
        stage = task % num_stages
        ends[stage] = max(ends[stage], end[place])
