"""Parts and reasons of a plan, as sentences and tables: what `tessel plan` and `tessel tune` print.

Checked in tests/tessel/jobs/test_plan.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessel.jobs.inputs.arguments import describe_shapes
from tessel.jobs.shown.formatting import format_bytes, format_numbers
from tessel.jobs.shown.pictures import verdict_of
from tessel.jobs.shown.placement_tables import add_placements, add_planned
from tessel.jobs.shown.plan_tables import (
    BASELINE_COLUMNS,
    MAX_REPLICAS,
    REPLICA_COLUMNS,
    baseline_rows,
    format_gap,
    order_words,
    replica_rows,
    stage_table,
    step_words,
)
from tessel.jobs.shown.sections import Sections
from tessel.jobs.shown.tables import add_end_to_end, add_partition, add_stages
from tessel.progress.manual import manual

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.planning.plan_result import PlannedStep, PlanResult
    from tessel.planning.saved_plan import SavedPlan
    from tessel.schedule import Schedule
    from tessel.tuned_plan import TunedPlan

SHOWN_ALTERNATIVES = 3
"""Next best plans in the table; `--json` has all."""


def explain_plan(plan: PlanView) -> Sections:
    """Return the tables and sentences of a plan."""
    out = Sections()
    if plan.tuned is not None:
        _add_tuned(out, plan, plan.tuned)
    elif plan.found is not None:
        _add_found(out, plan, plan.found)
    else:
        _add_saved(out, plan)
    return out


def _add_saved(out: Sections, plan: PlanView) -> None:
    """Add what a plan's file holds: the step, the stages, and the ways that it was compared with."""
    saved = plan.planned
    assert saved is not None, "the plan is of a table"
    out.line(f"{saved.title}: {verdict_of(plan)}")
    where = f"{saved.layout.placement_words}, " if saved.layout.tower else ""
    out.line(
        f"{where}in {order_words(saved.order)}; {format_bytes(max(saved.memory_bytes))} on the fullest device"
    )
    if saved.schedule.overlap_factor is not None:
        out.line(overlap_words(saved.schedule))
    out.table("", *stage_table(saved))
    _add_replicas(out, saved)
    out.table("", BASELINE_COLUMNS, baseline_rows(saved))


def _add_found(out: Sections, plan: PlanView, result: PlanResult) -> None:
    """Add the best plan, its stages, what it is compared with, why, and what would change it."""
    saved = plan.planned
    assert saved is not None, "the plan is of a table"
    profile, cluster = saved.profile, saved.cluster
    best = result.best
    estimate = best.estimate
    on = f" on {profile.device}" if profile.device else ""
    out.line(
        f"{profile.name}{on}: {len(profile.layers)} layers, {cluster.devices} devices, "
        f"{best.layout.global_batch} samples per step\n"
    )
    layout = best.layout
    title = "best plan   " if estimate.fits else "nearest plan"
    out.line(
        f"{title}  {layout.named_degrees}, {layout.placement_words}"
        + (", one stage a device" if layout.placement == "vshape" else "")
    )
    out.line(
        f"micro-batches {layout.micro_batches} of {layout.micro_batch} samples, in {order_words(best.order)}"
    )
    out.line(
        f"step          {step_words(estimate)} (of {_ms(estimate.synchronisation_us)}, the rest overlapped)"
    )
    proof = "proven optimal" if result.optimal else f"gap {format_gap(result.gap)}"
    out.line(
        f"bound         {proof}: of all layouts, cuts and orders allowed, none takes less than "
        f"{_ms(result.lower_bound_us)} ms"
    )
    if result.job.sharding != "none":
        experts = f", experts over {layout.expert_replicas}" if profile.has_experts else ""
        out.line(f"sharding      {result.job.sharding}, over {layout.weight_replicas} replicas{experts}")
    if result.job.offload != "none":
        words = result.job.offload.replace("optimizer", "optimizer state").replace("+", " and ")
        out.line(f"offload       {words}, in the memory of the hosts")
    if saved.schedule.overlap_factor is not None:
        out.line(f"overlap       {overlap_words(saved.schedule)}")
    interval = plan.step_interval_us
    if interval is not None:
        out.line(
            f"predicted     {_ms(interval[0])} to {_ms(interval[1])} ms, as the layers' 90 % intervals allow"
        )
    limit = "" if cluster.memory_bytes is None else f" (limit {format_bytes(cluster.memory_bytes)})"
    state = "" if estimate.fits else ", DOES NOT FIT"
    out.line(f"peak memory   {format_bytes(max(estimate.memory_bytes))} on the fullest device{limit}{state}")
    out.line(f"busy          {estimate.busy_ratio:.1%} of all devices' time\n")
    out.table("", *stage_table(saved))
    _add_replicas(out, saved)
    _add_comparison(out, result)
    _add_spreads(out, result)
    for sentence in result.explanation:
        out.line(f"- {sentence}")
    for change in result.changes:
        out.line(
            f"- With {change.change}: {_ms(change.step_us)} ms, {_saving(change.saves_us)} ({change.name})."
        )
    counts = result.counts
    out.line(
        f"\nlooked at     {counts.families} kinds of layouts ({counts.families_not_fitting} do not fit, "
        f"{counts.families_cut_off} ruled out by bounds), {counts.layouts} layouts, {counts.orders} orders, "
        f"in {result.search_seconds:.1f} s, stopped by {result.stopped_by}"
    )


