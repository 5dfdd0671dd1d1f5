"""`tessel tune`: from a model and a target to a plan of measured stages, its comparison and its picture."""

from __future__ import annotations

from scripts.commands.tune.options import TuneCommandOptions
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import ModelArgument, check_writable_folder, job_options
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_model
from tessel.jobs.inputs.tune_options import TuneOptions
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
        from scripts.commands.tune.report import plan_document

        console.print_json(plan_document(plan, path))
        return
    console.print_sections(plan.explain())
    place = without_password(options.records)
    console.print_line(f"\nwritten: {path}, {picture}; records in {place}")
