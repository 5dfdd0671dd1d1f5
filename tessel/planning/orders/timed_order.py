"""Time a layout in the order of a rule: when each stage ends, and what each device holds at most.

A walk over the tasks with the spans of one layout, O(tasks), some nanoseconds each. Checked in
tests/tessel/planning/orders/test_rule_orders.py against the schedules of `tessel.handwritten`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.orders import Task
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
from tessel.planning.orders.rule_order import (
    APART,
    PAIRINGS,
    IntArray,
    OrderKey,
    RuleOrder,
    order_key,
    rule_order,
)
from tessel.schedule import Schedule
from tessel.schedule.overlap import MILLION, Overlap, pair_span
from tessel.search.jit.compiled import compiled

OPERATIONS_A_TASK = 25
"""Charged for each task that is timed."""


OPERATIONS_A_LAYOUT = 400_000
"""Charged for pricing the stages of one layout and ending its step."""


OPERATIONS_A_NEW_TASK = 400
"""Charged for each task of an order that is made for the first time."""


OPERATIONS_A_SIMULATED_TASK = 20_000
"""Charged for each task of an order that is simulated anew for each layout: some 20 us."""


_PARTS = 1024
"""Parts of a micro-batch in which those in flight are counted."""


@dataclass(frozen=True, slots=True)
class TimedOrder:
    """A layout in the order of a rule."""

    rule: str
    estimate: StepEstimate


def time_rule(rule: str, layout: Layout, figures: StageFigures, step_us: float) -> TimedOrder:
    """Return what a step takes in the order of a rule, spans rounded up to whole steps.

    Where blocks run together, neighbours are paired in whichever way is the shortest that fits.
    """
    if layout.divided_stages:
        step = step_of_figures(layout, figures)
        return TimedOrder(rule, estimate_step(step, _built(rule, step)))
    if figures.mixture is not None:
        key = order_key(rule, layout, figures)
        return TimedOrder(rule, time_classes(layout.data_parallel, key, figures, step_us))
    estimate, _ = _best_pairing(rule, layout, figures, step_us)
    return TimedOrder(rule, estimate)


def _best_pairing(
    rule: str, layout: Layout, figures: StageFigures, step_us: float
) -> tuple[StepEstimate, OrderKey]:
    pairings = (APART,) if figures.overlap_factor is None else PAIRINGS
    found = []
    for key in (order_key(rule, layout, figures, pairing) for pairing in pairings):
        ends, peaks, _, saved = _timed(rule_order(key), figures, step_us)
        estimate = estimate_ends(
            figures,
            stage_ends_us=(ends * step_us).tolist(),
            activation_bytes=peaks.tolist(),
            micro_batches=key.micro_batches,
            saved_us=saved * step_us,
        )
        found.append((estimate, key))
    return min(found, key=lambda each: (not each[0].fits, each[0].step_us))


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
    _time(order, work, np.zeros(num_stages, dtype=np.int64), MILLION, 0 * ones, peaks, end)
    chunks = _PARTS * np.bincount(np.array(figures.devices))
    return tuple((peaks / chunks)[np.array(figures.devices[: len(layout.cuts)])].tolist())


def schedule_in_order(rule: str, step: TrainingStep) -> Schedule:
    """Return the schedule of a step in the order of a rule; it may exceed the limits."""
    if step.layout.divided_stages:
        return _built(rule, step)
    _, key = _best_pairing(rule, step.layout, step.figures, step.step_us)
    order = rule_order(key)
    _, _, end, _ = _timed(order, step.figures, step.step_us)
    span = spans_of_blocks(step.figures, step.step_us)[order.block]
    first = np.flatnonzero(order.joined)
    factor = step.figures.overlap_factor or 1.0
    span[first] = span[first + 1] = [
        pair_span(*pair, factor=factor)
        for pair in zip(span[first].tolist(), span[first + 1].tolist(), strict=True)
    ]
    start = end - span
    num_stages = len(step.figures.devices)
    index = [
        step.placement.index_by_name.get(name.format(stage), -1)
        for name in ("f{}", "b{}", "b{}_input", "b{}_weight")
        for stage in range(num_stages)
    ]
    tasks = [
        Task(index[block], micro_batch)
        for block, micro_batch in zip(order.block.tolist(), order.micro_batch.tolist(), strict=True)
    ]
    is_forward = order.block < num_stages
    pairs = [
        (tasks[place], tasks[place + 1]) if is_forward[place] else (tasks[place + 1], tasks[place])
        for place in sorted(first.tolist(), key=start.tolist().__getitem__)
    ]
    return Schedule.of(
        step.placement,
        dict(zip(tasks, start.tolist(), strict=True)),
        micro_batches=key.micro_batches,
        memory=step.limits,
        found_by=rule,
        overlap=None
        if step.figures.overlap_factor is None
        else Overlap.of(step.placement, step.figures.overlap_factor, pairs),
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


def _timed(
    order: RuleOrder, figures: StageFigures, step_us: float
) -> tuple[IntArray, IntArray, IntArray, int]:
    ends = np.zeros(len(figures.devices), dtype=np.int64)
    peaks = np.zeros(len(figures.static_bytes), dtype=np.int64)
    end = np.zeros(order.num_tasks, dtype=np.int64)
    lags = whole_steps(figures.hop_us, step_us)
    work = np.stack((spans_of_blocks(figures, step_us), memory_of_blocks(figures)))
    parts = round((figures.overlap_factor or 1.0) * MILLION)
    saved = _time(order, work, lags, parts, ends, peaks, end)
    return ends, peaks, end, int(saved)


@compiled
def _time(
    order: RuleOrder,
    work: IntArray,
    lag: IntArray,
    parts: int,
    ends: IntArray,
    peaks: IntArray,
    end: IntArray,
) -> int:
    """Write the last end of each stage, the peak of each device, and the end of each task.

    Args:
        work: spans and memory by block, shape (2, 4 · num_stages).
        lag: steps by hop.
        parts: millionths of its sum that a pair takes.
        ends: by stage; zeros.
        peaks: by device; zeros.
        end: by task; overwritten.

    Returns:
        Steps that devices are busy less where blocks run together.
    """
    num_stages = len(ends)
    free = np.zeros(len(peaks), dtype=np.int64)
    held = np.zeros(len(peaks), dtype=np.int64)
    saved = 0
    place = 0
    while place < len(end):
        here = order.device[place]
        size = 2 if order.joined[place] else 1
        start, span, longest = free[here], 0, 0
        added = 0
        for each in range(place, place + size):
            if order.source[each] >= 0:
                start = max(start, end[order.source[each]] + lag[order.hop[each]])
            task = order.block[each]
            span += work[0, task]
            longest = max(longest, work[0, task])
            added += max(0, work[1, task])
        if size == 2:
            together = max(longest, (parts * span + 999_999) // 1_000_000)
            saved += span - together
            span = together
        peaks[here] = max(peaks[here], held[here] + added)
        free[here] = start + span
        for each in range(place, place + size):
            task = order.block[each]
            end[each] = free[here]
            held[here] += work[1, task]
            stage = task % num_stages
            ends[stage] = max(ends[stage], end[each])
        place += size
    return saved
