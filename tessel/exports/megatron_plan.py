"""A plan as Megatron-Core's command-line arguments: the layout, kinds of layers, recomputation, and groups.

Megatron places stages in a loop and chooses the order itself, so that of a plan it takes the cuts, and not
the order. What the cuts give in Megatron's own order is simulated for every group size that it takes; the
shortest that fits is named, and how much longer it is than the plan's. Older ways to cut a model are named
where they do. Checked in tests/tessel/exports/test_megatron_plan.py and test_megatron_flags.py, also against
what Megatron itself builds of them. Source: Megatron-LM, `megatron/training/arguments.py` and
`get_num_layers_to_build`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product

from tessel.engine.actions import schedule_of_actions
from tessel.engine.errors import EngineError
from tessel.errors import ScheduleError, shown
from tessel.exports.megatron import MegatronLayout, group_sizes, megatron_orders
from tessel.exports.notes import notes_of, require_layers, require_sharding
from tessel.exports.recipe import Recipe
from tessel.exports.roles import STATE_ROLES, Role, rows_of
from tessel.schedule import Schedule

MAX_KINDS = 8
"""Runs of layers of one kind that a comment names."""

MAX_GROUP_SIZES = 8
"""Group sizes that are simulated, the smallest first: larger groups hold more activations."""


@dataclass(frozen=True, slots=True)
class MegatronOrder:
    """The order that Megatron runs on a layout.

    Attributes:
        group_size: `microbatch_group_size_per_vp_stage`; None with one chunk a rank.
        schedule: with the plan's blocks.
    """

    group_size: int | None
    schedule: Schedule


def layout_of_recipe(recipe: Recipe) -> MegatronLayout:
    """Return the layout of a recipe's stages.

    Raises:
        ScheduleError: the stages are not placed in a loop, the layers are not known, or Megatron has none
            such.
    """
    require_layers(recipe, "Megatron")
    if not recipe.is_loop:
        raise ScheduleError(
            f"stages are on ranks {', '.join(map(str, recipe.device_of_stage))}, and Megatron places "
            f"them in a "
            "loop over the ranks only; plan with --placement vshape or interleaved"
        )
    stages = recipe.roles_of_stages()
    for role, name in ((Role.EMBEDDING, "embedding"), (Role.HEAD, "head")):
        if not any(role in stage for stage in stages):
            raise ScheduleError(
                f"no layer of {shown(recipe.model)} is an {name} by its name or place, and a layout has one; "
                f"give the profile a row for the embedding and one for the head, or {STATE_ROLES}"
            )
    _check_together(recipe, stages, (Role.EMBEDDING,), "its one embedding, E")
    heads, norms = ([*rows_of(role, recipe.layers, stages)] for role in (Role.HEAD, Role.NORM))
    before = heads[0][0] - 1
    if not all(stage == before and set(stages[before]) - {Role.NORM} for stage, _ in norms):
        _check_together(
            recipe, stages, (Role.NORM, Role.HEAD), "its one loss layer, L, with the norm before it"
        )
    return MegatronLayout(tuple(map(_letters, stages)), recipe.devices)


def _check_together(
    recipe: Recipe, stages: tuple[tuple[Role, ...], ...], roles: tuple[Role, ...], what: str
) -> None:
    """Refuse rows in several stages that are one layer of Megatron."""
    held = sorted(row for role in roles for row in rows_of(role, recipe.layers, stages))
    (first, layer), (last, other) = held[0], held[-1]
    if first != last:
        raise ScheduleError(
            f"row {shown(layer)!r} is in stage {first} and {shown(other)!r} in stage {last}, and Megatron "
            f"holds both in {what}; make them one row of the profile and plan again"
        )


def orders_of_megatron(recipe: Recipe, layout: MegatronLayout) -> tuple[MegatronOrder, ...]:
    """Return what Megatron would run, a schedule for each group size, the shortest that fits first.

    Empty where the plan's blocks cannot be run so: Megatron's backwards are joint.
    """
    sizes = group_sizes(layout.pipeline, recipe.micro_batches)[:MAX_GROUP_SIZES]
    found = []
    for size in sizes if layout.virtual > 1 else (None,):
        orders = megatron_orders(layout, recipe.micro_batches, group_size=size)
        try:
            schedule = schedule_of_actions(recipe.schedule.placement, orders, found_by="megatron")
        except EngineError:
            return ()
        found.append(MegatronOrder(size, schedule))
    limits = recipe.schedule.memory
    return tuple(
        sorted(
            found,
            key=lambda order: (not _fits(order.schedule, limits), order.schedule.makespan),
        )
    )


def megatron_arguments(recipe: Recipe) -> str:
    """Return Megatron's arguments as a file of lines, with what its order costs as comments.

    Raises:
        ScheduleError: see `layout_of_recipe`; Megatron takes no group size with these micro-batches, or does
            not divide over replicas what the plan does.
    """
    require_sharding(recipe, "Megatron", ("optimizer",), offloads=recipe.sharding == "optimizer")
    layout = layout_of_recipe(recipe)
    if layout.virtual > 1 and not group_sizes(layout.pipeline, recipe.micro_batches):
        raise ScheduleError(
            f"Megatron interleaves no {recipe.micro_batches} micro-batches on {layout.pipeline} ranks; "
            f"use at "
            "least as many micro-batches as ranks"
        )
    orders = orders_of_megatron(recipe, layout)
    lines = [
        f"# Megatron-Core arguments for {json.dumps(recipe.model)}",
        *_comments(recipe, orders),
        *_without_layout(layout),
        # xargs takes the quotes off, which a shell does not do to what a command prints.
        f"# Start it with: grep -v '^#' THIS_FILE | xargs torchrun --nproc-per-node {recipe.processes} "
        "pretrain_gpt.py YOUR_OTHER_ARGUMENTS",
        f"--pipeline-model-parallel-size {layout.pipeline}",
        f"--num-layers {layout.num_decoder_layers}",
        f"--pipeline-model-parallel-layout {shlex.quote(str(layout))}",
    ]
    lines += recompute_flags(recipe.recompute)
    frequency = moe_layer_freq(_blocks(recipe))
    if frequency is not None:
        lines.append(f"--moe-layer-freq {shlex.quote(frequency)}")
    if "m" in layout.layers:
        lines.append(f"--mtp-num-layers {layout.layers.count('m')}")
    if layout.virtual > 1:
        size = orders[0].group_size if orders else layout.pipeline
        lines.append(f"--microbatch-group-size-per-virtual-pipeline-stage {size}")
    for kind, degree in (
        ("tensor-model", recipe.tensor_parallel),
        ("context", recipe.context_parallel),
        ("expert-model", recipe.expert_parallel),
    ):
        if degree > 1:
            lines.append(f"--{kind}-parallel-size {degree}")
    if recipe.sharding != "none":
        lines.append("--use-distributed-optimizer")
    if recipe.offload != "none":
        lines.append("--offload-optimizer-states")
    if recipe.micro_batch is not None:
        batch = recipe.micro_batch * recipe.micro_batches * recipe.data_parallel
        lines += [f"--micro-batch-size {recipe.micro_batch}", f"--global-batch-size {batch}"]
    return "\n".join([*lines, ""])


def _letters(roles: tuple[Role, ...]) -> str:
    """Return a stage's letters; rows that are the embedding together, or norm and head, are one letter.

    The norm has no letter: Megatron runs it before the output layer, or behind the last transformer layer.
    """
    lettered = [role for role in roles if role is not Role.NORM]
    once = (Role.EMBEDDING, Role.HEAD)
    return "".join(
        str(role) if role in once else str(role) * len(list(same)) for role, same in groupby(lettered)
    )


def _kinds(recipe: Recipe) -> list[str]:
    """Return a comment where transformer layers are of several kinds, one letter in the layout."""
    blocks = _blocks(recipe)
    kinds = [_kind_of_layer(layer) for layer in blocks]
    runs = [f"{len(list(same))} {json.dumps(kind)}" for kind, same in groupby(kinds)]
    if len(set(kinds)) < 2 or moe_layer_freq(blocks) is not None:
        return []
    more = f", … in {len(runs)} runs" if len(runs) > MAX_KINDS else ""
    return [
        f"# The transformer layers, t, are {', '.join(runs[:MAX_KINDS])}{more}: which layer is of "
        f"which kind is "
        "Megatron's to be told (--moe-layer-freq)."
    ]


def _without_layout(layout: MegatronLayout) -> list[str]:
    """Return a comment with the flags of releases that take no layout."""
    flags = split_flags(layout)
    if flags is None:
        return []
    said = " ".join(flags) or "no flag at all"
    return [f"# A release without layouts makes these cuts by {said}."]


def _blocks(recipe: Recipe) -> list[str]:
    return [layer for _, layer in rows_of(Role.BLOCK, recipe.layers, recipe.roles_of_stages())]


def _comments(recipe: Recipe, orders: tuple[MegatronOrder, ...]) -> list[str]:
    found = [*(f"# {note}" for note in notes_of(recipe, "megatron")), *_kinds(recipe)]
    if not orders:
        found.append("# Megatron runs joint backwards in an order of its own; the plan's order is left out.")
    elif orders[0].schedule.makespan == recipe.schedule.makespan:
        found.append("# Megatron's own order takes as long as the plan's.")
    else:
        ratio = orders[0].schedule.makespan / recipe.schedule.makespan - 1
        compared = "longer" if ratio > 0 else "less"
        found.append(
            f"# Megatron runs an order of its own, whose pipeline takes {abs(ratio):.1%} {compared} than "
            f"the plan's."
        )
    if orders and not _fits(orders[0].schedule, recipe.schedule.memory):
        found.append("# In that order it does not keep the plan's memory limit.")
    if any(recipe.recompute) and not all(recipe.recompute):
        stages = [str(stage) for stage, recomputes in enumerate(recipe.recompute) if recomputes]
        found.append(
            f"# The plan recomputes stages {', '.join(stages)} alone; Megatron does all, which takes longer."
        )
    return found


def _fits(schedule: Schedule, limits: tuple[int, ...] | None) -> bool:
    return limits is None or all(
        held <= limit for held, limit in zip(schedule.peak_memory, limits, strict=True)
    )


_NUMBER = re.compile(r"[0-9]+")
_EXPERTS = re.compile(r"moe|expert|sparse", re.IGNORECASE)


def _kind_of_layer(name: str) -> str:
    """Return a layer's name without what numbers it."""
    return _NUMBER.sub("#", name)


