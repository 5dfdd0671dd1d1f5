"""torchtitan's options for a plan: the modules of each stage, the schedule, the CSV and the micro-batches.

torchtitan builds stages before it reads the CSV, from two options. `module_fqns_per_model_part` lists the
modules of each stage; without it, the model is cut evenly into one stage a rank where
`pipeline_parallel_schedule` names a schedule of single stages, and into two a rank elsewhere. The same name
decides which rank holds which stage: a V for `ZBVZeroBubble` and `DualPipeV`, a loop for all others. The CSV
then replaces the schedule's order, not its stages. So the lists are always given, and the name is one whose
stages are placed as the plan's; a name that torch does not know, such as that of the runtime which executes
the CSV, is refused. Any placement but a loop and a V needs a training loop of one's own.

Options changed between releases, and each refuses those of another, so that a file is written for one
(`Release`; docs/exporting.md has them side by side).

Degrees are all written: torchtitan shards over what is left where `data_parallel_shard_degree` is not. A
module that no stage names becomes None without a word, which the Python files refuse when the model is built.
Checked in tests/tessel/exports/test_torchtitan.py by the rules of these releases, in test_torchtitan_names.py
beside it against their names, and by `make frameworks` with the releases themselves.

Source: torchtitan 0.2.2, 0.3.0 and main of August 2026, `distributed/pipeline_parallel.py`, `config`,
`trainer.py` and `models/llama3`; torch, `get_schedule_class`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pprint import pformat
from string import Template

from tessel.engine.actions import actions_to_csv, cells_of, cells_to_csv, renumbered
from tessel.errors import ScheduleError, shown
from tessel.exports.both_ways import orders_with_transfers
from tessel.exports.notes import notes_of, require_layers, require_sharding
from tessel.exports.recipe import Recipe
from tessel.exports.roles import STATE_ROLES, Role, rows_of
from tessel.planning.sharding import SHARDINGS

SINGLE_STAGE, MULTI_STAGE, V_STAGES = "PipelineScheduleSingle", "PipelineScheduleMulti", "ZBVZeroBubble"
"""Names by which torchtitan builds one stage a rank, several in a loop, and two in a V. The first two are
base classes of torch, which are never made, since the CSV makes torchtitan take the runtime's class
instead."""

Options = Mapping[str, Mapping[str, object]]
"""Options of torchtitan by their table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What a release of torchtitan is told in another way than the others.

    Attributes:
        name: its version, or `main` for what follows the newest release.
        suffix: of the file that configures it.
        head: its models' module of the head.
        counts_tokens: whether batches are given in tokens, and the number of micro-batches by name.
        replicates: whether its models train replicas of a pipeline.
        splits_experts: whether it has an option for tensor parallelism within experts.
    """

    name: str
    suffix: str = ".py"
    head: str = "lm_head"
    counts_tokens: bool = False
    replicates: bool = True
    splits_experts: bool = False


RELEASES = {
    release.name: release
    for release in (
        Release(name="0.2.2", suffix=".toml", head="output", replicates=False, splits_experts=True),
        Release(name="0.3.0"),
        Release(name="main", counts_tokens=True),
    )
}
"""By name, the oldest first."""

NEWEST = RELEASES["0.3.0"]
"""The newest that is released."""


def release_of(version: str) -> Release:
    """Return the release whose options an installed version takes.

    Args:
        version: such as `0.2.1` or `0.3.1.dev20260901`.
    """
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in (version + ".0").split(".")[:2])
    if (major, minor) < (0, 3):
        return RELEASES["0.2.2"]
    is_later = version.split("+")[0] != NEWEST.name
    return RELEASES["main"] if is_later else NEWEST


def orders_csv(recipe: Recipe) -> str:
    """Return the CSV of the orders.

    Raises:
        ScheduleError: torch's runtime does not run the recipe; says why.
    """
    if not recipe.is_trained:
        raise ScheduleError(
            f"{recipe.model} has no backward, and torch's runtime runs one for every stage; give a plan "
            f"for training"
        )
    if recipe.copies > 1:
        recipe.schedule.require_apart("an order both ways")
        return orders_with_transfers(recipe)
    if recipe.schedule.overlap_factor is None:
        return actions_to_csv(renumbered(recipe.actions))
    cells = cells_of(recipe.schedule, recipe.actions)
    flat = renumbered(tuple(tuple(action for cell in row for action in cell) for row in cells))
    rows = []
    for row, own in zip(cells, map(iter, flat), strict=True):
        rows.append(tuple(tuple(islice(own, len(cell))) for cell in row))
    return cells_to_csv(tuple(rows))


def titan_options(recipe: Recipe, release: Release, *, csv: str, keep_names: bool = False) -> Options:
    """Return torchtitan's options by table and name.

    Batches of a release that counts tokens are in sequences.

    Args:
        release: whose options.
        csv: path of the file of orders, as torchtitan will find it.
        keep_names: see `modules_of_stages`.

    Raises:
        ScheduleError: torchtitan cannot place these stages, the layers are not known, or the release does not
            train replicas of a pipeline, or has one recomputation for all stages where the plan's differ.
    """
    has_pipeline = recipe.devices > 1
    replicas = recipe.data_parallel if recipe.sharding == "none" else 1
    if has_pipeline and replicas > 1 and not release.replicates:
        raise ScheduleError(
            f"the plan has {replicas} replicas of a pipeline, and models of torchtitan "
            f"{release.name} stop with 'DDP has not supported > 1D parallelism'; give --version "
            f"{NEWEST.name}, or plan with --data-parallel 1 or --sharding optimizer"
        )
    parallelism: dict[str, object] = {
        **_sharding(recipe),
        "tensor_parallel_degree": recipe.tensor_parallel,
        "context_parallel_degree": recipe.context_parallel,
        **_experts(recipe, release),
        "pipeline_parallel_degree": recipe.devices,
    }
    if has_pipeline:
        parallelism |= {
            "pipeline_parallel_schedule": schedule_name(recipe),
            "pipeline_parallel_schedule_csv": csv,
            "module_fqns_per_model_part": modules_of_stages(recipe, release, keep_names=keep_names),
            **_micro_batches(recipe, release),
        }
    training = dict(_batches(recipe, release))
    if has_pipeline and release.suffix == ".py":
        training["disable_cuda_graphs"] = True
    return {
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": _checkpointing(recipe, release)},
    }


def _sharding(recipe: Recipe) -> Mapping[str, object]:
    """Return over how many replicas training state is divided, and whether weights are, too.

    torch's pipelines gather weights and sum gradients once a step, so that both are whole on every replica
    throughout; without a pipeline, each micro-batch ends with a reduce-scatter.

    Raises:
        ScheduleError: torch does not divide as much.
    """
    divided = SHARDINGS[1:2] if recipe.devices > 1 else SHARDINGS[1:]
    require_sharding(recipe, "torchtitan", divided)
    if recipe.sharding == "none":
        return {"data_parallel_replicate_degree": recipe.data_parallel, "data_parallel_shard_degree": 1}
    return {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": recipe.data_parallel,
        "fsdp_reshard_after_forward": "always" if recipe.sharding == "parameters" else "never",
    }


def _experts(recipe: Recipe, release: Release) -> Mapping[str, object]:
    """Return over how many devices experts are divided.

    Raises:
        ScheduleError: torchtitan divides them otherwise; says how.
    """
    degree, context = recipe.expert_parallel, recipe.context_parallel
    if degree == 1:
        return {}
    sharded = context * (1 if recipe.sharding == "none" else recipe.data_parallel)
    if degree % context or sharded % degree:
        raise ScheduleError(
            f"the plan has expert-parallel degree {degree}, and torchtitan takes multiples of its "
            f"context-parallel degree {context} that divide the {sharded} devices which share out the state; "
            "plan with --sharding optimizer, or another --expert-parallel"
        )
    if recipe.tensor_parallel > 1 and not release.splits_experts:
        raise ScheduleError(
            f"the plan splits experts over {recipe.tensor_parallel} tensor-parallel devices each, and no "
            f"option of torchtitan {release.name} is known to; give --version 0.2.2, or plan with "
            "--tensor-parallel 1"
        )
    split = {"expert_tensor_parallel_degree": recipe.tensor_parallel} if release.splits_experts else {}
    return {"expert_parallel_degree": degree, **split}


def _micro_batches(recipe: Recipe, release: Release) -> Mapping[str, object]:
    if release.counts_tokens:
        return {"num_pp_microbatches": recipe.micro_batches}
    return {"pipeline_parallel_microbatch_size": recipe.micro_batch or 1}


def _batches(recipe: Recipe, release: Release) -> Iterator[tuple[str, object]]:
    """Yield how much one rank and the whole job train on; without a pipeline, gradients accumulate."""
    size = recipe.micro_batch or 1
    whole = size * recipe.micro_batches * recipe.data_parallel
    if release.counts_tokens:
        yield "num_tokens_per_microbatch_per_dp_rank", size
        yield "num_tokens_per_train_step", whole
    else:
        yield "local_batch_size", size * (recipe.micro_batches if recipe.devices > 1 else 1)
        yield "global_batch_size", whole


def _checkpointing(recipe: Recipe, release: Release) -> str:
    """Return the mode of activation checkpointing, `mixed` where stages differ, which a Python file can say.

    Raises:
        ScheduleError: stages differ, and the release has one mode for all.
    """
    if not any(recipe.recompute):
        return "none"
    if all(recipe.recompute):
        return "full"
    if release.suffix == ".py":
        return "mixed"
    stages = ", ".join(str(stage) for stage, again in enumerate(recipe.recompute) if again)
    raise ScheduleError(
        f"the plan recomputes stages {stages} of {recipe.num_stages}, and torchtitan {release.name} "
        f"recomputes in all or in none; give --version {NEWEST.name}, or plan with --no-recompute"
    )


def schedule_name(recipe: Recipe) -> str:
    """Return the schedule by whose name torchtitan places the stages as the recipe does.

    Raises:
        ScheduleError: there is none.
    """
    require_layers(recipe, "torchtitan")
    if recipe.is_loop:
        return SINGLE_STAGE if recipe.num_stages == recipe.devices else MULTI_STAGE
    if recipe.is_v:
        return V_STAGES
    raise ScheduleError(
        f"stages are on ranks {', '.join(map(str, recipe.device_of_stage))}, and torchtitan knows a loop "
        f"over "
        "the ranks and a V with two stages a rank only; plan with --placement vshape, interleaved or zbv, or "
        "use tessel.engine.build_schedule in a loop of your own"
    )


def modules_of_stages(recipe: Recipe, release: Release, *, keep_names: bool = False) -> list[list[str]]:
    """Return the names of each stage's modules.

    Rows are named by their role as in torchtitan's own models: `tok_embeddings`, `layers.0` and so on,
    `norm`, and `output` or `lm_head`. Where no row is the norm, it is with the head.

    Args:
        release: by whose names.
        keep_names: the rows are named as the modules of a model of one's own, and keep their names.

    Raises:
        ScheduleError: the layers are not known, a row is none of these modules, or rows in two stages are one
            of them; names the rows.
    """
    require_layers(recipe, "torchtitan")
    if keep_names:
        return _kept_names(recipe)
    stages = recipe.roles_of_stages()
    predicting = next(rows_of(Role.PREDICTION, recipe.layers, stages), None)
    if predicting is not None:
        raise ScheduleError(
            f"row {shown(predicting[1])!r} predicts several tokens, for which torchtitan splits no "
            f"module off; "
            f"name the rows as the modules of your model are and add --keep-names, or {STATE_ROLES}"
        )
    for role, name in (*_SINGLE, (Role.HEAD, release.head)):
        _check_one_stage(recipe, stages, role, name)
    has_norm = any(Role.NORM in stage for stage in stages)
    blocks = count()
    return [_modules(roles, blocks, release.head, has_norm=has_norm) for roles in stages]


_SINGLE = ((Role.EMBEDDING, "tok_embeddings"), (Role.NORM, "norm"))


def _check_one_stage(recipe: Recipe, stages: Sequence[Sequence[Role]], role: Role, name: str) -> None:
    """Refuse rows of two stages, or two norms, that are one module, and a model without one."""
    held = list(rows_of(role, recipe.layers, stages))
    if not held and role is not Role.NORM:
        raise ScheduleError(
            f"no row of {shown(recipe.model)} is torchtitan's {name} by its name or place, and what no stage "
            f"names is left out of the model; give the profile a row for it, or {STATE_ROLES}"
        )
    if len({stage for stage, _ in held}) > 1 or (role is Role.NORM and len(held) > 1):
        (first, layer), (last, other) = held[0], held[-1]
        raise ScheduleError(
            f"rows {shown(layer)!r} in stage {first} and {shown(other)!r} in stage {last} are both "
            f"torchtitan's {name}, which is one module; make them one row of the profile and plan again, or "
            f"{STATE_ROLES}"
        )


def _modules(roles: Sequence[Role], blocks: Iterator[int], head: str, *, has_norm: bool) -> list[str]:
    names: list[str] = []
    for role in roles:
        match role:
            case Role.EMBEDDING:
                names.append("tok_embeddings")
            case Role.BLOCK:
                names.append(f"layers.{next(blocks)}")
            case Role.NORM:
                names.append("norm")
            case _:
                names += (head,) if has_norm else ("norm", head)
    return list(dict.fromkeys(names))


def _kept_names(recipe: Recipe) -> list[list[str]]:
    """Return the rows as they are, each the name of one module."""
    seen: set[str] = set()
    for layer in recipe.layers:
        if layer in seen or layer.count(".") > 1:
            why = (
                "stands twice among the rows" if layer in seen else "is nested deeper than torchtitan splits"
            )
            raise ScheduleError(
                f"row {shown(layer)!r} {why}; name each row as one module of your model, such as norm or "
                "layers.0, or leave --keep-names out"
            )
        seen.add(layer)
    return [list(recipe.layers_of(stage)) for stage in range(recipe.num_stages)]


def titan_file(recipe: Recipe, release: Release, *, csv: str, keep_names: bool = False) -> str:
    """Return the file that configures a release, TOML or Python.

    Raises:
        ScheduleError: see `titan_options`.
    """
    options = titan_options(recipe, release, csv=csv, keep_names=keep_names)
    heading = [
        f"# torchtitan {release.name}, options for {recipe.model!r}: {recipe.num_stages} stages on "
        f"{recipe.devices} ranks, {recipe.micro_batches} micro-batches.",
        *(f"# {note}" for note in notes_of(recipe, "torchtitan")),
        f"# Start it with: {_start(options, release)}",
    ]
    if release.suffix == ".toml":
        return "\n".join(
            [*heading, "# A module of the model that no stage names is left out of it.", *_tables(options)]
        )
    return "\n".join([*heading, _python(recipe, options, release)])


def _start(options: Options, release: Release) -> str:
    """Return the command that trains, on one node."""
    degrees = (value for name, value in options["parallelism"].items() if name.endswith("_degree"))
    run = f"torchrun --nproc-per-node {math.prod(map(int, map(str, degrees)))} -m torchtitan.train"
    if release.suffix == ".toml":
        return f"{run} --job.config_file THIS_FILE, in this file's folder"
    return f"{run}, with your configuration returned through planned(config)"


def _tables(options: Options) -> Iterator[str]:
    for table, values in options.items():
        yield f"[{table}]"
        for name, value in values.items():
            yield f"{name} = {_value(value)}"
        yield ""


def _value(value: object) -> str:
    if not isinstance(value, list):
        return _toml(value)
    return "\n".join(["[", *(f"    {_toml(each)}," for each in value), "]"])


def _python(recipe: Recipe, options: Options, release: Release) -> str:
    constants: dict[str, object] = {
        "TRAINING": dict(options["training"]),
        "PARALLELISM": dict(options["parallelism"]),
    }
    mode = options["activation_checkpoint"]["mode"]
    if mode == "mixed":
        ranks = range(recipe.devices)
        held = list(zip(recipe.device_of_stage, recipe.recompute, strict=True))
        constants["RECOMPUTE"] = [[again for own, again in held if own == rank] for rank in ranks]
    return _FILE.substitute(
        constants="\n".join(
            f"{name} = {pformat(value, width=100, sort_dicts=False)}" for name, value in constants.items()
        ),
        imported="" if mode == "none" else f"{_IMPORT}\n\n",
        training=_IN_TOKENS if release.counts_tokens else "TRAINING",
        checkpointing="FullAC.Config()" if mode == "full" else "None",
        options=_MIXED if mode == "mixed" else "",
        mixed=_MIXED_STAGES if mode == "mixed" else "",
    )


def _toml(value: object) -> str:
    """Return a value as TOML writes it: as JSON, whose escapes are TOML's, but for the delete character.

    Raises:
        ScheduleError: a text is none that UTF-8 can write, as paths in another encoding are.
    """
    text = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise ScheduleError(
            f"{shown(value)!r} is no text that TOML can hold; give a path whose name is UTF-8, or write .py"
        )
    return text.replace("\x7f", "\\u007f")


_IN_TOKENS = """{
        name: value * config.training.max_context_length if name.startswith("num_tokens") else value
        for name, value in TRAINING.items()
    }"""
"""TRAINING holds sequences, of as many tokens as the configuration says."""

_FILE = Template(
    '''"""Where the configuration of your model is made: `return planned(config)`."""

import dataclasses
from pathlib import Path

import torch

$imported$constants


def planned(config):
    """Return a configuration with the parallelism, the batch and the recomputation of the plan."""
    training = $training
    parallelism = dict(PARALLELISM)
    if "pipeline_parallel_schedule_csv" in parallelism:  # stands beside this file
        orders = Path(__file__).parent / parallelism["pipeline_parallel_schedule_csv"]
        parallelism["pipeline_parallel_schedule_csv"] = str(orders)
    spec = config.model_spec
    return dataclasses.replace(
        config,
        model_spec=dataclasses.replace(spec, pipelining_fn=_checked(spec.pipelining_fn)),
        training=dataclasses.replace(config.training, **training),
        parallelism=dataclasses.replace(config.parallelism, **parallelism),
        activation_checkpoint=$checkpointing,
    )


def check_modules(model):
    """Refuse a model whose modules are not those of the stages; torchtitan would leave them out unsaid."""
    stages = PARALLELISM.get("module_fqns_per_model_part", [])
    listed = {name for stage in stages for name in stage}
    found = {}
    for name, module in model.named_children():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            found.update((f"{name}.{key}", child) for key, child in module.named_children())
        else:
            found[name] = module
    lost = [name for name, module in found.items() if name not in listed and [*module.parameters()]]
    unknown = sorted(listed - found.keys())
    if lost or unknown:
        raise ValueError(f"no stage has the modules {lost}, and the model has no {unknown}; plan this model")


def _checked(pipelining):
    def split(model, **options):
        check_modules(model)
        return pipelining(model, **options$options)

    return split
$mixed'''
)

_IMPORT = "from torchtitan.distributed.activation_checkpoint import FullAC"
_MIXED = ' | {"parallelize_fn": _by_stage(**options)}'
_MIXED_STAGES = """

def _by_stage(*, parallelize_fn, parallel_dims, **_):
    stages = iter(RECOMPUTE[parallel_dims.get_mesh("pp").get_local_rank()])

    def parallelize(part, **options):
        return parallelize_fn(part, **options | {"ac_config": FullAC.Config() if next(stages) else None})

    return parallelize
"""
"""torchtitan hands over the parts of the model in the order of a rank's stages, RECOMPUTE's."""
