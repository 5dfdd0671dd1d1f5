"""Options of `tessel plan` that go with a model's `config.json`: the GPU, and how the model is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from scripts.options import completion
from tessel.jobs.inputs.config_options import DEFAULT_SEQ, DISPATCHES, DTYPES, GPUS, TOWERS


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