def overlap_words(schedule: Schedule) -> str:
    """Say how many pairs run together, and what they take."""
    return (
        f"{len(schedule.pairs)} pairs of a forward and a backward run together, each in "
        f"{schedule.overlap_factor:g} of its sum"
    )


def _add_replicas(out: Sections, saved: SavedPlan) -> None:
    """Add what each replica runs, where micro-batches differ."""
    mixture = saved.job.mixture
    if mixture is None:
        return
    out.line(f"\nbatch         {mixture}; times of stages are means over it, bytes the most of a micro-batch")
    out.table("", REPLICA_COLUMNS, replica_rows(saved))
    if len(saved.schedules) > MAX_REPLICAS:
        out.line(f"and {len(saved.schedules) - MAX_REPLICAS} replicas more; the saved plan has all")


def _add_spreads(out: Sections, result: PlanResult) -> None:
    """Add what steps take where durations vary, static orders beside a greedy runtime."""
    from tessel.batches.spread import QUANTILES

    if not result.spreads:
        return
    rows = []
    for each in result.spreads:
        ratio = None if each.greedy_us is None or not each.static_us else each.greedy_us / each.static_us
        rows.append(
            [
                "chosen" if each.is_chosen else "",
                *map(_ms, (each.step_us, each.mean_us, *each.quantiles_us)),
                "-" if ratio is None else f"{ratio:.3f}",
                each.name,
            ]
        )
    quantiles = [f"p{each}" for each in QUANTILES]
    title = "Steps (ms) where durations vary, predicted by replay; greedy: a runtime that runs what can start"
    out.table(title, ["", "step", "mean", *quantiles, "greedy / static", "plan"], rows)
    first, best = result.spreads[0], next(each for each in result.spreads if each.is_chosen)
    if best is not first:
        out.line(
            f"the shortest step, {_ms(first.step_us)} ms, loses where durations vary: {_ms(first.chosen_us)} "
            f"against {_ms(best.chosen_us)} ms"
        )
    out.line()


def _saving(saves_us: float) -> str:
    """Say how much shorter a step gets."""
    return f"{_ms(saves_us)} ms less" if saves_us > 0 else "no shorter"


def _add_comparison(out: Sections, result: PlanResult) -> None:
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
    out.line()
    columns = ["", "step (ms)", "ratio", "fits", "D × P × T", "placement", "micro-batches"]
    out.table("", columns, rows)
    for line in without:
        out.line(line)
    out.line(f"names of schedules: {manual('glossary.md#schedules-by-name')}")
    out.line()


def _row(name: str, planned: PlannedStep, best_us: float, *, fits: bool) -> list[str]:
    layout = planned.layout
    return [
        name,
        _ms(planned.estimate.step_us),
        f"{planned.estimate.step_us / best_us:.3f}",
        "yes" if fits else "no",
        f"{layout.data_parallel} × {layout.pipeline} × {layout.named_tensor_degrees}"
        + (f", C {layout.context_parallel}" if layout.context_parallel > 1 else "")
        + (f", E {layout.expert_parallel}" if layout.expert_parallel > 1 else ""),
        layout.placement_words,
        f"{layout.micro_batches} of {layout.micro_batch}",
    ]


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.4g}"


