"""Report of `tessel tune` on a plan: tables for people, a document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.options.arguments import describe_shapes
from scripts.reports.comparison import build_comparison, print_comparison
from scripts.reports.placements import print_placements, print_planned
from scripts.reports.tables import print_end_to_end, print_partition, print_stages
from scripts.terminal import console

if TYPE_CHECKING:
    from pathlib import Path

    from scripts.documents.tuning import Tuned
    from tessel.plan import Plan
    from tessel.search.budget import StoppedBy


def plan_document(plan: Plan, path: Path, stopped_by: StoppedBy) -> Tuned:
    """Return what `--json` prints.

    Args:
        plan: what was found.
        path: where it was saved.
        stopped_by: what ended the search of its schedule.
    """
    from msgspec import UNSET

    from scripts.documents.tuning import OtherShapes, Tuned

    return Tuned(
        plan=str(path),
        new_measurements=plan.new_measurements,
        reused_measurements=plan.reused_measurements,
        comparison=plan.comparison,
        max_relative_error=plan.max_relative_error,
        max_gradient_error=plan.max_gradient_error,
        import_error=UNSET if plan.import_error is None else plan.import_error,
        notes=plan.notes,
        lower_bound_ms=plan.schedule.lower_bound * plan.step_us / 1000,
        optimal=plan.schedule.optimal,
        gap=plan.schedule.gap if plan.schedule.lower_bound else None,
        stopped_by=stopped_by,
        recompute=tuple(stage.recomputes for stage in plan.stages),
        placements=plan.placements,
        planned=plan.planned,
        other_shapes=tuple(
            OtherShapes(
                shapes=each.shapes,
                makespan_ms=each.schedule.makespan * each.step_us / 1000,
                optimal=each.schedule.optimal,
                max_gradient_error=each.max_gradient_error,
            )
            for each in plan.other_shapes
        ),
    )


def print_plan(plan: Plan) -> None:
    """Print the partition, the stages, and the schedule beside the hand-written ones."""
    kind = "training" if plan.training else "inference"
    console.print_line(
        f"{plan.model} ({kind}) on {plan.device_model}, {plan.num_threads} threads: "
        f"{len(plan.stages)} stages, {plan.schedule.micro_batches} micro-batches"
    )
    console.print_line(
        f"{plan.new_measurements} new measurements, {plan.reused_measurements} found in the records\n"
    )
    print_partition(plan)
    print_end_to_end("Forward function, end to end", plan)
    if plan.max_gradient_error is not None:
        console.print_line(
            f"largest error of the stages' gradients against {_whole(plan)} {plan.max_gradient_error:.1e}"
        )
    console.print_line()
    print_stages(plan.stages)
    _print_schedule(plan)


def print_other_shapes(plan: Plan) -> None:
    """Print what the same stages take for each further shape."""
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
    console.print_line()
    title = "Shapes, in the same stages, each with its own kernels and order"
    console.print_table(title, ["shapes", "step (ms)", "proven optimal", "largest gradient error"], rows)


def _whole(plan: Plan) -> str:
    """Name the reference that the stages' gradients were compared with."""
    whose = {"train": "the model's own, in train mode", "eval": "the model's own, in eval mode"}
    return (
        "the uncut model's" if not plan.reference else whose.get(plan.reference, "the exported program's own")
    )


def _print_schedule(plan: Plan) -> None:
    """Print what the schedule search found beside every hand-written schedule."""
    from tessel.comparison import format_ms

    schedule = plan.schedule
    proof = (
        "its order proven optimal on these stages"
        if schedule.optimal
        else f"its order within {schedule.gap:.1%} of optimal on these stages"
    )
    comparison = build_comparison(schedule, plan, None)
    console.print_line(
        f"\nSchedule: {format_ms(schedule.makespan * plan.step_us / 1000)} ms per step, {proof};"
    )
    console.print_line(f"simulated from the stages' figures above, hop latency {plan.hop_source}")
    print_comparison(comparison, in_bytes=True)
    if plan.placements:
        console.print_line()
        print_placements(plan.placements)
    if plan.planned:
        console.print_line()
        print_planned(plan.planned)
