"""Time a layout in the order of a rule where micro-batches differ: who runs which, and in which sequence.

A rule's order holds for positions. Micro-batches are shared out to replicas as given and as published
balancers do (`tessel.batches.mixture`), and take positions as given, sorted either way, or with the shortest
or longest at both ends; each replica takes the best that fits. So no plan is slower than a rule with any of
these. Checked in tests/tessel/planning/orders/test_class_order.py against schedules of each of them.

Left out: replicas meet only where they sum gradients at the end of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tessel.batches.mixture import groupings
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import StepEstimate, TrainingStep, estimate_ends, whole_steps
from tessel.planning.orders.block_figures import memory_of_blocks, spans_of_blocks
from tessel.planning.orders.rule_order import IntArray, OrderKey, RuleOrder, order_key, rule_order
from tessel.schedule import Schedule
from tessel.search.batches.assignment import Assignment
from tessel.search.jit.compiled import compiled

UNLIMITED = 2**62
"""A limit of memory that cannot be reached."""

COMPARED_TO = 100
"""Works of classes count in such parts of the largest: layouts in which they compare alike share rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Sequences that replicas may run.

    Attributes:
        classes: of each position, int64, shape (rows, positions); each row once.
        groups: by way to share out, by replica, each row that it may run and its micro-batches by position.
    """

    classes: IntArray
    groups: tuple[tuple[tuple[tuple[int, tuple[int, ...]], ...], ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """Rows under one order: makespan in steps, whether it fits, last end by stage, peak by device."""

    makespan: IntArray
    fits: list[bool]
    ends: IntArray
    peaks: IntArray


def rows_timed(figures: StageFigures, data_parallel: int) -> int:
    """Return how many sequences are timed at most for one order; 1 where micro-batches are alike."""
    if figures.mixture is None:
        return 1
    return 5 * (1 if data_parallel == 1 else 4 * data_parallel)


def time_classes(data_parallel: int, key: OrderKey, figures: StageFigures, step_us: float) -> StepEstimate:
    """Return what a step takes in the order of a rule, micro-batches shared out the best way."""
    rows, timed = _timed_rows(rule_order(key), key, data_parallel, figures, step_us)
    chosen = [row for row, _ in _chosen(rows, timed)]
    return estimate_ends(
        figures,
        stage_ends_us=(timed.ends[chosen].max(axis=0) * step_us).tolist(),
        activation_bytes=timed.peaks[chosen].max(axis=0).tolist(),
        micro_batches=key.micro_batches,
    )


def assignment_in_order(rule: str, step: TrainingStep) -> Assignment:
    """Return the same as micro-batches and schedules of replicas; they may exceed the limits."""
    assert step.batch is not None, "micro-batches differ"
    key = order_key(rule, step.layout, step.figures)
    order = rule_order(key)
    rows, timed = _timed_rows(order, key, step.layout.data_parallel, step.figures, step.step_us)
    num_stages = len(step.figures.devices)
    index = np.array(
        [
            step.placement.index_by_name.get(name.format(stage), -1)
            for name in ("f{}", "b{}", "b{}_input", "b{}_weight")
            for stage in range(num_stages)
        ]
    )
    schedules, replicas = [], []
    for row, own in _chosen(rows, timed):
        numbers = sorted(own)
        starts = np.zeros(order.num_tasks, dtype=np.int64)
        _time_row(
            order, *_figures(step.figures, step.step_us), rows.classes[row], *_room(step.figures), starts
        )
        taken = np.array([numbers.index(each) for each in own], dtype=np.int64)
        replicas.append(tuple(numbers))
        schedules.append(
            Schedule.of_tasks(
                step.placement,
                index[order.block],
                taken[order.micro_batch],
                starts,
                micro_batches=key.micro_batches,
                memory=step.limits,
                batch=step.batch.taken(numbers),
                found_by=rule,
            )
        )
    return Assignment(
        replicas=tuple(replicas), schedules=tuple(schedules), lower_bound=0, given=None, found_by=rule
    )


def _timed_rows(
    order: RuleOrder, key: OrderKey, data_parallel: int, figures: StageFigures, step_us: float
) -> tuple[_Rows, _Timed]:
    assert figures.mixture is not None, "micro-batches differ"
    work = np.array([each.device_work_us().sum() for each in figures.by_class])
    shares = tuple(np.round(COMPARED_TO * work / max(work.max(), 1e-9)).astype(int).tolist())
    rows = _rows(figures.mixture.sequence, shares, data_parallel)
    number, devices = len(rows.classes), len(figures.static_bytes)
    ends = np.zeros((number, len(figures.devices)), dtype=np.int64)
    peaks = np.zeros((number, devices), dtype=np.int64)
    _time_rows(order, *_figures(figures, step_us), rows.classes, ends, peaks)
    limits = np.array(figures.headroom or (UNLIMITED,) * devices)
    fits = np.all(peaks <= limits, axis=1)
    return rows, _Timed(ends.max(axis=1), fits.tolist(), ends, peaks)


def _chosen(rows: _Rows, timed: _Timed) -> list[tuple[int, tuple[int, ...]]]:
    """Return the row of each replica and its micro-batches by position: what fits, then what ends first."""
    makespan = timed.makespan.tolist()
    ways = []
    for replicas in rows.groups:
        own = [min(each, key=lambda pair: (not timed.fits[pair[0]], makespan[pair[0]])) for each in replicas]
        worst = max((not timed.fits[row], makespan[row]) for row, _ in own)
        ways.append((worst, own))
    return min(ways, key=lambda way: way[0])[1]


# A plan prices thousands of layouts, in which classes compare alike.
@lru_cache(maxsize=64)
def _rows(sequence: tuple[int, ...], work: tuple[int, ...], replicas: int) -> _Rows:
    known: dict[tuple[int, ...], int] = {}
    groups = tuple(
        tuple(
            tuple(
                (known.setdefault(tuple(sequence[each] for each in own), len(known)), own)
                for own in _sequences(group, sequence, work)
            )
            for group in grouping
        )
        for grouping in groupings(sequence, work, replicas)
    )
    return _Rows(np.array(list(known), dtype=np.int64), groups)


def _sequences(
    group: Sequence[int], sequence: Sequence[int], work: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the orders in which the micro-batches of a replica take their turn."""
    rising = sorted(group, key=lambda each: work[sequence[each]])
    falling = sorted(group, key=lambda each: -work[sequence[each]])
    yield tuple(group)
    yield tuple(falling)
    yield tuple(rising)
    yield (*rising[::2], *rising[1::2][::-1])
    yield (*falling[::2], *falling[1::2][::-1])


