"""`tessel tune`: from a model and a target to a plan of measured stages, its comparison and its picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from scripts.commands.tune.options import TuneOptions
from scripts.commands.tune.placements import measure_placements, settings_by_placement
from scripts.commands.tune.report import plan_document, print_other_shapes, print_plan
from scripts.commands.tune.schedules import find_plan
from scripts.options import tuning_options
from scripts.options.arguments import check_model, describe_shapes, parse_shape_choices
from scripts.options.dataclass_options import takes_options
from scripts.options.tuning_options import ModelArgument
from scripts.reports.pictures import write_picture
from scripts.terminal import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tessel.plan import Plan
    from tuner.tuning.tune import TuningSettings


@takes_options
def tune(model: ModelArgument, options: TuneOptions) -> None:
    """Find a fast way to run a model on several devices, and compare it with hand-written schedules.

    Examples:

    `tessel tune gpt2 --target cpu --devices 4 --micro-batches 16 --out out/gpt2`

    `tessel tune gpt2 --devices 4 --micro-batches 16 --placement auto`

    `tessel tune net.onnx --infer --devices 2 --micro-batches 8 --memory 2GiB`
    """
    options.check()
    tuning_options.check_writable_folder(options.out)
    check_model(model)

    import msgspec

    from records.database.connection import without_password
    from tessel.plan import save_plan

    if options.threads is None and options.target == "cpu":
        # The pipeline's devices share this machine's cores, so each is measured with its share.
        options = replace(options, threads=tuning_options.threads_of_device(options.devices))
    placements = settings_by_placement(options)
    shapes, *others = parse_shape_choices(options.shape or [])
    _check_other_shapes(others, placements, options)
    loaded = tuning_options.load_model(
        model, shapes=shapes, values=options.value, batch=options.batch, training=options.train
    )
    tuned, choice = measure_placements(loaded, placements, shapes, options)
    plan, stopped_by = find_plan(tuned, choice, options)
    if others:
        found = [_plan_for(each, plan, placements, options) for each in others]
        plan = msgspec.structs.replace(plan, other_shapes=tuple(found))
    plan_path = options.out / "plan.json"
    save_plan(plan, plan_path)
    title = f"{plan.model} on {plan.device_model}"
    write_picture(plan.schedule, plan, options.out / "schedule.svg", title=title)
    if options.json:
        console.print_json(plan_document(plan, plan_path, stopped_by))
        return
    print_plan(plan)
    if plan.other_shapes:
        print_other_shapes(plan)
    place = without_password(options.records)
    console.print_line(f"\nwritten: {plan_path}, {options.out / 'schedule.svg'}; records in {place}")


def _plan_for(
    shapes: Mapping[str, tuple[int, ...]],
    plan: Plan,
    placements: dict[str, TuningSettings],
    options: TuneOptions,
) -> Plan:
    """Tune a planned model for other shapes, in the same stages.

    Raises:
        TunerError: for these shapes the stages hold other weights.
    """
    from tuner.errors import TunerError

    cuts = tuple(stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1])
    placements = {options.placement: replace(placements[options.placement], cuts=cuts)}
    loaded = tuning_options.load_model(
        plan.model, shapes=shapes, values=options.value, batch=options.batch, training=options.train
    )
    tuned, _ = measure_placements(loaded, placements, shapes, options)
    other, _ = find_plan(tuned, None, options)
    for one, same in zip(plan.stages, other.stages, strict=True):
        if one.parameters != same.parameters:
            raise TunerError(
                f"{one.name} of {plan.model} holds other weights for {describe_shapes(shapes)} than for "
                f"{describe_shapes(plan.shapes)}; cut the model elsewhere with --cut, or tune them apart"
            )
    return other


def _check_other_shapes(
    others: Sequence[object], placements: Mapping[str, TuningSettings], options: TuneOptions
) -> None:
    """Refuse several shapes where stages are no chain that can be cut alike again."""
    from tessel.tuned_model.model_placement import AUTO

    is_chain = all(each.placed is None and not each.divides_ends for each in placements.values())
    if others and not (is_chain and options.placement != AUTO):
        raise typer.BadParameter(
            f"--shape gives an input several shapes, and stages of --placement {options.placement} cannot "
            "be cut alike for each; give one shape, or vshape, interleaved:C, zbv or xshape"
        )
