"""Report of `tessel plan`: a table for people, a document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.reports.planned import STAGE_COLUMNS, format_gap, stage_rows
from scripts.terminal import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.commands.plan.options import PlanCommandOptions
    from scripts.documents.plans import Planned, PrintedStep
    from tessel.planning.plan_result import PlannedStep, PlanResult
    from tessel.profiles.profile import Profile

SHOWN_ALTERNATIVES = 3
"""Next best plans in the table; `--json` has all."""


def print_plan(result: PlanResult, profile: Profile, options: PlanCommandOptions) -> None:
    """Print the best plan, its stages, what it is compared with, why, and what would change it."""
    best = result.best
    estimate = best.estimate
    on = f" on {profile.device}" if profile.device else ""
    console.print_line(
        f"{profile.name}{on}: {len(profile.layers)} layers, {options.devices} devices, "
        f"{best.layout.global_batch} samples per step\n"
    )
    proof = "proven optimal" if result.optimal else f"gap {format_gap(result.gap)}"
    bound = f"at least {_ms(result.lower_bound_us)} ms, {proof}"
    layout = best.layout
    title = "best plan   " if estimate.fits else "nearest plan"
    console.print_line(
        f"{title}  data-parallel {layout.data_parallel} × pipeline {layout.pipeline} × tensor-parallel "
        f"{layout.tensor_parallel}, {layout.placement}"
        + (f" with {layout.chunks} stages per device" if layout.chunks > 1 else "")
    )
    order = "in searched order" if best.order == "searched" else f"in the order of {best.order}"
    console.print_line(f"micro-batches {layout.micro_batches} of {layout.micro_batch} samples, {order}")
    console.print_line(f"step          {_ms(estimate.step_us)} ms ({bound})")
    interval = _interval_us(best, profile, options)
    if interval is not None:
        console.print_line(
            f"predicted     {_ms(interval[0])} to {_ms(interval[1])} ms, as the layers' 90 % intervals allow"
        )
    console.print_line(
        f"of which      {_ms(estimate.pipeline_us)} ms pipeline, {_ms(estimate.synchronisation_us)} ms "
        f"collectives (overlapped ones included), {_ms(estimate.update_us)} ms optimizer"
    )
    limit = "" if options.memory is None else f" (limit {options.memory})"
    state = "" if estimate.fits else ", DOES NOT FIT"
    console.print_line(
        f"peak memory   {console.format_bytes(max(estimate.memory_bytes))} on the fullest device"
        f"{limit}{state}"
    )
    console.print_line(f"busy          {estimate.busy_ratio:.1%} of all devices' time\n")
    console.print_table("", STAGE_COLUMNS, stage_rows(profile, best.layout))
    _print_comparison(result)
    for sentence in result.explanation:
        console.print_line(f"- {sentence}")
    for change in result.changes:
        console.print_line(
            f"- With {change.change}: {_ms(change.step_us)} ms, {_saving(change.saves_us)} ({change.name})."
        )
    counts = result.counts
    console.print_line(
        f"\nsearched      {counts.families} families of layouts ({counts.families_not_fitting} do not fit, "
        f"{counts.families_cut_off} pruned by bounds), {counts.layouts} layouts, {counts.orders} orders, in "
        f"{result.search_seconds:.1f} s, stopped by {result.stopped_by}"
    )


def _saving(saves_us: float) -> str:
    """Say how much shorter a step gets."""
    return f"{_ms(saves_us)} ms less" if saves_us > 0 else "no shorter"


def _interval_us(
    planned: PlannedStep, profile: Profile, options: PlanCommandOptions
) -> tuple[float, float] | None:
    """Return the interval of a step whose layers are predicted; None where they were measured."""
    from tessel.planning.step_interval import step_interval_us

    chosen = options.plan_options()
    return step_interval_us(planned, profile, options.cluster(), chosen.optimizer, chosen.runtime)


def _print_comparison(result: PlanResult) -> None:
    best_us = result.best.estimate.step_us
    fits = result.best.estimate.fits
    rows = [_row("best plan" if fits else "nearest plan", result.best, best_us, fits=fits)]
    without = []
    for baseline in result.baselines:
        if baseline.planned is None:
            without.append(f"{baseline.name}: {baseline.reason}")
        else:
            rows.append(_row(baseline.name, baseline.planned, best_us, fits=baseline.fits))
    for planned in result.alternatives[:SHOWN_ALTERNATIVES]:
        rows.append(_row("next best", planned, best_us, fits=planned.estimate.fits))
    console.print_line()
    columns = ["", "step (ms)", "ratio", "fits", "D × P × T", "placement", "micro-batches"]
    console.print_table("", columns, rows)
    for line in without:
        console.print_line(line)
    console.print_line()


def _row(name: str, planned: PlannedStep, best_us: float, *, fits: bool) -> list[str]:
    layout = planned.layout
    chunks = f" of {layout.chunks}" if layout.chunks > 1 else ""
    return [
        name,
        _ms(planned.estimate.step_us),
        f"{planned.estimate.step_us / best_us:.3f}",
        "yes" if fits else "no",
        f"{layout.data_parallel} × {layout.pipeline} × {layout.tensor_parallel}",
        f"{layout.placement}{chunks}",
        f"{layout.micro_batches} of {layout.micro_batch}",
    ]


def plan_document(result: PlanResult, profile: Profile, options: PlanCommandOptions) -> Planned:
    """Return what `--json` prints."""
    from scripts.documents.plans import Planned, PrintedBaseline, PrintedChange

    best_us = result.best.estimate.step_us
    interval_us = _interval_us(result.best, profile, options)
    return Planned(
        model=profile.name,
        layers=tuple(layer.name for layer in profile.layers),
        devices=options.devices,
        global_batch=result.best.layout.global_batch,
        best=_step_document(result.best, result.lower_bound_us),
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
                else _step_document(baseline.planned, baseline.planned.lower_bound_us),
            )
            for baseline in result.baselines
        ),
        alternatives=tuple(_step_document(each, each.lower_bound_us) for each in result.alternatives),
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
        plan=None if options.save is None else str(options.save),
        stopped_by=result.stopped_by,
        search_seconds=result.search_seconds,
    )


def _step_document(planned: PlannedStep, lower_bound_us: float) -> PrintedStep:
    from scripts.documents.plans import PrintedStep

    layout = planned.layout
    return PrintedStep(
        data_parallel=layout.data_parallel,
        pipeline=layout.pipeline,
        tensor_parallel=layout.tensor_parallel,
        chunks=layout.chunks,
        micro_batch=layout.micro_batch,
        micro_batches=layout.micro_batches,
        placement=layout.placement,
        stage_devices=tuple(layout.cluster_devices(stage) for stage in range(len(layout.cuts))),
        cuts=layout.cuts,
        recompute=layout.recompute or (False,) * len(layout.cuts),
        split_backward=layout.split_backward,
        order=planned.order,
        step_ms=planned.estimate.step_us / 1e3,
        lower_bound_ms=lower_bound_us / 1e3,
        memory_bytes=_of_every_device(planned, planned.estimate.memory_bytes),
        trained_bytes=_of_every_device(planned, planned.step.figures.trained_bytes),
        not_trained_bytes=_of_every_device(planned, planned.step.figures.frozen_bytes),
        fits=planned.estimate.fits,
    )


def _of_every_device(planned: PlannedStep, by_position: Sequence[int]) -> tuple[int, ...]:
    """Return the bytes of every device of the cluster, which those of one pipeline stand for."""
    layout = planned.layout
    held_by_device = {
        device: held for position, held in enumerate(by_position) for device in layout.devices_at(position)
    }
    return tuple(held_by_device[device] for device in sorted(held_by_device))


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.4g}"
