"""Options of several commands, each declared once: limits of a search, devices and links."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scripts.options import completion
from tessel.jobs.inputs.plan_options import OPTIMIZERS
from tessel.progress.manual import manual

TIME_HELP = (
    "Time limit of the search, such as 10s. Without --work it is the only limit, and the result then "
    "depends on the machine's speed and load; none if left out."
)

EQUAL_WORK = "; equal budgets give equal results on every machine"

TimeLimitOption = Annotated[str | None, TIME_HELP]

JsonOption = Annotated[bool, "Print one JSON document on stdout."]


def work_help(default: str, *, search: str = "the search", promise: str = EQUAL_WORK) -> str:
    """Return the help of `--work`, which is checked by `tessel.jobs.inputs.limits.make_budget`.

    Args:
        default: the units that are given where the option is left out, as the help says it.
        promise: what is said of equal work.
    """
    units = "in units of about a second of an idle core"
    return f"Work budget of {search}, {units}{promise}.  [default: {default}]"


HopUsOption = Annotated[float, "Latency of a message between devices in us."]


def link_option(default: str = "") -> Any:
    """Return the declaration of `--link`; a default that depends on others is stated."""
    return typer.Option(
        help="Bandwidth between devices, in one direction." + (f"  [default: {default}]" if default else ""),
        show_default=not default,
    )


def optimizer_option(default: str = "") -> Any:
    """Return the declaration of `--optimizer`; the job refuses unknown names."""
    return typer.Option(
        help=f"Optimizer, whose state is kept in memory: {', '.join(OPTIMIZERS)}; "
        f"{manual('training-step.md')} has the bytes of each."
        + (f"  [default: {default}]" if default else ""),
        show_default=not default,
        autocompletion=completion.one_of(*OPTIMIZERS),
    )
