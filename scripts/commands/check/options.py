"""The options of `tessel check`: what prices the stages, and how long to look for something better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.options.cluster_options import hop_us_option, link_option, optimizer_option
from scripts.options.search_options import OUTPUT_PANEL, JsonOption, TimeLimitOption, work_option
from tessel.jobs.inputs.check_options import DEFAULT_WORK
from tessel.jobs.inputs.plan_options import DEFAULT_HOP_US, DEFAULT_LINK, DEFAULT_OPTIMIZER

_ORDERS = "Orders and layouts"
_PRICING = "Profile and devices"


@dataclass(frozen=True, kw_only=True)
class CheckCommandOptions:
    """What a file does not say."""

    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay recorded steps in place of a file: a table of operations (.csv, .csv.gz, .parquet) "
            "or traces of PyTorch's profiler (.json, .json.gz, or a folder with one of each rank).",
            show_default=False,
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(
            help="Ranks of the pipeline, for a layout of Megatron.",
            rich_help_panel=_ORDERS,
            show_default=False,
        ),
    ] = None
    micro_batches: Annotated[
        int | None,
        typer.Option(
            help="Micro-batches of a step, for a layout of Megatron.",
            rich_help_panel=_ORDERS,
            show_default=False,
        ),
    ] = None
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Megatron's microbatch_group_size_per_vp_stage.  [default: --devices]",
            rich_help_panel=_ORDERS,
            show_default=False,
        ),
    ] = None
    profile: Annotated[
        Path | None,
        typer.Option(
            help="A table of layer timings, or another tool's profile, that gives the stages' costs.",
            rich_help_panel=_PRICING,
        ),
    ] = None
    cuts: Annotated[
        str | None,
        typer.Option(
            help="First and last layer of each stage of a CSV, `0-5,6-11`; balanced if left out.",
            rich_help_panel=_PRICING,
        ),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(
            help="Limit of a device: 80GiB with a profile or plan, else units (`6`, or one each: `6,6,4,4`).",
            rich_help_panel=_PRICING,
        ),
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples of a micro-batch, of the profile's sizes; the smallest if left out.",
            rich_help_panel=_PRICING,
        ),
    ] = None
    data_parallel: Annotated[
        int, typer.Option(help="Replicas of the pipeline.", rich_help_panel=_PRICING)
    ] = 1
    tensor_parallel: Annotated[
        int,
        typer.Option(help="Tensor-parallel degree, of those in the profile.", rich_help_panel=_PRICING),
    ] = 1
    context_parallel: Annotated[
        int,
        typer.Option(help="Context-parallel degree, of those in the profile.", rich_help_panel=_PRICING),
    ] = 1
    expert_parallel: Annotated[
        int,
        typer.Option(help="Expert-parallel degree, of those in the profile.", rich_help_panel=_PRICING),
    ] = 1
    overlap_factor: Annotated[
        float | None,
        typer.Option(
            help="Share of their sum that a forward and a backward of an OVERLAP_F_B cell take, such as 0.6; "
            "one after the other if left out.",
            rich_help_panel=_PRICING,
        ),
    ] = None
    link: Annotated[str, link_option(_PRICING)] = DEFAULT_LINK
    hop_us: Annotated[float, hop_us_option(_PRICING)] = DEFAULT_HOP_US
    optimizer: Annotated[str, optimizer_option(_PRICING)] = DEFAULT_OPTIMIZER
    work: Annotated[
        float | None, work_option(f"{DEFAULT_WORK:g}", search="the search of better orders", promise="")
    ] = None
    time_limit: TimeLimitOption = None
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the best schedule found on these stages to this file (.json).",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None
    json: JsonOption = False
