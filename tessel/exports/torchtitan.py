"""torchtitan's options for a plan: the modules of each stage, the schedule, the CSV and the micro-batches.

torchtitan builds stages before it reads the CSV, from two options. `module_fqns_per_model_part` lists the
modules of each stage; without it, the model is cut evenly into one stage a rank where
`pipeline_parallel_schedule` names a schedule of single stages, and into two a rank elsewhere. The same name
decides which rank holds which stage: a V for `ZBVZeroBubble` and `DualPipeV`, a loop for all others. The CSV
then replaces the schedule's order, not its stages. So the lists are always given, and the name is one whose
stages are placed as the plan's; a name that torch does not know, such as that of the runtime which executes
the CSV, is refused. Any placement but a loop and a V needs a training loop of one's own.

Releases with a TOML file (0.2) and the first that is configured in Python (0.3.0) divide
`local_batch_size` by
`pipeline_parallel_microbatch_size`; later ones take `num_pp_microbatches`. The head is `output` in 0.2 and
`lm_head` since 0.3.0. A module that no stage names becomes None without a word, and a name that the model has
not is passed over, so that both names of the head are written. Checked in
tests/tessel/exports/test_torchtitan.py, which splits models by the rule of both releases.

Source: torchtitan 0.2.2 and 0.3.0, `distributed/pipeline_parallel.py` and `config`; torch,
`get_schedule_class`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from tessel.engine.actions import actions_to_csv, renumbered
from tessel.errors import ScheduleError, shown
from tessel.exports.recipe import Recipe
from tessel.exports.roles import STATE_ROLES, Role, rows_of

SINGLE_STAGE, MULTI_STAGE, V_STAGES = "PipelineScheduleSingle", "PipelineScheduleMulti", "ZBVZeroBubble"
"""Names by which torchtitan builds one stage a rank, several in a loop, and two in a V. The first two are
base classes of torch, which are never made, since the CSV makes torchtitan take the runtime's class
instead."""

HEAD_NAMES = ("output", "lm_head")
"""The head's module before torchtitan 0.3.0, and since."""


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


def titan_options(recipe: Recipe, *, csv: str, keep_names: bool = False) -> Mapping[str, object]:
    """Return torchtitan's parallelism options by name.

    Args:
        recipe: what is run.
        csv: path of the file of orders, as torchtitan will find it.
        keep_names: see `modules_of_stages`.

    Raises:
        ScheduleError: torchtitan cannot place these stages, or the layers are not known.
    """
    options: dict[str, object] = {
        "pipeline_parallel_degree": recipe.devices,
        "pipeline_parallel_schedule": schedule_name(recipe),
        "pipeline_parallel_schedule_csv": csv,
        "module_fqns_per_model_part": modules_of_stages(recipe, keep_names=keep_names),
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


def modules_of_stages(recipe: Recipe, *, keep_names: bool = False) -> list[list[str]]:
    """Return the names of each stage's modules.

    Rows are named by their role as in torchtitan's own models: `tok_embeddings`, `layers.0` and so on,
    `norm`,
    and both names of the head. Where no row is the norm, it is with the head.

    Args:
        recipe: what is run.
        keep_names: the rows are named as the modules of a model of one's own, and keep their names.

    Raises:
        ScheduleError: the layers are not known, a row is none of these modules, or rows in two stages are one
            of them; names the rows.
    """
    recipe.require_layers("torchtitan")
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
    for role, name in _SINGLE:
        _check_one_stage(recipe, stages, role, name)
    has_norm = any(Role.NORM in stage for stage in stages)
    blocks = count()
    return [_modules(roles, blocks, has_norm=has_norm) for roles in stages]


_SINGLE = ((Role.EMBEDDING, "tok_embeddings"), (Role.NORM, "norm"), (Role.HEAD, " or ".join(HEAD_NAMES)))


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


def _modules(roles: Sequence[Role], blocks: Iterator[int], *, has_norm: bool) -> list[str]:
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
                names += HEAD_NAMES if has_norm else ("norm", *HEAD_NAMES)
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


def titan_python(recipe: Recipe, *, csv: str, keep_names: bool = False) -> str:
    """Return options for releases of torchtitan that are configured in Python.

    Raises:
        ScheduleError: see `titan_options`.
    """
    options = titan_options(recipe, csv=csv, keep_names=keep_names)
    lines = [f"    {name}={_value(value, 4, repr)}," for name, value in options.items()]
    size = recipe.micro_batch or 1
    return "\n".join(
        [
            *_heading(recipe),
            '"""In the configuration of your model: parallelism=ParallelismConfig(**PARALLELISM)."""',
            "",
            "import dataclasses",
            "",
            "from torchtitan.config import ParallelismConfig",
            "",
            "PARALLELISM = dict(",
            *lines,
            ")",
            'if "num_pp_microbatches" in {field.name for field in dataclasses.fields(ParallelismConfig)}:',
            f'    PARALLELISM["num_pp_microbatches"] = {recipe.micro_batches}',
            "else:  # 0.3.0",
            f'    PARALLELISM["pipeline_parallel_microbatch_size"] = {size}',
            f"LOCAL_BATCH_SIZE = {size * recipe.micro_batches}  # training.local_batch_size",
            "",
        ]
    )


def titan_toml(recipe: Recipe, *, csv: str, keep_names: bool = False) -> str:
    """Return options for releases of torchtitan that are configured by a TOML file.

    Raises:
        ScheduleError: see `titan_options`.
    """
    size = recipe.micro_batch or 1
    options = dict(titan_options(recipe, csv=csv, keep_names=keep_names))
    options["pipeline_parallel_microbatch_size"] = size
    return "\n".join(
        [
            *_heading(recipe),
            "[training]",
            f"local_batch_size = {size * recipe.micro_batches}",
            "",
            "[parallelism]",
            *(f"{name} = {_value(value, 0, _toml)}" for name, value in options.items()),
            "",
        ]
    )


def _heading(recipe: Recipe) -> list[str]:
    return [
        f"# torchtitan options for {recipe.model!r}: {recipe.num_stages} stages on {recipe.devices} ranks, "
        f"{recipe.micro_batches} micro-batches.",
        "# A module of the model that no stage names is left out of it.",
        *(f"# {note}" for note in recipe.device_notes()),
    ]


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
