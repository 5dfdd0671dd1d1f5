"""`tessel check`: an assessment of the orders, the layout or the schedule that runs today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.check.report import assessment_document, print_assessment
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.search_options import (
    HopUsOption,
    JsonOption,
    TimeLimitOption,
    link_option,
    optimizer_option,
    work_help,
)
from scripts.options.tuning_options import job_options
from scripts.terminal import console
from tessel.errors import UsageError
from tessel.jobs.checking import check_trace, check_with
from tessel.jobs.inputs.arguments import check_folder
from tessel.jobs.inputs.check_options import DEFAULT_WORK, CheckOptions
from tessel.jobs.inputs.plan_options import DEFAULT_HOP_US, DEFAULT_LINK, DEFAULT_OPTIMIZER
from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from tessel.checking.assessment import Assessment


@dataclass(frozen=True, kw_only=True)
class CheckCommandOptions:
    """What a file does not say."""

    trace: Annotated[
        Path | None,
        "Replay recorded steps in place of a file: a table of operations (.csv, .csv.gz, .parquet) "
        "or traces of PyTorch's profiler (.json, .json.gz, or a folder with one of each rank).",
    ] = None
    devices: Annotated[int | None, "Ranks of the pipeline, such as 4; needed by a layout of Megatron."] = None
    micro_batches: Annotated[
        int | None, "Micro-batches of a step, such as 16; needed by a layout of Megatron."
    ] = None
    group_size: Annotated[
        int | None, "Megatron's microbatch_group_size_per_vp_stage.  [default: --devices]"
    ] = None
    profile: Annotated[
        Path | None,
        "A table of layer timings (profile.csv), or another tool's profile, for the stages' costs; blocks "
        "take steps if left out.",
    ] = None
    cuts: Annotated[
        str | None, "First and last layer of each stage of a CSV, `0-5,6-11`; balanced if left out."
    ] = None
    memory: Annotated[
        str | None,
        "Limit of a device: 80GiB with a profile or plan, else units (`6`, or one each: `6,6,4,4`); "
        "none if left out.",
    ] = None
    micro_batch: Annotated[
        int | None, "Samples of a micro-batch, of the profile's sizes; the smallest if left out."
    ] = None
    data_parallel: Annotated[int, "Replicas of the pipeline."] = 1
    tensor_parallel: Annotated[int, "Tensor-parallel degree, of those in the profile."] = 1
    context_parallel: Annotated[int, "Context-parallel degree, of those in the profile."] = 1
    expert_parallel: Annotated[int, "Expert-parallel degree, of those in the profile."] = 1
    overlap_factor: Annotated[
        float | None,
        "Share of their sum that a forward and a backward of an OVERLAP_F_B cell take, such as 0.6; "
        "one after the other if left out.",
    ] = None
    link: Annotated[str, link_option()] = DEFAULT_LINK
    hop_us: HopUsOption = DEFAULT_HOP_US
    optimizer: Annotated[str, optimizer_option()] = DEFAULT_OPTIMIZER
    work: Annotated[
        float | None, work_help(f"{DEFAULT_WORK:g}", search="the search of better orders", promise="")
    ] = None
    time_limit: TimeLimitOption = None
    save: Annotated[
        Path | None,
        "Write the best schedule found on these stages to this file, such as best.json; kept "
        "nowhere if left out.",
    ] = None
    json: JsonOption = False


EXIT_BAD = 1
"""Of what deadlocks or does not fit."""


@common_options("profile devices micro_batches cuts memory link hop_us optimizer work time_limit save json")
@takes_options
def check(
    options: CheckCommandOptions,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="ORDERS.csv|LAYOUT|SCHEDULE|PLAN",
            help="Orders as torch loads them, a layout of Megatron (or a file of it), a schedule, a plan.",
        ),
    ] = None,
) -> None:
    """Say whether a pipeline deadlocks, whether it fits, how far it is from the best, and what to change.

    Exits with status 1 if it deadlocks or does not fit. With --trace: who straggles in recorded steps, by how
    much, and what would have helped.

    Examples:

    `tessel check orders.csv --profile profile.csv --memory 80GiB`

    `tessel check 'Et*5|t*6|t*6|t*5L' --devices 4 --micro-batches 16 --profile profile.csv`

    `tessel check --trace steps.csv.gz`
    """
    if options.trace is not None:
        _check_trace(options.trace, options)
        return
    if file is None:
        raise UsageError("no file was given; give orders, a layout, a schedule or a plan, or --trace STEPS")
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


def _check_trace(trace: Path, options: CheckCommandOptions) -> None:
    from scripts.commands.check.trace_report import print_trace_assessment, trace_document

    assessment = check_trace(trace, job_options(CheckOptions, options))
    with interrupts.deferred():
        if options.json:
            console.print_json(trace_document(assessment))
        else:
            print_trace_assessment(assessment)


def _save(assessment: Assessment, options: CheckCommandOptions) -> None:
    from tessel.documents import save

    assert options.save is not None
    if assessment.best is None:
        messages.note(f"no order on these stages fits, so {options.save} is not written")
        return
    save(assessment.best.schedule, options.save)
    messages.note(f"the best schedule found is written to {options.save}")
