"""A plan as the files that another framework loads."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import check_choice, check_folder
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.exports.recipe import Recipe
    from tessel.exports.torchtitan import Release


class Framework(enum.StrEnum):
    """Whose files are written."""

    TORCH = "torch"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    PRIMUS = "primus"
    DEEPSPEED = "deepspeed"
    MARKDOWN = "markdown"


SUFFIXES = {
    Framework.TORCH: (".csv",),
    Framework.TORCHTITAN: (".py", ".toml"),
    Framework.MEGATRON: (),
    Framework.PRIMUS: (".yaml", ".yml"),
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
    version: str | None = None,
) -> Mapping[str, str]:
    """Return the text of each file of a framework, by its path, and write them where `out` says.

    Raises:
        UsageError: there is no such framework or version, or the file has another ending than theirs.
        ScheduleError: the framework cannot run it; says why.
        DocumentError: a file cannot be written.
    """
    from tessel.exports.notes import notes_of, require_one_degree

    framework = Framework(check_choice("to", to, [each.value for each in Framework]))
    path = None if out is None else Path(out)
    check_folder("--out", path, suffixes=SUFFIXES[framework])
    if version is not None and framework is not Framework.TORCHTITAN:
        raise UsageError(f"--version is of torchtitan, and {to} has one kind of file; leave it out")
    if framework in (Framework.MEGATRON, Framework.PRIMUS, Framework.DEEPSPEED):
        recipe.schedule.require_apart(f"{to}, as told by a plan,")
    if framework is not Framework.MARKDOWN:
        require_one_degree(recipe, to)
    if roles is not None:
        recipe = with_roles(recipe, roles)
    if framework is Framework.TORCHTITAN:
        texts = _torchtitan(recipe, path, keep_names=keep_names, version=version)
    elif framework is Framework.TORCH:
        texts = _torch(recipe, path or Path("orders.csv"))
    else:
        texts = {path or Path("orders.txt"): _text(recipe, framework)}
    for note in notes_of(recipe, framework):
        messages.note(note)
    if path is not None:
        from tessel.documents import save_document

        for each, text in texts.items():
            save_document(each, text.encode())
            messages.note(f"{each} written")
        if framework is Framework.MEGATRON:
            for line in texts[path].splitlines():
                if line.startswith("# Megatron "):  # how its own order compares with the plan's
                    messages.note(line.removeprefix("# "))
    return {str(each): text for each, text in texts.items()}


def with_roles(recipe: Recipe, text: str) -> Recipe:
    """Return the recipe with what each row is, as a text such as `Et*12nL` states it.

    Raises:
        ScheduleError: the text is none, or does not match the rows.
    """
    from tessel.exports.roles import stated_roles

    return replace(recipe, roles=stated_roles(text, recipe.layers))


def _torch(recipe: Recipe, out: Path) -> dict[Path, str]:
    """Return the CSV of the orders, and the stages beside it where several copies run on the same ranks."""
    from tessel.exports.both_ways import stages_module
    from tessel.exports.torchtitan import orders_csv

    texts = {out: orders_csv(recipe)}
    return texts | {out.with_suffix(".py"): stages_module(recipe, out.name)} if recipe.copies > 1 else texts


def _torchtitan(
    recipe: Recipe, out: Path | None, *, keep_names: bool, version: str | None
) -> dict[Path, str]:
    """Return the options of a release, and the CSV of the orders beside them."""
    from tessel.exports.torchtitan import orders_csv, titan_file

    release = _release(version, None if out is None else out.suffix)
    main = Path("titan").with_suffix(release.suffix) if out is None else out
    beside = main.with_suffix(".csv")
    csv = "orders.csv" if out is None else beside.name
    texts = {main: titan_file(recipe, release, csv=csv, keep_names=keep_names)}
    return texts | {beside: orders_csv(recipe)} if recipe.devices > 1 else texts


def _release(version: str | None, suffix: str | None) -> Release:
    """Return the release that is asked for, else the one that is installed, else the newest with the ending.

    Raises:
        UsageError: there is no such release, or its file has another ending.
    """
    from tessel.exports.torchtitan import NEWEST, RELEASES, release_of

    if version is not None:
        release = RELEASES[check_choice("--version", version, RELEASES)]
        if suffix not in (None, release.suffix):
            raise UsageError(
                f"torchtitan {version} is configured by a file that ends with {release.suffix}, and --out "
                f"ends with {suffix}; give one of the two another value"
            )
        return release
    fitting = [each for each in RELEASES.values() if suffix in (None, each.suffix)]
    installed = _installed("torchtitan")
    if installed is not None and release_of(installed) in fitting:
        return release_of(installed)
    return NEWEST if NEWEST in fitting else fitting[-1]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _text(recipe: Recipe, to: Framework) -> str:
    from tessel.exports.deepspeed import deepspeed_module
    from tessel.exports.markdown import recipe_markdown
    from tessel.exports.megatron_plan import megatron_arguments
    from tessel.exports.primus import primus_overrides

    match to:
        case Framework.MEGATRON:
            return megatron_arguments(recipe)
        case Framework.PRIMUS:
            return primus_overrides(recipe)
        case Framework.DEEPSPEED:
            return deepspeed_module(recipe)
        case _:
            return recipe_markdown(recipe)
