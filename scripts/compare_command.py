"""`tessel compare`: compare the searched schedule with the hand-written ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import completion, console
from scripts.arguments import check_choice, parse_names

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.plan import Plan
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


def compare(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Also explain why a hand-written schedule does not apply.")
    ] = False,
    schedules: SchedulesOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Compare a schedule with every hand-written one on the same placement and limits.

    Examples:

    `tessel compare out/gpt2/plan.json`

    `tessel compare schedule.json --schedules 1f1b,gpipe --json`
    """
    comparison, is_plan = _load(file, parse_names(schedules))
    if json:
        from scripts.documents.schedules import Compared

        not_applicable = dict(comparison.not_applicable)
        console.print_json(Compared(schedules=comparison.rows, not_applicable=not_applicable))
    else:
        print_comparison(comparison, in_bytes=is_plan)
    if explain:
        say = console.print_note if json else console.print_line
        for name, reason in comparison.not_applicable:
            say(f"{name}: {reason}")


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


def build_comparison(schedule: Schedule, plan: Plan | None, names: tuple[str, ...] | None) -> Comparison:
    """Build the hand-written schedules beside one; in milliseconds and bytes for a plan."""
    from tessel.comparison import compare_schedules

    with console.progress_bar("building hand-written schedules") as update:
        return compare_schedules(
            schedule,
            names=names,
            step_us=None if plan is None else plan.step_us,
            static_bytes=None if plan is None else plan.static_bytes,
            on_progress=lambda name, done, total: update(f"building {name}", done, total),
        )


def _load(file: Path, names: tuple[str, ...] | None) -> tuple[Comparison, bool]:
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.plan import load_plan

    if detect_kind(file) is DocumentKind.PLAN:
        plan = load_plan(file)
        return build_comparison(plan.schedule, plan, names), True
    return build_comparison(load_schedule(file), None, names), False