def moe_layer_freq(blocks: Sequence[str]) -> str | None:
    """Return Megatron's `--moe-layer-freq` of layers of two kinds, of which one has experts; else None.

    Args:
        blocks: names of all transformer layers, in model order.
    """
    kinds = [_kind_of_layer(name) for name in blocks]
    sparse = {kind for kind in kinds if _EXPERTS.search(kind)}
    if len(set(kinds)) != 2 or len(sparse) != 1:
        return None
    runs = [
        (int(is_sparse), len(list(same))) for is_sparse, same in groupby(kind in sparse for kind in kinds)
    ]
    return "(" + "+".join(f"[{is_sparse}]*{count}" for is_sparse, count in runs) + ")"


def recompute_flags(recompute: Sequence[bool]) -> list[str]:
    """Return the flags by which Megatron recomputes whole layers: of all stages, where any is to."""
    if not any(recompute):
        return []
    return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]


def split_flags(layout: MegatronLayout) -> list[str] | None:
    """Return flags that cut a model as a layout does, for releases that take none; None where there are none.

    Layers are even once the embedding and the loss count as one each, or the first and the last rank have a
    number of their own.
    """
    counts = [stage.count("t") for stage in layout.stages]
    if "m" in layout.layers or "E" not in layout.stages[0] or "L" not in layout.stages[-1]:
        return None
    chunks = [f"--num-virtual-stages-per-pipeline-rank {layout.virtual}"] if layout.virtual > 1 else []
    for embedding, loss in product((0, 1), repeat=2):
        padded = [counts[0] + embedding, *counts[1:]]
        padded[-1] += loss
        if len(set(padded)) == 1 and padded[0]:
            accounted = [
                *(["--account-for-embedding-in-pipeline-split"] if embedding else []),
                *(["--account-for-loss-in-pipeline-split"] if loss else []),
            ]
            return [*accounted, *chunks]
    first, *middle, last = counts  # one stage alone is even
    if layout.virtual > 1 or len(set(middle)) > 1 or not min(counts):
        return None
    flags = [f"--decoder-first-pipeline-num-layers {first}"] if not middle or first != middle[0] else []
    return flags + ([f"--decoder-last-pipeline-num-layers {last}"] if middle and last != middle[0] else [])
