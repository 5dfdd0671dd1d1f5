"""The options of `tessel plan`: the devices, the step, what may be chosen, and what is written.

A model's `config.json` has some of its own: the GPU, and how the model is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.options import completion
from scripts.options.search_options import (
    EQUAL_WORK,
    HopUsOption,
    JsonOption,
    link_option,
    optimizer_option,
    work_help,
)
from scripts.options.tuning_options import (
    CostModelOption,
    MeasuringOptions,
    PriceOption,
    ShapeOption,
    ValueOption,
)
from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import check_choice, check_folder
from tessel.jobs.inputs.config_options import DEFAULT_SEQ, DISPATCHES, DTYPES, GPUS, TOWERS
from tessel.jobs.inputs.plan_options import (
    DEFAULT_HOP_US,
    DEFAULT_LINK,
    DEFAULT_MICRO_BATCHES_A_DEVICE,
    DEFAULT_OPTIMIZER,
    DEFAULT_TIME_LIMIT_S,
    DEFAULT_WORK,
    OFFLOADS,
    PLACEMENTS,
    RUNTIMES,
    SHARDINGS,
)
from tessel.jobs.shown.pictures import FORMATS as PICTURE_FORMATS


@dataclass(frozen=True, kw_only=True)
class ConfigCommandOptions:
    """What a config does not say."""

    gpu: Annotated[
        str | None,
        typer.Option(
            help="GPU whose data sheet prices a config.json, and gives memory and links that are not given: "
            f"{', '.join(GPUS)}; needed with a config.json.",
            autocompletion=completion.one_of(*GPUS),
        ),
    ] = None
    seq: Annotated[
        int | None, f"Tokens of a sequence.  [default: {DEFAULT_SEQ}, or the most that the model takes]"
    ] = None
    dtype: Annotated[
        str,
        typer.Option(help="Data type of products: bf16 or fp8.", autocompletion=completion.one_of(*DTYPES)),
    ] = "bf16"
    mfu: Annotated[float | None, "Share of the peak at which layers run, in place of a roofline: 0.4."] = None
    efficiency: Annotated[
        float | None, "Share of the peak that products reach, in place of the data sheet's."
    ] = None
    imbalance: Annotated[float, "Rows of the fullest device's experts over the mean; 1 is balanced."] = 1.0
    recompute: Annotated[
        str | None,
        "Parts of layers that run their forward again, by Megatron's names: core_attn, layernorm, "
        "mla_up_proj, mlp, moe, moe_act, shared_experts.  [default: none]",
    ] = None
    overlap_tensor: Annotated[
        bool, "Exchanges of tensor parallelism run beside the products next to them."
    ] = False
    dispatch: Annotated[
        str,
        typer.Option(
            help="How tokens go to experts: `deepep`, once to each node; `nccl`, once for each expert.",
            autocompletion=completion.one_of(*DISPATCHES),
        ),
    ] = "deepep"
    pictures: Annotated[int, "Pictures of a sequence, seen by the model's tower; 0 plans text alone."] = 0
    picture_tokens: Annotated[
        int | None,
        "Tokens that the language model reads of a picture.  [default: the config's, where it says]",
    ] = None
    frozen_tower: Annotated[bool, "The tower is not trained, but for its projector."] = False
    tower: Annotated[
        str,
        typer.Option(
            help="Where the tower runs: `first`, cut with the language model; `own`, on devices of its own; "
            "`bubbles`, a copy on each device, in idle time; `auto`, the fastest of these.",
            autocompletion=completion.one_of(*TOWERS),
        ),
    ] = "first"


FORMATS = (
    "csv",
    "json",
    "plan",
    "saved-plan",
    "stages",
    "trace",
    "nvtx",
    "log",
)
"""Of profiles, placements and frameworks, written down since loading them takes longer than a completion may;
tests/scripts/commands/test_plan.py holds them against the real ones."""


def _check_format(text: str | None) -> str | None:
    return None if text is None else check_choice("--format", text, FORMATS)


def _read_batch(text: str) -> str | int:
    """Return a number of samples, or what is no number as it is."""
    return int(text) if text.isascii() and text.isdecimal() else text


def _read_degree(text: str | None) -> str | int | None:
    """Return one degree as a number, and what is none as it is."""
    return text if text is None else _read_batch(text)


@dataclass(frozen=True, kw_only=True)
class PlanCommandOptions(ConfigCommandOptions, MeasuringOptions):
    """What a plan is made for and from, and where it goes."""

    devices: Annotated[int, "Devices in all, such as 16."]
    memory: Annotated[
        str | None, "Memory of one device, such as 80GiB; the GPU's, or unlimited, if left out."
    ] = None
    device_memory: Annotated[
        str | None, "Memory of each device where they differ: 80GiB,80GiB,40GiB,40GiB."
    ] = None
    device_speed: Annotated[
        str | None, "Speed of each device, relative to the profiled one: 1,1,0.5,0.5."
    ] = None
    link: Annotated[str | None, link_option(default=f"{DEFAULT_LINK}, or the network of --gpu")] = None
    hop_us: HopUsOption = DEFAULT_HOP_US
    collective_link: Annotated[
        str | None, "Bandwidth of a device in an all-reduce of gradients.  [default: as --link]"
    ] = None
    node_devices: Annotated[int | None, "Devices per node, connected by --node-link."] = None
    node_link: Annotated[str | None, "Bandwidth between devices of one node, such as 450GB/s."] = None
    optimizer: Annotated[
        str | None, optimizer_option(default=f"{DEFAULT_OPTIMIZER}, or adam-mixed with --gpu")
    ] = None
    runtime: Annotated[
        str,
        typer.Option(
            help="Runtime: `overlapped`, transfers overlap computation; `deepspeed`, they block it.",
            autocompletion=completion.one_of(*RUNTIMES),
        ),
    ] = "overlapped"
    sharding: Annotated[
        str | None,
        typer.Option(
            help="What replicas divide among them: `none`; `optimizer`, its state (ZeRO-1); `gradients`, "
            "these too (ZeRO-2); `parameters`, these too (ZeRO-3, FSDP); `auto`, whichever is fastest.  "
            "[default: none, or optimizer with --gpu]",
            autocompletion=completion.one_of(*SHARDINGS),
        ),
    ] = None
    offload: Annotated[
        str,
        typer.Option(
            help="What lies in the hosts' memory: `none`; `optimizer`, its state, which each update fetches "
            "and returns over --host-link; `activations`, which leave in forwards and return for backwards; "
            "`optimizer+activations`; `auto`, whichever is fastest.",
            autocompletion=completion.one_of(*OFFLOADS),
        ),
    ] = "none"
    host_link: Annotated[
        str | None,
        "Bandwidth between a device and its host one way, such as 50GB/s.",
    ] = None
    overlap_factor: Annotated[
        float | None,
        "Share of their sum that a forward and a backward take that run together on a device: "
        "0.6; each runs by itself if left out.",
    ] = None
    global_batch: Annotated[
        int | None, "Samples of a training step, such as 512; as --micro-batches says if left out."
    ] = None
    micro_batches: Annotated[
        int | None,
        "In place of --global-batch: micro-batches of a step over all replicas, of the profile's "
        f"smallest size.  [default: {DEFAULT_MICRO_BATCHES_A_DEVICE} a device]",
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            help=f"Which device runs which stage: {', '.join(PLACEMENTS)}, or a placement file.",
            autocompletion=completion.one_of(*PLACEMENTS),
        ),
    ] = "auto"
    data_parallel: Annotated[int | None, "Replicas; found if left out."] = None
    pipeline: Annotated[int | None, "Devices of a pipeline; found if left out."] = None
    tensor_parallel: Annotated[
        str | None,
        typer.Option(
            help="Tensor-parallel degree, of those in the profile, or of each stage: 8,8,4x6; `own`: of each "
            "stage, searched; one for all, found, if left out.",
            callback=_read_degree,
        ),
    ] = None
    context_parallel: Annotated[
        int | None, "Context-parallel degree, of those in the profile; found if left out."
    ] = None
    expert_parallel: Annotated[
        int | None, "Expert-parallel degree, of those in the profile; found if left out."
    ] = None
    micro_batch: Annotated[
        int | None,
        "Samples of a micro-batch: one of the profile's sizes, or what it was measured at where the "
        "file does not say.",
    ] = None
    chunks: Annotated[int | None, "Stages per device; found if left out."] = None
    by_hand: Annotated[
        str | None,
        "Compare with a layout of yours: layers of each stage (0-5,6-11), a layout of Megatron "
        "(Et*5|t*6L), or a saved plan (.json).",
    ] = None
    no_recompute: Annotated[bool, "Keep all activations; no recomputation."] = False
    joint_backward: Annotated[bool, "Do not split backwards into halves."] = False
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Format of the profile: {', '.join(FORMATS)}; detected if left out.",
            autocompletion=completion.one_of(*FORMATS),
            callback=_check_format,
        ),
    ] = None
    num_layers: Annotated[
        int | None, "Layers of the model, first and last included, where the profile repeats one block."
    ] = None
    batch: Annotated[
        str,
        typer.Option(
            help="Micro-batches that differ, by length or class of a table: 4096x6,8192x2; of a zoo model, "
            "samples of one.  [default: 1]",
            show_default=False,
            callback=_read_batch,
        ),
    ] = "1"
    shape: ShapeOption = None
    value: ValueOption = None
    price: PriceOption = "measured"
    cost_model: CostModelOption = None
    spread: Annotated[
        str | None,
        "How the duration of each block varies: lognormal:0.1, uniform:0.2, or as recorded steps (.csv) or "
        "records (.jsonl) do, in place of a table's column spread; steps get quantiles.",
    ] = None
    robust: Annotated[str | None, "Choose among the best plans by a percentile of the step: p95."] = None
    work: Annotated[
        float | None, work_help(f"{DEFAULT_WORK:g}", promise=f"{EQUAL_WORK}, and more finds no longer step")
    ] = None
    time_limit: Annotated[
        str | None, f"Time limit of the search, such as 10s.  [default: {DEFAULT_TIME_LIMIT_S:g}s]"
    ] = None
    save: Annotated[
        Path | None, "Write the plan to this file, such as plan.json; kept nowhere if left out."
    ] = None
    save_table: Annotated[
        Path | None,
        "Write the layers' costs to this file (.csv or .json), to edit, to fill in what a trace "
        "does not show, and to plan from.",
    ] = None
    out: Annotated[
        Path | None,
        "Draw the plan: .svg .png .pdf a picture, .html a page, .json a trace for Perfetto, .txt "
        "text, .md a report; none if left out.",
    ] = None
    json: JsonOption = False

    def check(self) -> None:
        """Refuse files that could not be written, before anything is read.

        Raises:
            UsageError: there is one.
        """
        check_folder("--save", self.save)
        check_folder("--save-table", self.save_table, suffixes=(".csv", ".json"))
        check_folder("--out", self.out, suffixes=PICTURE_FORMATS)
        if self.save is not None and self.out is not None and self.save.absolute() == self.out.absolute():
            raise UsageError(f"--save and --out are both {self.save}; name two files")
