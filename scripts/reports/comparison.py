"""The comparison of a schedule with the hand-written ones, built and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options import completion
from scripts.terminal import console
from tessel.jobs.arguments import check_choice, parse_names
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.reports.planned import AnyPlan
    from tessel.comparison import Comparison
    from tessel.schedule import Schedule


def _check_names(text: str | None) -> str | None:
    """Refuse names of no schedule while the command line is read; the message names the nearest."""
    if text is not None:
        from tessel.handwritten import HANDWRITTEN

        for name in parse_names(text) or ():
            check_choice("--schedules", name, ("searched", *(rule.name for rule in HANDWRITTEN)))
    return text


SchedulesOption = Annotated[
    str | None,
    typer.Option(
        help="Hand-written schedules to compare with, separated by commas; default: all that apply.",
        autocompletion=completion.schedules,
        callback=_check_names,
    ),
]


def print_comparison(comparison: Comparison, *, in_bytes: bool) -> None:
    """Print the table of a comparison; milliseconds and bytes for a plan, steps and units else."""
    rows = []
    for row in comparison.rows:
        if in_bytes and row.peak_memory_bytes is not None:
            memory = console.format_bytes(max(row.peak_memory_bytes))
        else:
            memory = console.format_numbers(row.peak_memory)
        ratio = "-" if row.ratio_to_1f1b is None else f"{row.ratio_to_1f1b:.3f}"
        fits = "yes" if row.fits else "no"
        rows.append([row.title, row.length, f"{row.bubble_ratio:.1%}", memory, fits, ratio])
    unit = "ms" if in_bytes else "steps"
    peak = "peak memory" if not in_bytes else "peak memory, fullest device"
    console.print_table(
        "", ["schedule", f"makespan ({unit})", "bubble ratio", peak, "fits", "ratio to 1F1B"], rows
    )


def build_comparison(schedule: Schedule, plan: AnyPlan | None, names: tuple[str, ...] | None) -> Comparison:
    """Build the hand-written schedules beside one; in milliseconds and bytes for a plan."""
    from tessel.comparison import compare_schedules

    with messages.bar("building hand-written schedules") as update:
        return compare_schedules(
            schedule,
            names=names,
            step_us=None if plan is None else plan.step_us,
            static_bytes=None if plan is None else plan.static_bytes,
            on_progress=lambda name, done, total: update(f"building {name}", done, total),
        )
