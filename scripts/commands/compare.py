"""`tessel compare`: compare the searched schedule with the hand-written ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options.arguments import parse_names
from scripts.options.tuning_options import JsonOption
from scripts.reports.comparison import SchedulesOption, build_comparison, print_comparison
from scripts.reports.planned import load_planned
from scripts.terminal import console

if TYPE_CHECKING:
    from tessel.comparison import Comparison


def compare(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    explain: Annotated[
        bool, typer.Option("--explain", help="Also explain why a hand-written schedule does not apply.")
    ] = False,
    schedules: SchedulesOption = None,
    json: JsonOption = False,
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


def _load(file: Path, names: tuple[str, ...] | None) -> tuple[Comparison, bool]:
    schedule, plan = load_planned(file)
    return build_comparison(schedule, plan, names), plan is not None
