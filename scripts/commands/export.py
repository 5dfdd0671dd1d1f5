"""`tessel export`: a plan as the file that another framework loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion
from scripts.terminal import console
from tessel.jobs.exporting import Framework, export_recipe
from tessel.jobs.plan import load_planned
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.exports.recipe import Recipe


def export(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan of `tessel plan --save` or `tessel tune`; for torch also a schedule."
        ),
    ],
    to: Annotated[
        Framework,
        "torch: the CSV that torch.distributed.pipelining loads. torchtitan: its options, .py or "
        ".toml as its --version has them, and the CSV next to them. megatron: arguments with the layout. "
        "primus: the same as overrides in YAML, with the layers to recompute. deepspeed: a Python file "
        "with parts and schedule. markdown: tables to paste.",
    ],
    out: Annotated[Path | None, "Write to this file, such as titan.py; on stdout if left out."] = None,
    roles: Annotated[
        str | None,
        "What each row of the profile is, a letter a row: E embedding, t transformer layer, m "
        "multi-token prediction, n norm, L head, such as Et*12nL.  [default: by the names]",
    ] = None,
    keep_names: Annotated[bool, "Of torchtitan: rows are named as the modules of your own model."] = False,
    version: Annotated[
        str | None,
        typer.Option(
            help="Of torchtitan: the release, 0.2.2 (.toml), 0.3.0 or main (.py).  [default: the one that is "
            "installed, else the newest]",
            autocompletion=completion.torchtitan_releases,
        ),
    ] = None,
    json: Annotated[bool, "Print one JSON document on stdout."] = False,
) -> None:
    """Write a plan as the file that another framework loads.

    Examples:

    `tessel export plan.json --to torchtitan --out titan.py`

    `tessel export plan.json --to torchtitan --version 0.2.2 --out titan.toml`

    `tessel export plan.json --to megatron`
    """
    recipe = _recipe(plan)
    texts = export_recipe(recipe, to.value, out, roles=roles, keep_names=keep_names, version=version)
    main = next(iter(texts.values()))
    if json:
        from scripts.documents.schedules import Exported

        files = tuple(texts) if out is not None else ()
        console.print_json(Exported(to=str(to), files=files, text=main))
    elif out is None:
        for line in main.splitlines():
            console.print_line(line)
        if len(texts) > 1:
            path, beside = texts
            messages.note(f"add --out {path} to write {beside} next to it")


def _recipe(path: Path) -> Recipe:
    """Return what a plan or a schedule tells frameworks.

    Raises:
        DocumentError: the file cannot be read, or is neither.
        ScheduleError: no framework runs its placement.
    """
    from tessel.exports.recipe import recipe_of_schedule

    schedule, plan = load_planned(path)
    return recipe_of_schedule(schedule, model=path.name) if plan is None else plan.recipe()
