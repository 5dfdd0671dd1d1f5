"""`tessel tune`: from a model and a target to a plan of measured stages, its comparison and its picture."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from scripts.commands.tune.options import TuneCommandOptions
from scripts.documents.tuning import OtherShapes, Tuned
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import ModelArgument, check_writable_folder, job_options
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_model
from tessel.jobs.inputs.tune_options import TuneOptions
from tessel.jobs.plan import Plan
from tessel.jobs.tuning import tune_with


@common_options(
    "devices micro_batches memory placement train shape target",
    "backends trials threads work records out json",
)
@takes_options
def tune(model: ModelArgument, options: TuneCommandOptions) -> None:
    """Find a fast way to run a model on several devices, and compare it with hand-written schedules.

    Examples:

    `tessel tune gpt2 --target cpu --devices 4 --micro-batches 16 --out out/gpt2`

    `tessel tune gpt2 --devices 4 --micro-batches 16 --placement auto`

    `tessel tune net.onnx --infer --devices 2 --micro-batches 8 --memory 2GiB`
    """
    wanted = job_options(TuneOptions, options)
    wanted.check()
    check_writable_folder(options.out)
    check_model(model)

    from records.database.connection import without_password

    plan = tune_with(model, wanted)
    path = plan.save(options.out / "plan.json")
    picture = plan.draw(options.out / "schedule.svg")
    if options.json:
        from scripts.commands.tune.command import _plan_document

        console.print_json(_plan_document(plan, path))
        return
    console.print_sections(plan.explain())
    place = without_password(options.records)
    console.print_line(f"\nwritten: {path}, {picture}; records in {place}")


def _plan_document(found: Plan, path: Path) -> Tuned:
    """Return what `--json` prints.

    Args:
        found: the plan, which was just made.
        path: where it was saved.
    """
    plan = found.tuned
    assert plan is not None, "it is of a model"
    assert found.stopped_by is not None, "it was just made"
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
        stopped_by=found.stopped_by,
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
