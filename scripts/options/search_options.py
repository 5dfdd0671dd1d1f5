"""What limits a search: the options `--work` and `--time-limit`, and the budget that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from scripts.options.arguments import parse_duration

if TYPE_CHECKING:
    from tessel.search.budget import SearchBudget

TIME_HELP = (
    "Time limit of the search, such as 10s. Without --work it is the only limit, and what is found then "
    "depends on how fast and busy the machine is."
)

WORK_HELP = (
    "Work for the search, in units of about a second of an idle core; equal work gives equal answers on "
    "every machine.  [default: 10, unless --time-limit is given]"
)


def make_budget(work: float | None, time_limit: str | None) -> SearchBudget:
    """Return what the options `--work` and `--time-limit` allow.

    Raises:
        BadParameter: one of them is not above 0 or is no number.
    """
    from tessel.search.budget import DEFAULT_WORK, LONGEST_S, SearchBudget

    if work is not None and not 0 < work < 1e9:
        raise typer.BadParameter(f"--work is {work:g}; give a number of units above 0, such as 10")
    if time_limit is not None:
        return SearchBudget(work_limit=work, time_limit_s=parse_duration(time_limit))
    units = DEFAULT_WORK if work is None else work
    return SearchBudget(work_limit=units, time_limit_s=LONGEST_S * max(1.0, units / DEFAULT_WORK))


def only_time(work: float | None, time_limit: str | None) -> float | None:
    """Return the seconds of `--time-limit` where they are the only limit; None where work is limited."""
    return None if work is not None or time_limit is None else parse_duration(time_limit)
