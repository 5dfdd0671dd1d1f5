"""`tessel check`: an assessment of the orders, the layout or the schedule that runs today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.check.options import CheckCommandOptions
from scripts.commands.check.report import assessment_document, print_assessment
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import job_options
from scripts.terminal import console
from tessel.jobs.checking import check_with
from tessel.jobs.inputs.arguments import check_folder
from tessel.jobs.inputs.check_options import CheckOptions
from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from tessel.checking.assessment import Assessment

EXIT_BAD = 1
"""Of what deadlocks or does not fit."""


@common_options("profile devices micro_batches cuts memory link hop_us optimizer work time_limit save json")
@takes_options
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="ORDERS.csv|LAYOUT|SCHEDULE|PLAN",
            help="Orders as torch loads them, a layout of Megatron (or a file of it), a schedule, a plan.",
        ),
    ],
    options: CheckCommandOptions,
) -> None:
    """Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change.

    Exits with status 1 if it deadlocks or does not fit.

    Examples:

    `tessel check orders.csv --profile profile.csv --memory 80GiB`

    `tessel check 'Et*5|t*6|t*6|t*5L' --devices 4 --micro-batches 16 --profile profile.csv`
    """
    check_folder("--save", options.save)
    assessment = check_with(file, job_options(CheckOptions, options))
    with interrupts.deferred():
        if options.save is not None:
            _save(assessment, options)
        if options.json:
            console.print_json(assessment_document(assessment))
        else:
            print_assessment(assessment)
    if not assessment.is_good:
        raise typer.Exit(EXIT_BAD)


def _save(assessment: Assessment, options: CheckCommandOptions) -> None:
    from tessel.documents import save

    assert options.save is not None
    if assessment.best is None:
        messages.note(f"no order on these stages fits, so {options.save} is not written")
        return
    save(assessment.best.schedule, options.save)
    messages.note(f"the best schedule found is written to {options.save}")
