"""`tessel stages`: where a model is cut, what crosses each cut, and what each stage costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import tuning_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import (
    BatchOption,
    JsonOption,
    ModelArgument,
    RemoteTargetOption,
    ShapeOption,
    TuningOptions,
    ValueOption,
)
from scripts.reports.tables import print_stages
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder, check_model
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.documents.tuning import PrintedStage
    from tuner.plan import Figure, StagePlan, TiedParameter


@dataclass(frozen=True, kw_only=True)
class StagesOptions(TuningOptions):
    """How a model is priced and cut, and where the stages go."""

    target: RemoteTargetOption = "cpu"
    cut: Annotated[
        list[str] | None,
        "Cut after this module, such as layer:3; may be repeated. If left out: where "
        "the model's own code marks them.",
    ] = None
    devices: Annotated[
        int | None,
        "Number of stages, such as 4, cut where found best; --cut or the model says it if left out.",
    ] = None
    train: Annotated[
        bool, typer.Option("--train/--infer", help="Forward and backward, or forward alone.")
    ] = True
    batch: BatchOption = 1
    shape: ShapeOption = None
    value: ValueOption = None
    save: Annotated[
        Path | None, "Write the document to this file, such as stages.json; kept nowhere if left out."
    ] = None
    json: JsonOption = False


@common_options("devices cut train shape target backends threads records save json")
@takes_options
def stages(model: ModelArgument, options: StagesOptions) -> None:
    """Cut a model into stages; show each one's inputs, outputs, relayed tensors, memory and costs.

    Examples:

    `tessel stages gpt2:tiny --cut layer:0`

    `tessel stages gpt2 --devices 4 --json`
    """
    check_folder("--save", options.save)
    if options.devices is not None and options.devices < 1:
        raise typer.BadParameter(f"--devices is {options.devices}; a pipeline has at least one stage")
    check_model(model)

    from tuner.tuning.stage_costs.measure_stages import measure_stages

    loaded = tuning_options.load_model(
        model, shapes=options.shape, values=options.value, batch=options.batch, training=options.train
    )
    if options.devices is None and not options.cut and not loaded.cuts:
        raise typer.BadParameter(
            f"{model} marks no cuts of its own; give --cut, once for each, or --devices, the number of stages"
        )
    with tuning_options.open_session(options) as session:
        cuts = tuple(options.cut) if options.cut else None
        found = measure_stages(loaded, session, num_stages=options.devices, cuts=cuts)
    from msgspec import UNSET

    from scripts.documents.tuning import Staged

    document = Staged(
        stages=tuple(map(_stage_document, found.stages)),
        tied=found.tied,
        max_error=found.max_error,
        import_error=UNSET if found.import_error is None else found.import_error,
    )
    if options.save is not None:
        import msgspec

        from tessel.documents import save_document

        text = msgspec.json.encode(document, order="sorted")
        save_document(options.save, msgspec.json.format(text, indent=1))
        messages.note(f"stages written to {options.save}")
    if options.json:
        console.print_json(document)
        return
    _print(found.stages, found.tied)


def _stage_document(stage: StagePlan) -> PrintedStage:
    from scripts.documents.tuning import PrintedStage

    return PrintedStage(
        name=stage.name,
        layers=stage.layers,
        inputs=stage.inputs,
        outputs=stage.outputs,
        relayed=stage.relayed,
        parameters=stage.parameters,
        forward_us=_latency_us(stage.forward),
        backward_us=_latency_us(stage.backward),
        backward_input_us=_latency_us(stage.backward_input),
        backward_weight_us=_latency_us(stage.backward_weight),
        weight_bytes=stage.weight_bytes,
        bound_bytes=stage.bound_bytes,
        saved_bytes=stage.saved_bytes,
        saved_for_weight_bytes=stage.saved_for_weight_bytes,
        boundary_bytes=stage.boundary_bytes,
    )


def _latency_us(figure: Figure | None) -> float | None:
    return None if figure is None else figure.latency_us


def _print(stages: tuple[StagePlan, ...], tied: tuple[tuple[TiedParameter, ...], ...]) -> None:
    print_stages(stages)
    for stage in stages:
        console.print_line(f"\n{stage.name}: {', '.join(stage.layers)}")
        for title, tensors in (("takes", stage.inputs), ("makes", stage.outputs)):
            for tensor in tensors:
                extents = ",".join(map(str, tensor.shape))
                console.print_line(f"  {title:9} {tensor.name}  {tensor.dtype}[{extents}]")
        for name in stage.relayed:
            console.print_line(f"  passes on {name}")
        console.print_line(f"  holds     {len(stage.parameters)} parameters")
    for group in tied:
        places = ", ".join(f"{member.name} in stage {member.stage}" for member in group)
        console.print_line(f"\ntied: {places}; their gradients are summed")