def _figures(figures: StageFigures, step_us: float) -> tuple[IntArray, IntArray, IntArray]:
    """Return spans and memory by class and block, and steps by class and hop."""
    return (
        np.stack([spans_of_blocks(each, step_us) for each in figures.by_class]),
        np.stack([memory_of_blocks(each) for each in figures.by_class]),
        np.stack([whole_steps(each.hop_us, step_us) for each in figures.by_class]),
    )


def _room(figures: StageFigures) -> tuple[IntArray, IntArray]:
    """Return room for ends by stage and peaks by device."""
    return np.zeros(len(figures.devices), dtype=np.int64), np.zeros(len(figures.static_bytes), dtype=np.int64)


@compiled
def _time_rows(
    order: RuleOrder,
    spans: IntArray,
    memory: IntArray,
    lags: IntArray,
    rows: IntArray,
    ends: IntArray,
    peaks: IntArray,
) -> None:
    """Write the last end of each stage and the peak of each device by row; both hold zeros."""
    start = np.zeros(len(order.block), dtype=np.int64)
    for row in range(len(rows)):
        _time_row(order, spans, memory, lags, rows[row], ends[row], peaks[row], start)


@compiled
def _time_row(
    order: RuleOrder,
    spans: IntArray,
    memory: IntArray,
    lags: IntArray,
    row: IntArray,
    ends: IntArray,
    peaks: IntArray,
    start: IntArray,
) -> None:
    """Write the last end of each stage, the peak of each device, and the start of each task.

    Args:
        spans: by class and block.
        memory: by class and block.
        lags: by class and hop.
        row: the class at each position.
        ends: by stage; zeros.
        peaks: by device; zeros.
        start: by task; overwritten.
    """
    num_stages = len(ends)
    free = np.zeros(len(peaks), dtype=np.int64)
    held = np.zeros(len(peaks), dtype=np.int64)
    for place in range(len(start)):
        task, here, of = order.block[place], order.device[place], row[order.micro_batch[place]]
        begin = free[here]
        source = order.source[place]
        if source >= 0:
            arrival = start[source] + spans[of, order.block[source]] + lags[of, order.hop[place]]
            begin = max(begin, arrival)
        start[place] = begin
        free[here] = begin + spans[of, task]
        held[here] += memory[of, task]
        peaks[here] = max(peaks[here], held[here])
        ends[task % num_stages] = max(ends[task % num_stages], free[here])
