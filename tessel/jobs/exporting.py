"""A plan as the files that another framework loads."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import ScheduleError
from tessel.jobs.inputs.arguments import check_choice, check_folder
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.exports.recipe import Recipe


class Framework(enum.StrEnum):
    """Whose files are written."""

    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    MARKDOWN = "markdown"


SUFFIXES = {
    Framework.TORCH: (".csv",),
    Framework.TORCHTITAN: (".py", ".toml"),
    Framework.MEGATRON: (),
    Framework.DEEPSPEED: (".py",),
    Framework.MARKDOWN: (),
}
"""Endings of the file of each; any where there is none."""


def export_recipe(
    recipe: Recipe,
    to: str,
    out: str | os.PathLike[str] | None = None,
    *,
    roles: str | None = None,
    keep_names: bool = False,
) -> Mapping[str, str]:
    """Return the text of each file of a framework, by its path, and write them where `out` says.

    Raises:
        UsageError: there is no such framework, or the file has another ending.
        ScheduleError: the framework cannot run it; says why.
        DocumentError: a file cannot be written.
    """
    framework = Framework(check_choice("to", to, [each.value for each in Framework]))
    path = None if out is None else Path(out)
    check_folder("--out", path, suffixes=SUFFIXES[framework])
    _check_sharding(recipe, framework)
    if roles is not None:
        recipe = with_roles(recipe, roles)
    texts = _texts(recipe, framework, path, keep_names=keep_names)
    for note in recipe.device_notes():
        messages.note(note)
    if path is not None:
        from tessel.documents import save_document

        for each, text in texts.items():
            save_document(each, text.encode())
            messages.note(f"{each} written")
    # What stands beside the main file comes last.
    return {str(each): texts[each] for each in sorted(texts, key=_is_beside)}


def _check_sharding(recipe: Recipe, framework: Framework) -> None:
    """Refuse a plan whose memory counts on what the framework would not be told.

    Raises:
        ScheduleError: it is such.
    """
    says_it = (Framework.TORCH, Framework.MARKDOWN)  # orders alone, or tables for people
    if recipe.sharding != "none" and framework not in says_it:
        raise ScheduleError(
            f"the plan of {recipe.model} divides {recipe.sharding} over replicas, and exports to {framework} "
            "do not write that yet; plan with --sharding none, or export --to torch and set it in the trainer"
        )


def with_roles(recipe: Recipe, text: str) -> Recipe:
    """Return the recipe with what each row is, as a text such as `Et*12nL` states it.

    Raises:
        ScheduleError: the text is none, or does not match the rows.
    """
    from tessel.exports.roles import stated_roles

    return replace(recipe, roles=stated_roles(text, recipe.layers))


def _texts(recipe: Recipe, to: Framework, out: Path | None, *, keep_names: bool) -> dict[Path, str]:
    """Return the text of each file; torchtitan's CSV stands beside its options."""
    from tessel.exports.deepspeed import deepspeed_module
    from tessel.exports.markdown import recipe_markdown
    from tessel.exports.megatron_plan import megatron_arguments
    from tessel.exports.torchtitan import orders_csv, titan_python, titan_toml

    main = Path("orders.txt") if out is None else out
    match to:
        case Framework.TORCH:
            return {main: orders_csv(recipe)}
        case Framework.TORCHTITAN:
            beside = main.with_suffix(".csv")
            make = titan_toml if main.suffix == ".toml" else titan_python
            csv = str(beside.absolute()) if out is not None else "orders.csv"
            return {main: make(recipe, csv=csv, keep_names=keep_names), beside: orders_csv(recipe)}
        case Framework.MEGATRON:
            return {main: megatron_arguments(recipe)}
        case Framework.DEEPSPEED:
            return {main: deepspeed_module(recipe)}
        case Framework.MARKDOWN:
            return {main: recipe_markdown(recipe)}


def _is_beside(path: Path) -> bool:
    return path.suffix == ".csv"
