"""torchtitan's options for a plan: the modules of each stage, the schedule, the CSV and the micro-batches.

torchtitan builds stages before it reads the CSV, from two options. `module_fqns_per_model_part` lists the
modules of each stage; without it, the model is cut evenly into one stage a rank where
`pipeline_parallel_schedule` names a schedule of single stages, and into two a rank elsewhere. The same name
decides which rank holds which stage: a V for `ZBVZeroBubble` and `DualPipeV`, a loop for all others. The CSV
then replaces the schedule's order, not its stages. So the lists are always given, and the name is one whose
stages are placed as the plan's; a name that torch does not know, such as that of the runtime which executes
the CSV, is refused. Any placement but a loop and a V needs a training loop of one's own.

Releases that are configured in Python take `num_pp_microbatches`; those with a TOML file divide
`local_batch_size` by `pipeline_parallel_microbatch_size`. Checked in tests/tessel/exports/test_torchtitan.py.

Source: torchtitan, `distributed/pipeline_parallel.py` and `config`; torch, `get_schedule_class`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from tessel.engine.actions import actions_to_csv, renumbered
from tessel.errors import ScheduleError, shown
from tessel.exports.recipe import Recipe, Role, roles_of

SINGLE_STAGE, MULTI_STAGE, V_STAGES = "PipelineScheduleSingle", "PipelineScheduleMulti", "ZBVZeroBubble"
"""Names by which torchtitan builds one stage a rank, several in a loop, and two in a V. The first two are
base classes of torch, which are never made, since the CSV makes torchtitan take the runtime's class
instead."""

_OWN_NAMES = frozenset(("tok_embeddings", "norm", "output", "lm_head"))


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
    return actions_to_csv(renumbered(recipe.actions))


def titan_options(recipe: Recipe, *, csv: str) -> Mapping[str, object]:
    """Return torchtitan's parallelism options by name.

    Args:
        recipe: what is run.
        csv: path of the file of orders, as torchtitan will find it.

    Raises:
        ScheduleError: torchtitan cannot place these stages, or the layers are not known.
    """
    options: dict[str, object] = {
        "pipeline_parallel_degree": recipe.devices,
        "pipeline_parallel_schedule": schedule_name(recipe),
        "pipeline_parallel_schedule_csv": csv,
        "module_fqns_per_model_part": modules_of_stages(recipe),
    }
    if recipe.tensor_parallel > 1:
        options["tensor_parallel_degree"] = recipe.tensor_parallel
    return options


def schedule_name(recipe: Recipe) -> str:
    """Return the schedule by whose name torchtitan places the stages as the recipe does.

    Raises:
        ScheduleError: there is none.
    """
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


def modules_of_stages(recipe: Recipe) -> list[list[str]]:
    """Return the names of each stage's modules in torchtitan's models.

    Layers that have names of modules (`layers.3`, `tok_embeddings`, anything with a dot) keep them; others
    are named by their role: `tok_embeddings`, `layers.0` and so on, `norm` and `output`.

    Raises:
        ScheduleError: the layers are not known, or torchtitan's models have none such.
    """
    recipe.require_layers("torchtitan")
    if any("." in layer or layer in _OWN_NAMES for layer in recipe.layers):
        names = [[layer] for layer in recipe.layers]
    else:
        names = _names_by_role(recipe)
    return [
        list(dict.fromkeys(name for layer in names[first : last + 1] for name in layer))
        for first, last in recipe.cuts
    ]


def titan_python(recipe: Recipe, *, csv: str) -> str:
    """Return options for releases of torchtitan that are configured in Python.

    Raises:
        ScheduleError: see `titan_options`.
    """
    options = dict(titan_options(recipe, csv=csv)) | {"num_pp_microbatches": recipe.micro_batches}
    lines = [f"    {name}={_value(value, 4, repr)}," for name, value in options.items()]
    return "\n".join(
        [
            f"# {_heading(recipe)}",
            '"""In the configuration of your model: parallelism=ParallelismConfig(**PARALLELISM)."""',
            "",
            "PARALLELISM = dict(",
            *lines,
            ")",
            *_batch_comment(recipe),
            "",
        ]
    )


def titan_toml(recipe: Recipe, *, csv: str) -> str:
    """Return options for releases of torchtitan that are configured by a TOML file.

    Raises:
        ScheduleError: see `titan_options`.
    """
    size = recipe.micro_batch or 1
    options = dict(titan_options(recipe, csv=csv)) | {"pipeline_parallel_microbatch_size": size}
    return "\n".join(
        [
            f"# {_heading(recipe)}",
            "[training]",
            f"local_batch_size = {size * recipe.micro_batches}",
            "",
            "[parallelism]",
            *(f"{name} = {_value(value, 0, _toml)}" for name, value in options.items()),
            "",
        ]
    )


def _names_by_role(recipe: Recipe) -> list[list[str]]:
    names, block = [], 0
    for layer, role in zip(recipe.layers, roles_of(recipe.layers), strict=True):
        match role:
            case Role.EMBEDDING:
                names.append(["tok_embeddings"])
            case Role.BLOCK:
                names.append([f"layers.{block}"])
                block += 1
            case Role.HEAD:
                names.append(["norm", "output"])
            case Role.PREDICTION:
                raise ScheduleError(
                    f"layer {layer!r} predicts several tokens, which torchtitan's models have no module for; "
                    "name the layers of the profile as your modules are named"
                )
    return names


def _heading(recipe: Recipe) -> str:
    return (
        f"torchtitan options for {recipe.model!r}: {recipe.num_stages} stages on {recipe.devices} ranks, "
        f"{recipe.micro_batches} micro-batches."
    )


def _batch_comment(recipe: Recipe) -> list[str]:
    if recipe.micro_batch is None:
        return []
    return [f"LOCAL_BATCH_SIZE = {recipe.micro_batch * recipe.micro_batches}  # training.local_batch_size"]


def _value(value: object, indent: int, written: Callable[[object], str]) -> str:
    """Return a number, a text or lists of texts in the notation of a language.

    Args:
        value: of an option.
        indent: of the line that it begins in.
        written: how the language writes a number, a text or a list of texts.
    """
    if not isinstance(value, list):
        return written(value)
    pad = " " * indent
    return "\n".join(["[", *(f"{pad}    {written(each)}," for each in value), f"{pad}]"])


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
