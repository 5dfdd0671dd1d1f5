"""The document of `tessel plan --json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from scripts.documents.plans import Planned, PrintedBaseline, PrintedChange, PrintedSpread, PrintedStep
from tessel.batches.spread import QUANTILES
from tessel.jobs.plan import Plan
from tessel.planning.job import Job
from tessel.planning.plan_result import PlannedStep, StepSpread
from tessel.schedule import Schedule


def plan_document(plan: Plan, saved_to: Path | None) -> Planned:
    """Return what `--json` prints of a plan that was just made."""
    assert plan.found is not None, "the plan was just made"
    assert plan.planned is not None, "the plan is of a table"
    result, profile = plan.found, plan.planned.profile
    best_us = result.best.estimate.step_us
    interval_us = plan.step_interval_us
    return Planned(
        model=profile.name,
        layers=tuple(layer.name for layer in profile.layers),
        devices=plan.planned.cluster.devices,
        global_batch=result.best.layout.global_batch,
        best=_step_document(result.best, result.job, result.lower_bound_us),
        gap=result.gap,
        optimal=result.optimal,
        interval_ms=None if interval_us is None else (interval_us[0] / 1e3, interval_us[1] / 1e3),
        baselines=tuple(
            PrintedBaseline(
                name=baseline.name,
                step_ms=None if baseline.planned is None else baseline.planned.estimate.step_us / 1e3,
                ratio=None if baseline.planned is None else baseline.planned.estimate.step_us / best_us,
                fits=baseline.fits,
                reason=baseline.reason,
                plan=None
                if baseline.planned is None
                else _step_document(baseline.planned, result.job, baseline.planned.lower_bound_us),
            )
            for baseline in result.baselines
        ),
        alternatives=tuple(
            _step_document(each, result.job, each.lower_bound_us) for each in result.alternatives
        ),
        explanation=result.explanation,
        changes=tuple(
            PrintedChange(
                change=change.change,
                step_ms=change.step_us / 1e3,
                saves_ms=change.saves_us / 1e3,
                plan=change.name,
            )
            for change in result.changes
        ),
        notes=profile.notes,
        plan=None if saved_to is None else str(saved_to),
        stopped_by=result.stopped_by,
        search_seconds=result.search_seconds,
        spreads=tuple(map(_spread_document, result.spreads)) or msgspec.UNSET,
        stage_spreads=plan.planned.stage_spreads or msgspec.UNSET,
    )


def _spread_document(spread: StepSpread) -> PrintedSpread:
    return PrintedSpread(
        plan=spread.name,
        step_ms=spread.step_us / 1e3,
        mean_ms=spread.mean_us / 1e3,
        quantiles_ms={f"p{each}": us / 1e3 for each, us in zip(QUANTILES, spread.quantiles_us, strict=True)},
        greedy_ratio=None
        if spread.greedy_us is None or not spread.static_us
        else spread.greedy_us / spread.static_us,
        chosen=spread.is_chosen,
    )


def _step_document(planned: PlannedStep, job: Job, lower_bound_us: float) -> PrintedStep:
    layout = planned.layout
    return PrintedStep(
        data_parallel=layout.data_parallel,
        pipeline=layout.pipeline,
        tensor_parallel=layout.tensor_parallel,
        stage_tensor_parallel=layout.stage_tensor_parallel,
        context_parallel=layout.context_parallel,
        expert_parallel=layout.expert_parallel,
        chunks=layout.chunks,
        micro_batch=layout.micro_batch,
        micro_batches=layout.micro_batches,
        placement=layout.placement,
        stage_devices=tuple(layout.cluster_devices(stage) for stage in range(len(layout.cuts))),
        cuts=layout.cuts,
        recompute=layout.recompute or (False,) * len(layout.cuts),
        split_backward=layout.split_backward,
        sharding=job.sharding,
        offload=job.offload,
        order=planned.order,
        step_ms=planned.estimate.step_us / 1e3,
        lower_bound_ms=lower_bound_us / 1e3,
        memory_bytes=_of_every_device(planned, planned.estimate.memory_bytes),
        trained_bytes=_of_every_device(planned, planned.step.figures.trained_bytes),
        not_trained_bytes=_of_every_device(planned, planned.step.figures.frozen_bytes),
        fits=planned.estimate.fits,
        overlap_factor=msgspec.UNSET if job.overlap_factor is None else job.overlap_factor,
        tower=layout.tower,
        replicas=msgspec.UNSET
        if planned.shared is None
        else tuple(map(_classes_begun, planned.shared.schedules)),
    )


def _classes_begun(schedule: Schedule) -> tuple[str, ...]:
    """Return the classes of a replica's micro-batches in the order in which they begin."""
    classes = schedule.classes
    assert classes is not None, "micro-batches differ"
    begun = dict.fromkeys(start.micro_batch for start in schedule.starts)
    return tuple(classes.names[each] for each in begun)


def _of_every_device(planned: PlannedStep, by_position: Sequence[int]) -> tuple[int, ...]:
    """Return the bytes of every device of the cluster, which those of one pipeline stand for."""
    layout = planned.layout
    held_by_device = {
        device: held for position, held in enumerate(by_position) for device in layout.devices_at(position)
    }
    return tuple(held_by_device[device] for device in sorted(held_by_device))
