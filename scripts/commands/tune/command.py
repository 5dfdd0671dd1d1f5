"""`tessel tune`: from a model and a target to a plan of measured stages, its comparison and its picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.options import completion, search_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import (
    BatchOption,
    GraphLevelSearchOption,
    JsonOption,
    ModelArgument,
    RemoteTargetOption,
    TuningOptions,
    ValueOption,
    check_writable_folder,
    job_options,
)
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_model
from tessel.jobs.inputs.tune_options import OPTIMIZERS, SHARDINGS, TuneOptions
from tessel.jobs.tuning import tune_with


def _check_placement(name: str) -> str:
    """Refuse a name that is no placement, before anything is loaded."""
    from tessel.errors import ScheduleError
    from tessel.tuned_model.model_placement import check_placement_name

    try:
        check_placement_name(name)
    except ScheduleError as error:
        raise typer.BadParameter(str(error)) from error
    return name


@dataclass(frozen=True, kw_only=True)
class TuneCommandOptions(TuningOptions):
    """How a model is priced, cut into stages and scheduled, and where the plan goes."""

    target: RemoteTargetOption = TuneOptions.target
    devices: Annotated[int, "Devices of the pipeline, one stage each."] = TuneOptions.devices
    micro_batches: Annotated[int, "Micro-batches of one step."] = TuneOptions.micro_batches
    memory: Annotated[str | None, "Memory of one device, such as 16GiB; unlimited if left out."] = None
    train: Annotated[
        bool, typer.Option("--train/--infer", help="Tune forward and backward, or forward alone.")
    ] = TuneOptions.train
    out: Annotated[Path, "Folder for the plan and the picture."] = Path("out")
    batch: BatchOption = TuneOptions.batch
    shape: Annotated[
        list[str] | None,
        "Shape of an input, the model's own if left out: input_ids=1,128; may be repeated. Several of one "
        "input are planned in the same stages, cut for the largest.",
    ] = None
    value: ValueOption = None
    cut: Annotated[
        list[str] | None,
        "Cut after this module; may be repeated. If left out: as the model marks them, else found.",
    ] = None
    optimizer: Annotated[
        str,
        typer.Option(
            help=f"Optimizer, whose state each device keeps: {', '.join(OPTIMIZERS)}.",
            autocompletion=completion.one_of(*OPTIMIZERS),
        ),
    ] = TuneOptions.optimizer
    sharding: Annotated[
        str,
        typer.Option(
            help="What copies of the pipeline divide among them: `none`, or `optimizer`, its state (ZeRO-1).",
            autocompletion=completion.one_of(*SHARDINGS),
        ),
    ] = TuneOptions.sharding
    hop_us: Annotated[float | None, "Latency of one hop in us; measured if left out."] = None
    placement: Annotated[
        str,
        typer.Option(
            help="Placement of stages: vshape, one per device; interleaved:2 or zbv, two; xshape, one and a "
            "copy in reverse; mshape, one, with vocabulary-parallel embedding and head over all devices; "
            "nnshape, the same for an encoder-decoder; kshape, two towers; a placement FILE; auto, as "
            "planned from measured layers.",
            autocompletion=completion.model_placements,
            callback=_check_placement,
        ),
    ] = "vshape"
    link: Annotated[
        str | None,
        "Bandwidth between devices, in one direction, such as 10GB/s; hops and collectives are "
        "measured between processes of this machine if left out.",
    ] = None
    no_recompute: Annotated[
        bool,
        "Keep all activations; under --memory, stages may else run their forward again in their backward.",
    ] = False
    work: Annotated[float | None, search_options.work_help("10, unless --time-limit is given")] = None
    time_limit: Annotated[str | None, f"For the schedule search. {search_options.TIME_HELP}"] = None
    graph_level_search: GraphLevelSearchOption = TuneOptions.graph_level_search
    json: JsonOption = False


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
