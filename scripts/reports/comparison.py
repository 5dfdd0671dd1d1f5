"""The comparison of a schedule with the hand-written ones, built and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_choice, parse_names
from tessel.jobs.shown.explanation import add_comparison_rows
from tessel.jobs.shown.sections import Sections

if TYPE_CHECKING:
    from tessel.comparison import Comparison


def _check_names(text: str | None) -> str | None:
    """Refuse names of no schedule while the command line is read; the message names the nearest."""
    if text is not None:
        from tessel.handwritten import HANDWRITTEN

        for name in parse_names(text) or ():
            check_choice("--schedules", name, ("ours", "searched", *(rule.name for rule in HANDWRITTEN)))
    return text


SchedulesOption = Annotated[
    str | None,
    typer.Option(
        help="Hand-written schedules to compare with, such as 1f1b,zb-h1; default: all that apply.",
        autocompletion=completion.schedules,
        callback=_check_names,
    ),
]


def print_comparison(comparison: Comparison, *, in_bytes: bool) -> None:
    """Print the table of a comparison; milliseconds and bytes for a plan, steps and units else."""
    out = Sections()
    add_comparison_rows(out, comparison, in_bytes=in_bytes)
    console.print_sections(out)
