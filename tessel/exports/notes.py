"""What a plan counts on, and the file of a framework does not say: refused, or told beside it.

What is told stands in the file's comments, too: it is what a trainer has to do itself. Names of files and
options stay in the frameworks' own modules. Checked in tests/tessel/exports/test_recipe.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from tessel.engine.actions import ActionKind
from tessel.errors import ScheduleError
from tessel.exports.recipe import Recipe
from tessel.exports.roles import Role

_PART = "+"
"""Ends the name of a part of a layer (`tuner.stages.cut_points`)."""

_TIES = {
    "deepspeed": "give their entries of `layers` as TiedLayerSpec with one key",
    "megatron": "leave --untie-embeddings-and-output-weights out",
}
_UNSAFE = r"[^\w.-]"
"""In a comment, of the name of a class."""

_SHAPES = {
    "deepspeed": "where shapes differ, give PipelineModule dynamic_shape=True",
    "megatron": "where shapes differ, set variable_seq_lengths",
}


def require_sharding(recipe: Recipe, framework: str, known: Sequence[str], *, offloads: bool = False) -> None:
    """Refuse a plan whose memory counts on what a framework cannot be told.

    Args:
        framework: as messages call it.
        known: what it divides over the replicas of such a pipeline, beside nothing.
        offloads: whether it keeps optimizer state in the memory of hosts.

    Raises:
        ScheduleError: it is such; says what to plan with.
    """
    if recipe.sharding not in ("none", *known):
        raise ScheduleError(
            f"the plan of {recipe.model} divides {recipe.sharding} over replicas, and {framework} divides "
            f"{' or '.join(known) or 'nothing'} in such a pipeline; plan with --sharding "
            f"{known[-1] if known else 'none'}"
        )
    if "activations" in recipe.offload:
        raise ScheduleError(
            f"the plan of {recipe.model} keeps all activations on the hosts, and {framework} sends fewer "
            "there from a pipeline, or none; plan with --offload none or optimizer"
        )
    if recipe.offload != "none" and not offloads:
        raise ScheduleError(
            f"the plan of {recipe.model} keeps the {recipe.offload}'s state on the hosts and updates on the "
            f"device, which {framework} is not told yet; plan with --offload none"
        )


def require_layers(recipe: Recipe, framework: str) -> None:
    """Refuse a recipe of several copies, without layers, or with a stage that ends within one.

    Raises:
        ScheduleError: it is such; says what is not.
    """
    if recipe.copies > 1:
        raise ScheduleError(
            f"{recipe.model} runs {recipe.copies} copies of its pipeline on the same ranks, and {framework} "
            "runs one; plan with --placement vshape, or use --to torch"
        )
    if not recipe.cuts:
        raise ScheduleError(
            f"{recipe.model} is a schedule, which names no layers, and {framework} is told which "
            f"layers each "
            "stage has; give a plan of `tessel plan` or `tessel tune`"
        )
    part = next((layer for layer in recipe.layers if layer.endswith(_PART)), None)
    if part is not None:
        raise ScheduleError(
            f"a stage of {recipe.model} ends within a layer, after {part!r}, and {framework} is told whole "
            "layers; tune it with a placement that is named, or with --cut"
        )


def require_one_degree(recipe: Recipe, framework: str) -> None:
    """Refuse a plan whose stages have tensor-parallel degrees of their own.

    Raises:
        ScheduleError: it is such; says what to plan with.
    """
    if recipe.stage_degrees:
        raise ScheduleError(
            f"the plan's stages have tensor-parallel degrees {recipe.stage_degrees}, and {framework} has one "
            "for a whole model; plan with one --tensor-parallel, or export to markdown"
        )


def notes_of(recipe: Recipe, framework: str) -> list[str]:
    """Return what the user of a file has to know or to do, a sentence or two each.

    Args:
        framework: whose file it is, as `--to` names it; `primus` is told what `megatron` is.
    """
    if framework == "markdown":
        return [*device_notes(recipe), *weight_notes(recipe)]
    framework = "megatron" if framework == "primus" else framework
    return [
        *device_notes(recipe),
        *(_trainer_notes(recipe) if framework == "torch" else ()),
        *(_norm_notes(recipe) if framework == "megatron" else ()),
        *class_notes(recipe, framework),
        *weight_notes(recipe),
        *tie_notes(recipe, framework),
        *overlap_notes(recipe),
    ]


def device_notes(recipe: Recipe) -> list[str]:
    """Return which device each rank runs on; nothing where rank i is device i.

    Frameworks number the ranks of a job by rank of the pipeline, then by replica and part of a layer.
    """
    order = [device for devices in recipe.rank_devices for device in devices]
    if not order:
        return []
    listed = ",".join(map(str, order))
    return [
        f"The plan orders the devices: ranks 0 to {len(order) - 1} of the job run on devices {listed}, in "
        f"this order; on one node start it with CUDA_VISIBLE_DEVICES={listed}."
    ]


def _trainer_notes(recipe: Recipe) -> list[str]:
    """Return degrees and training state, of which orders alone say nothing."""
    degrees = {
        "replicas": recipe.data_parallel,
        "tensor-parallel devices": recipe.tensor_parallel,
        "context-parallel devices": recipe.context_parallel,
        "expert-parallel devices": recipe.expert_parallel,
    }
    told = [f"{count} {what}" for what, count in degrees.items() if count > 1]
    told += [f"sharding of {recipe.sharding}"] if recipe.sharding != "none" else []
    told += [f"offload of {recipe.offload}"] if recipe.offload != "none" else []
    again = [str(stage) for stage, recomputes in enumerate(recipe.recompute) if recomputes]
    told += [f"recomputation in stages {', '.join(again)}"] if again else []
    return [f"The orders do not say {', '.join(told)}: set it in your trainer."] if told else []


def _norm_notes(recipe: Recipe) -> list[str]:
    """Return where Megatron runs a norm that the plan has at the end of the stage before the head's."""
    roles = recipe.roles_of_stages()
    placed = [(role, stage) for stage, own in enumerate(roles) for role in own]
    head = next((stage for role, stage in placed if role is Role.HEAD), None)
    rows = [row for row, (role, stage) in enumerate(placed) if role is Role.NORM and stage != head]
    if not rows:
        return []
    return [f"Megatron runs {_listed(rows)}, a norm, with the head in stage {head}, not in the stage before."]


