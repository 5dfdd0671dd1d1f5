"""Limits of a search: the options `--work` and `--time-limit`, and the budget that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts.options.arguments import parse_duration

if TYPE_CHECKING:
    from tessel.search.budget import SearchBudget

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
    """Return the declaration of `--work`, checked by `make_budget`.

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


def make_budget(work: float | None, time_limit: str | None) -> SearchBudget:
    """Return what the options `--work` and `--time-limit` allow; without the second no time cuts the search.

    Raises:
        BadParameter: one of them is not above 0 or is no number.
    """
    from tessel.search.budget import DEFAULT_WORK, SearchBudget

    if work is not None and not 0 < work < 1e9:
        raise typer.BadParameter(f"--work is {work:g}; give a number of units above 0, such as 10")
    if time_limit is not None:
        return SearchBudget(work_limit=work, time_limit_s=parse_duration(time_limit))
    return SearchBudget(work_limit=DEFAULT_WORK if work is None else work)


def only_time(work: float | None, time_limit: str | None) -> float | None:
    """Return the seconds of `--time-limit` where they are the only limit; None where work is limited."""
    return None if work is not None or time_limit is None else parse_duration(time_limit)
