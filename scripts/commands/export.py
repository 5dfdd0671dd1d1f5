"""`tessel export`: a plan as the file that another framework loads."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.terminal import console
from tessel.jobs.arguments import check_folder
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


_SUFFIXES = {
    Framework.TORCH: (".csv",),
    Framework.TORCHTITAN: (".py", ".toml"),
    Framework.MEGATRON: (),
    Framework.DEEPSPEED: (".py",),
    Framework.MARKDOWN: (),
}


def export(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan of `tessel plan --save` or `tessel tune`; for torch also a schedule."
        ),
    ],
    to: Annotated[
        Framework,
        typer.Option(
            "--to",
            help="torch: the CSV that torch.distributed.pipelining loads. torchtitan: its options, .py or "
            ".toml, and the CSV next to them. megatron: arguments with the layout. deepspeed: a Python file "
            "with parts and schedule. markdown: tables to paste.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write to this file; on stdout if left out.", show_default=False),
    ] = None,
    roles: Annotated[
        str | None,
        typer.Option(
            help="What each row of the profile is, a letter a row: E embedding, t transformer layer, m "
            "multi-token prediction, n norm, L head, such as Et*12nL.  [default: by the names]",
            show_default=False,
        ),
    ] = None,
    keep_names: Annotated[
        bool,
        typer.Option("--keep-names", help="Of torchtitan: rows are named as the modules of your own model."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Write a plan as the file that another framework loads.

    Examples:

    `tessel export plan.json --to torchtitan --out titan.toml`

    `tessel export plan.json --to megatron`
    """
    check_folder("--out", out, suffixes=_SUFFIXES[to])
    recipe = load_recipe(plan)
    if roles is not None:
        recipe = with_roles(recipe, roles)
    texts = _texts(recipe, to, out, keep_names=keep_names)
    for note in recipe.device_notes():
        messages.note(note)
    if out is not None:
        from tessel.documents import save_document

        for path, text in texts.items():
            save_document(path, text.encode())
            messages.note(f"{path} written")
    if json:
        from scripts.documents.exported import Exported

        files = tuple(map(str, texts)) if out is not None else ()
        console.print_json(Exported(to=str(to), files=files, text=texts[min(texts, key=_is_beside)]))
    elif out is None:
        for line in texts[min(texts, key=_is_beside)].splitlines():
            console.print_line(line)
        if to is Framework.TORCHTITAN:
            messages.note("add --out titan.toml to write the CSV of the orders next to the options")


def load_recipe(path: Path) -> Recipe:
    """Return what a plan or a schedule tells frameworks.

    Raises:
        DocumentError: the file cannot be read, or is neither.
        ScheduleError: no framework runs its placement.
    """
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.exports.recipe import recipe_of_plan, recipe_of_saved_plan, recipe_of_schedule
    from tessel.loading import load_plan
    from tessel.planning.saved_plan import load_saved_plan

    kind = detect_kind(path)
    if kind is DocumentKind.LAYOUT:
        return recipe_of_saved_plan(load_saved_plan(path))
    if kind is DocumentKind.PLAN:
        return recipe_of_plan(load_plan(path))
    return recipe_of_schedule(load_schedule(path), model=path.name)


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