def class_notes(recipe: Recipe, framework: str) -> list[str]:
    """Return the classes of micro-batches as the file numbers them; nothing where all are alike.

    DeepSpeed and Megatron read them as their first stage does, torch as its last one.
    """
    batch = recipe.schedule.classes
    if batch is None:
        return []
    stage = 0 if framework in _SHAPES else recipe.num_stages - 1
    ran = [
        action.micro_batch
        for own in recipe.actions
        for action in own
        if action.stage == stage and action.kind is ActionKind.FORWARD
    ]
    runs = [
        f"{re.sub(_UNSAFE, '_', name)}x{len([*same])}"
        for name, same in groupby(batch.names[each] for each in ran)
    ]
    shapes = _SHAPES.get(framework, "torch takes one shape: pad, where they differ")
    return [f"Micro-batches differ: hand over {','.join(runs)}, in this order; {shapes}."]


def weight_notes(recipe: Recipe) -> list[str]:
    """Return the layers that are not trained, or in part."""
    told = [
        f"{what} {_listed(rows)}"
        for what, rows in (
            ("freezes", recipe.frozen),
            ("trains a part of", recipe.adapted),
        )
        if rows
    ]
    return [f"The plan {' and '.join(told)}: set requires_grad in your model."] if told else []


def _listed(rows: Sequence[int]) -> str:
    """Return rows of the profile as runs, from 0 on; names may hold anything, and stand in comments here."""
    runs = [[row for _, row in run] for _, run in groupby(enumerate(rows), lambda pair: pair[1] - pair[0])]
    return ("rows " if len(rows) > 1 else "row ") + ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs
    )


def tie_notes(recipe: Recipe, framework: str) -> list[str]:
    """Return what a trainer has to do for weights that several stages hold, which no order says."""
    notes = []
    for stages in recipe.tied:
        ranks = sorted({recipe.device_of_stage[stage] for stage in stages})
        if framework in _TIES:
            remedy = _TIES[framework]
        elif len(ranks) > 1:
            remedy = f"sum its gradients over ranks {', '.join(map(str, ranks))} before each update"
        else:
            remedy = (
                f"give their modules on rank {ranks[0]} one parameter, and scale gradients yourself "
                "(scale_grads=False): torch divides them once a stage"
            )
        notes.append(f"Stages {', '.join(map(str, stages))} hold one weight: {remedy}.")
    if recipe.copies > 1:
        notes.append(
            f"The pipeline stands {recipe.copies} times on the same ranks: the file of stages beside the "
            "orders says what to sum."
        )
    return notes


def overlap_notes(recipe: Recipe) -> list[str]:
    """Return what tells the user of pairs that run together; nothing where there are none."""
    factor, count = recipe.schedule.overlap_factor, len(recipe.schedule.pairs)
    if factor is None or not count:
        return []
    return [
        f"{count} cells OVERLAP_F_B, priced at {factor:g} of their sum: how both run together is yours, for "
        "torch's runtime by register_custom_function"
    ]
