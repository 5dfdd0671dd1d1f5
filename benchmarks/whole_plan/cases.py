"""Planned cases: a model's layers, devices, a memory limit and micro-batches, and the ways beside the plan.

Each hand-written way stands twice. *Alone* it is what its name says: a pipeline over all devices, data
parallelism or tensor parallelism over all devices. *With any degrees* it also takes the replicas and the
tensor parallelism that suit it best, which is stronger. All have their own best cut and recomputation, under
the same memory and from the same figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from tessel.errors import ScheduleError
from tessel.placement_comparison import PlannedRow
from tessel.planning.cluster import Link
from tessel.search import SearchBudget
from tessel.tuned_model.layout_choice import ChosenLayout, LayoutRequest, choose_layout
from tuner.plan import LayersPlan

LINK = Link(bytes_per_s=10e9, latency_us=5.0)

SHARES = (1.02, 0.6)
"""Memory limits, as parts of what the fullest device of 1F1B on the plain chain holds without a limit."""

FEW_WORK = 0.3
"""Units of work that find what 1F1B holds, and replicas alone, which leave nothing to cut."""

PIPELINES_SHARE = 0.5
"""Of the plan's work, that pipelines alone have: more than the rows that a plan compares itself with."""

ROUNDING = 1e-9


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one case.

    Attributes:
        model: its name.
        devices: all are used.
        share: the memory limit as a part of what 1F1B on the plain chain holds.
        micro_batches: of the step.
        memory_bytes: the limit.
        plan: the layout taken, in words; empty where nothing fits.
        step_ms: of the plan.
        bound_ms: no layout that was allowed has a shorter step.
        alone: steps of the hand-written ways alone that fit, over the plan's.
        ratios: the same of the ways with any degrees.
        does_not_fit: why a way alone has no step, by name.
        seconds: that planning took, the ways with any degrees included.
    """

    model: str
    devices: int
    share: float
    micro_batches: int
    memory_bytes: int
    plan: str = ""
    step_ms: float = 0.0
    bound_ms: float = 0.0
    alone: dict[str, float] = {}
    ratios: dict[str, float] = {}
    does_not_fit: dict[str, str] = {}
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """How far the plan may be from the best that was allowed, as a share of the bound."""
        return self.step_ms / self.bound_ms - 1 if self.bound_ms else 0.0

    @property
    def is_slower(self) -> bool:
        """Whether some hand-written way is faster than the plan."""
        return min((*self.alone.values(), *self.ratios.values()), default=1.0) < 1 - ROUNDING


def plan_cases(
    layers: LayersPlan, devices: Sequence[int], *, work: float, link: Link = LINK, known: Sequence[Row] = ()
) -> Iterator[Row]:
    """Yield a row for each number of devices, memory limit and number of micro-batches.

    Args:
        layers: as the tuner measured them.
        devices: numbers of devices.
        work: units of work of each plan.
        link: between any two devices.
        known: rows of an earlier run, which are not planned again.
    """
    done = {(row.model, row.devices, row.share, row.micro_batches) for row in known}
    for count in devices:
        for micro_batches in (count, 2 * count, 4 * count):
            shares = [s for s in SHARES if (layers.model, count, s, micro_batches) not in done]
            if not shares:
                continue
            request = LayoutRequest(devices=count, micro_batches=micro_batches, link=link)
            needed = bytes_of_1f1b(layers, request)
            for share in shares:
                yield _row(layers, replace(request, memory_limit_bytes=int(share * needed)), share, work)


def bytes_of_1f1b(layers: LayersPlan, request: LayoutRequest) -> int:
    """Return what the fullest device holds of the fastest cut of 1F1B on the plain chain."""
    found = _ways(layers, replace(request, replicates=False), FEW_WORK)
    held = found["1f1b"].peak_memory_bytes
    assert held is not None  # without a limit it fits
    return held


def _row(layers: LayersPlan, request: LayoutRequest, share: float, work: float) -> Row:
    assert request.memory_limit_bytes is not None  # every case has one
    case = Row(
        model=layers.model,
        devices=request.devices,
        share=share,
        micro_batches=request.micro_batches,
        memory_bytes=request.memory_limit_bytes,
    )
    began = time.monotonic()
    try:
        found = _choose(layers, request, work)
    except ScheduleError:
        return case
    seconds = time.monotonic() - began
    of_any_degrees = {row.name: row for row in found.rows}
    plan = of_any_degrees.pop("plan")
    assert plan.step_ms is not None  # the plan has a step
    pipelines = _ways(layers, replace(request, replicates=False), PIPELINES_SHARE * work)
    replicas = _ways(layers, request, FEW_WORK)
    alone = {name: row for name, row in pipelines.items() if name not in ("data-parallel", "tensor-parallel")}
    alone |= {name: row for name, row in replicas.items() if name == "data-parallel"}
    alone |= {name: row for name, row in of_any_degrees.items() if name == "tensor-parallel"}
    return msgspec.structs.replace(
        case,
        plan=plan.layout,
        step_ms=plan.step_ms,
        bound_ms=found.lower_bound_us / 1e3,
        alone=_ratios(alone, plan.step_ms),
        ratios=_ratios(of_any_degrees, plan.step_ms),
        does_not_fit={name: row.reason for name, row in alone.items() if row.step_ms is None},
        seconds=seconds,
    )


def _choose(layers: LayersPlan, request: LayoutRequest, work: float) -> ChosenLayout:
    return choose_layout(layers, request, budget=SearchBudget(work_limit=work))


def _ways(layers: LayersPlan, request: LayoutRequest, work: float) -> Mapping[str, PlannedRow]:
    """Return the hand-written ways without tensor parallelism, by name; none where nothing fits."""
    layers = msgspec.structs.replace(layers, tensor_parallel={})
    try:
        found = _choose(layers, request, work)
    except ScheduleError:
        return {}
    return {row.name: row for row in found.rows if row.name != "plan"}


def _ratios(rows: Mapping[str, PlannedRow], step_ms: float) -> dict[str, float]:
    return {name: row.step_ms / step_ms for name, row in rows.items() if row.step_ms is not None}
