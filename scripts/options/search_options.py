"""The options that limit a search, `--work` and `--time-limit`, and panels of the help."""

from __future__ import annotations

from typing import Annotated, Any

import typer

SEARCH_PANEL = "Search options"
OUTPUT_PANEL = "Output options"
"""Panels of a command's help."""

TIME_HELP = (
    "Time limit of the search, such as 10s. Without --work it is the only limit, and the result then "
    "depends on the machine's speed and load."
)

EQUAL_WORK = "; equal budgets give equal results on every machine"

TimeLimitOption = Annotated[
    str | None, typer.Option(help=TIME_HELP, rich_help_panel=SEARCH_PANEL, show_default=False)
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT_PANEL)
]


def work_option(
    default: str, *, search: str = "the search", promise: str = EQUAL_WORK, panel: str = SEARCH_PANEL
) -> Any:
    """Return the declaration of `--work`, checked by `tessel.jobs.inputs.limits.make_budget`.

    Args:
        default: the units that are given where the option is left out, as the help says it.
        search: what the work is for.
        promise: what is said of equal work.
        panel: of the command's help.
    """
    return typer.Option(
        help=f"Work budget of {search}, in units of about a second of an idle core{promise}.  "
        f"[default: {default}]",
        rich_help_panel=panel,
        show_default=False,
    )
