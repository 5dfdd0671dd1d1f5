"""`tessel plan`: from a table of layer timings to the best use of so many devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.plan.options import PlanCommandOptions
from scripts.options import completion
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import job_options
from scripts.terminal import console
from tessel.jobs.inputs.plan_options import PlanOptions
from tessel.jobs.planning import plan_with
from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from tessel.planning.saved_plan import SavedPlan

EXIT_DOES_NOT_FIT = 1
"""Of a plan that is printed though it exceeds the memory."""


@common_options(
    "devices gpu seq memory global_batch micro_batches placement link optimizer sharding",
    "time_limit save out json",
)
@takes_options
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|CONFIG|MODEL|PLAN",
            help="A table of layer timings, a profile of another tool, a plan, the config.json of a language "
            "model with --gpu, or a model to measure.",
            autocompletion=completion.models,
        ),
    ],
    options: PlanCommandOptions,
) -> None:
    """Find degrees, cuts, placement and order of a training step from a table of layer timings.

    Examples:

    `tessel plan profile.csv --devices 16 --memory 80GiB --global-batch 512`

    `tessel plan examples/configs/llama-3.1-70b.json --gpu h100 --devices 64 --global-batch 128 --seq 8192`

    `tessel plan profile.csv --devices 8 --micro-batches 32 --save plan.json --out plan.svg`
    """
    options.check()
    found = plan_with(model, job_options(PlanOptions, options))
    planned = found.planned
    with interrupts.deferred():
        if options.save is not None:
            messages.note(f"plan written to {found.save(options.save)}")
        if options.save_table is not None:
            messages.note(f"table written to {found.save_table(options.save_table)}")
        if options.out is not None:
            messages.note(f"{found.draw(options.out)} written")
        if options.json:
            from scripts.commands.plan.report import plan_document

            console.print_json(plan_document(found, options.save))
        else:
            console.print_sections(found.explain())
            if options.save is None:
                messages.note("add --save plan.json to keep it, for tessel draw, compare and export")
            elif (
                found.fits
                and planned
                and len(planned.schedules) == 1
                and not planned.layout.has_own_degrees
                and planned.layout.bubbles is None
            ):
                name = framework_of(planned)
                console.print_line(f"\nto train with it: tessel export {options.save} --to {name}")
    if not found.fits:
        messages.note(found.shortfall)
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def framework_of(planned: SavedPlan) -> str:
    """Return which export takes a plan: torch's where ranks hold two copies, or a tower stands in front."""
    from tessel.profiles.towers import tower_layers

    is_for_torch = planned.layout.placement == "xshape" or tower_layers(planned.profile) > 0
    return "torch" if is_for_torch else "torchtitan"