def _add_tuned(out: Sections, whole: PlanView, plan: TunedPlan) -> None:
    """Add the partition, the stages, and the schedule beside the hand-written ones."""
    kind = "training" if plan.training else "inference"
    out.line(
        f"{plan.model} ({kind}) on {plan.device_model}, {plan.num_threads} threads: "
        f"{len(plan.stages)} stages, {plan.schedule.micro_batches} micro-batches"
    )
    out.line(f"{plan.new_measurements} new measurements, {plan.reused_measurements} found in the records\n")
    add_partition(out, plan)
    add_end_to_end(out, "Forward function, end to end", plan)
    if plan.max_gradient_error is not None:
        out.line(
            f"largest error of the stages' gradients against {_whole(plan)} {plan.max_gradient_error:.1e}"
        )
    out.line()
    add_stages(out, plan.stages)
    if plan.state_sharding != "none":
        copies = f"{plan.replicas} copies of the pipeline" if plan.replicas > 1 else "one copy: nothing"
        out.line(f"\nsharding: {plan.state_sharding}, over {copies}; `tessel run` keeps all of it on each")
    _add_schedule(out, whole, plan)
    if plan.other_shapes:
        _add_other_shapes(out, plan)


def _add_other_shapes(out: Sections, plan: TunedPlan) -> None:
    """Add what the same stages take for each further shape."""
    from tessel.comparison import format_ms

    rows = [
        [
            describe_shapes(each.shapes),
            format_ms(each.schedule.makespan * each.step_us / 1000),
            "yes" if each.schedule.optimal else f"within {each.schedule.gap:.1%}",
            "-" if each.max_gradient_error is None else f"{each.max_gradient_error:.1e}",
        ]
        for each in (plan, *plan.other_shapes)
    ]
    out.line()
    title = "Shapes, in the same stages, each with its own kernels and order"
    out.table(title, ["shapes", "step (ms)", "proven optimal", "largest gradient error"], rows)


def _whole(plan: TunedPlan) -> str:
    """Name the reference that the stages' gradients were compared with."""
    whose = {"train": "the model's own, in train mode", "eval": "the model's own, in eval mode"}
    return (
        "the uncut model's" if not plan.reference else whose.get(plan.reference, "the exported program's own")
    )


def _add_schedule(out: Sections, whole: PlanView, plan: TunedPlan) -> None:
    """Add what the schedule search found beside every hand-written schedule."""
    from tessel.comparison import format_ms

    comparison = whole.compare()
    out.line(
        f"\nstep          {format_ms(whole.step_ms)} ms of pipeline, without optimizer and synchronisation; "
        f"simulated from the stages' figures above, hop latency {plan.hop_source}"
    )
    out.line(
        f"bound         {whole.proof}: none takes less than {format_ms(whole.lower_bound_ms)} ms; "
        "other cuts and placements have no bound"
    )
    add_comparison_rows(out, comparison, in_bytes=True)
    if plan.placements:
        out.line()
        add_placements(out, plan.placements)
    if plan.planned:
        out.line()
        add_planned(out, plan.planned)


def add_comparison_rows(out: Sections, comparison: Comparison, *, in_bytes: bool) -> None:
    """Add the table of a comparison; milliseconds and bytes for a plan, steps and units else."""
    rows = []
    for row in comparison.rows:
        if in_bytes and row.peak_memory_bytes is not None:
            memory = format_bytes(max(row.peak_memory_bytes))
        else:
            memory = format_numbers(row.peak_memory)
        ratio = "-" if row.ratio_to_1f1b is None else f"{row.ratio_to_1f1b:.3f}"
        fits = "yes" if row.fits else "no"
        rows.append([row.title, row.length, f"{row.bubble_ratio:.1%}", memory, fits, ratio])
    unit = "ms" if in_bytes else "steps"
    peak = "peak memory" if not in_bytes else "peak memory, fullest device"
    out.table("", ["schedule", f"makespan ({unit})", "bubble ratio", peak, "fits", "ratio to 1F1B"], rows)
