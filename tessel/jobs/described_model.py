"""A model described by its `config.json`: its predicted profile at the degrees that a plan may choose.

Degrees are powers of two. Of tensor parallelism those within a domain of fast links, at most eight, that
divide the heads; of context parallelism those that leave a device at least `LEAST_TOKENS` of a sequence; of
expert parallelism those that divide the experts; what the user fixes stands alone. Checked in
tests/tessel/jobs/test_described_model.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.config_options import DEFAULT_SEQ

if TYPE_CHECKING:
    from tessel.architectures.architecture import Architecture, Block
    from tessel.architectures.gpu_sheets import GpuSheet
    from tessel.architectures.kernels import KernelPrice
    from tessel.architectures.shape import Recipe, Shape
    from tessel.jobs.inputs.plan_options import PlanOptions
    from tessel.profiles.profile import Profile

LEAST_TOKENS = 4096
"""Of a sequence on a device, where the degree of context parallelism is left open: as many as Llama-3.1 405B
has in MLPerf; with fewer, keys take long to pass on beside little attention."""

MICRO_BATCHES = (1, 2, 4)
"""Sizes that are tried where none is given."""

MOST_TENSOR_PARALLEL = 8
MOST_EXPERT_PARALLEL = 64

INTERVAL = (0.67, 1.64)
"""Of measured over predicted times, nine of ten of 184 layouts of Megatron-Bridge
(benchmarks/reports/published_runs_2026-11.md)."""


def names_config(source: str) -> bool:
    """Whether a path is a `config.json`, or a folder that holds one."""
    path = Path(source)
    if path.is_dir():
        return (path / "config.json").is_file()
    if path.suffix != ".json" or not path.is_file():
        return False
    from tessel.architectures.config import is_config

    return is_config(path.read_bytes())


def profile_of_config(source: str | os.PathLike[str], options: PlanOptions) -> Profile:
    """Return the predicted profile of the model that a config describes.

    Raises:
        DocumentError: the config cannot be read, or its model is unknown.
        UsageError: no GPU is named, or a degree does not go with the model.
    """
    from tessel.architectures.families import load_architecture
    from tessel.architectures.layer_costs import profile_of_architecture
    from tessel.architectures.roofline import Roofline
    from tessel.architectures.shape import Recipe

    model = load_architecture(Path(source))
    sheet = options.sheet()
    if sheet is None:
        raise UsageError(f"{source} describes a model, and its times depend on the GPU; give --gpu, as h100")
    recipe = Recipe(
        tokens=options.seq or min(DEFAULT_SEQ, model.max_tokens or DEFAULT_SEQ),
        dtype=options.dtype,  # type: ignore[arg-type]  # checked with the options
        recompute=options.recomputed,
        overlaps_tensor=options.overlap_tensor,
        imbalance=options.imbalance,
        dispatch=options.dispatch,  # type: ignore[arg-type]
    )
    roofline = Roofline(
        sheet=sheet,
        dtype=recipe.dtype,
        efficiency=options.efficiency,
        mfu=options.mfu,
        dispatch=recipe.dispatch,
    )
    price: KernelPrice = roofline
    if options.price == "model":
        from tessel.architectures.learned import learned_price

        price = learned_price(roofline)
    model = _with_pictures(model, recipe, options)
    update_ratio, gradient_ratio = _update_ratios(options)
    return profile_of_architecture(
        model,
        shapes_of(model, recipe, sheet, options),
        price,
        device=f"{sheet.name} (predicted)",
        notes=(describe_prediction(model, recipe, sheet, options),),
        interval=INTERVAL,
        update_ratio=update_ratio,
        gradient_ratio=gradient_ratio,
    )


def _with_pictures(model: Architecture, recipe: Recipe, options: PlanOptions) -> Architecture:
    """Return the model with the tower that sees so many pictures; without it where there are none.

    Raises:
        UsageError: no tower is known, or pictures have more tokens than a sequence.
    """
    tower = model.tower
    if not options.pictures:
        note = f"{model.name}: text alone is planned; --pictures says how many its tower sees of a sequence"
        return model if tower is None else replace(model, tower=None, notes=(*model.notes, note))
    if tower is None:
        from tessel.architectures.towers import TOWERS

        raise UsageError(
            f"--pictures {options.pictures}: {model.name} has no tower of a kind that is known "
            f"({', '.join(TOWERS)}); leave it out"
        )
    tokens = options.picture_tokens or tower.tokens
    if not tokens:
        raise UsageError(
            f"--pictures {options.pictures}: how many tokens a picture of {model.name} has depends on its "
            "size; give --picture-tokens, as 1024"
        )
    if tower.tokens and tokens != tower.tokens:
        raise UsageError(
            f"--picture-tokens {tokens}: every picture of {model.name} has {tower.tokens}; leave it out"
        )
    if options.pictures * tokens > recipe.tokens:
        raise UsageError(
            f"--pictures {options.pictures} of {tokens} tokens each are more than the {recipe.tokens} of "
            "--seq; give fewer, or a longer sequence"
        )
    seen = replace(tower, tokens=tokens, pictures=options.pictures, is_frozen=options.frozen_tower)
    return replace(model, tower=seen)


def _update_ratios(options: PlanOptions) -> tuple[float, float]:
    """Return the bytes for each byte of weights that an optimizer step moves, and that gradients have.

    Gradients are read for their norm, scaled in place and read by the fused step.
    """
    from tessel.planning.cluster import OPTIMIZERS

    optimizer = OPTIMIZERS[options.chosen_optimizer]
    if not optimizer.updates:
        return 0.0, 0.0
    return 2 + 4 * optimizer.gradient_ratio + 2 * optimizer.state_ratio, optimizer.gradient_ratio


def describe_prediction(model: Architecture, recipe: Recipe, sheet: GpuSheet, options: PlanOptions) -> str:
    """Say what the predicted times assume, in a sentence."""
    if options.price == "model":
        how = "kernels as measured on such GPUs"
    elif options.mfu is not None:
        how = f"{options.mfu:.0%} of the peak"
    else:
        share = sheet.shares.sustained * (
            sheet.shares.fp8 if recipe.dtype == "fp8" else sheet.shares.products
        )
        how = f"a roofline with products at {options.efficiency or share:.0%} of the peak"
    experts = f", experts' fullest device at {recipe.imbalance:g} of the mean" if model.experts else ""
    return (
        f"times are predicted, not measured: {sheet.name} in {recipe.dtype}, {recipe.tokens} tokens a "
        f"sequence, {how}{experts}; {model.parameters / 1e9:.4g} billion parameters"
    )


def shapes_of(
    model: Architecture, recipe: Recipe, sheet: GpuSheet, options: PlanOptions
) -> tuple[Shape, ...]:
    """Return the sizes and degrees to price.

    Raises:
        UsageError: a degree that was given does not go with the model or the sequence.
    """
    from tessel.architectures.shape import Shape

    heads = _heads(model.blocks)
    tower_heads = heads if model.tower is None else _heads(model.tower.blocks)
    most = min(MOST_TENSOR_PARALLEL, sheet.domain, options.devices)
    tensor = _degrees(options.degree, most, math.gcd(heads, tower_heads))
    if isinstance(options.degrees, tuple):
        tensor = tuple(sorted(set(options.degrees)))
    _check_divides("--tensor-parallel", tensor, heads, "attention heads")
    _check_divides("--tensor-parallel", tensor, tower_heads, "attention heads of the tower")
    context = _degrees(
        options.context_parallel, min(recipe.tokens // LEAST_TOKENS, options.devices), recipe.tokens
    )
    _check_divides("--context-parallel", context, recipe.tokens, "tokens of a sequence")
    expert: tuple[int, ...] = (1,)
    if not model.experts and (options.expert_parallel or 1) > 1:
        raise UsageError(
            f"--expert-parallel {options.expert_parallel} has nothing to divide, as {model.name} has no "
            "routed experts; leave it out"
        )
    if model.experts:
        expert = _degrees(options.expert_parallel, min(MOST_EXPERT_PARALLEL, options.devices), model.experts)
    _check_divides("--expert-parallel", expert, model.experts or 1, "experts")
    batch = options.global_batch
    sizes = (
        (options.micro_batch,)
        if options.micro_batch
        else tuple(size for size in MICRO_BATCHES if batch is None or batch % size == 0)
    )
    return tuple(
        Shape(
            recipe=recipe,
            micro_batch=size,
            tensor_parallel=each_tensor,
            context_parallel=each_context,
            expert_parallel=each_expert,
        )
        for size in sizes
        for each_tensor in tensor
        for each_context in context
        for each_expert in expert
        if _can_be_used(options, each_tensor, each_context, each_expert)
    )


def _can_be_used(options: PlanOptions, tensor: int, context: int, expert: int) -> bool:
    """Whether degrees go with the devices; other stages may have what one of its own degree leaves over."""
    if options.degrees is not None and options.degree is None:
        return tensor * context <= options.devices and tensor * expert <= options.devices
    return options.devices % (tensor * context) == 0 and options.devices // tensor % expert == 0


def _heads(blocks: Sequence[Block]) -> int:
    """Return the heads of the blocks' attention, or as many as anything is divided by without any."""
    from tessel.architectures.architecture import Attention, LatentAttention

    attentions = (
        part for block in blocks for part in block.parts if isinstance(part, Attention | LatentAttention)
    )
    return next((part.heads for part in attentions), MOST_TENSOR_PARALLEL)


def _degrees(given: int | None, most: int, divided: int) -> tuple[int, ...]:
    """Return the degree that was given, or the powers of two that divide what is divided."""
    if given is not None:
        return (given,)
    powers = (2**exponent for exponent in range(max(1, most).bit_length()))
    return tuple(power for power in powers if divided % power == 0)


def _check_divides(option: str, degrees: tuple[int, ...], divided: int, what: str) -> None:
    for degree in degrees:
        if divided % degree:
            raise UsageError(
                f"{option} {degree} does not divide the {divided} {what}; give one that does, or leave it out"
            )
