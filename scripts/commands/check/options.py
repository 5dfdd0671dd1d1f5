"""The options of `tessel check`: what prices the stages, and how long to look for something better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from scripts.options.cluster_options import HopUsOption, link_option, optimizer_option
from scripts.options.search_options import JsonOption, TimeLimitOption, work_help
from tessel.jobs.inputs.check_options import DEFAULT_WORK
from tessel.jobs.inputs.plan_options import DEFAULT_HOP_US, DEFAULT_LINK, DEFAULT_OPTIMIZER


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
