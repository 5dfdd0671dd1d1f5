"""`tessel compare`: compare the searched schedule with the hand-written ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options.tuning_options import JsonOption
from scripts.reports.tables import SchedulesOption, print_comparison
from scripts.terminal import console
from tessel.jobs.inputs.arguments import parse_names
from tessel.jobs.plan import load_planned
from tessel.jobs.shown.pictures import build_comparison
from tessel.jobs.shown.plan_tables import BASELINE_COLUMNS, baseline_rows
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.documents.schedules import Compared
    from tessel.comparison import Comparison
    from tessel.planning.saved_plan import SavedPlan


def compare(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    explain: Annotated[bool, "Also explain why a hand-written schedule does not apply."] = False,
    schedules: SchedulesOption = None,
    json: JsonOption = False,
) -> None:
    """Compare a schedule with every hand-written one on the same placement and limits.

    Examples:

    `tessel compare out/gpt2/plan.json`

    `tessel compare schedule.json --schedules 1f1b,gpipe --json`
    """
    schedule, plan = load_planned(file)
    comparison = build_comparison(schedule, plan, parse_names(schedules))
    saved = None if plan is None else plan.planned
    if json:
        console.print_json(_document(comparison, saved))
    else:
        if saved is not None:
            console.print_line("Orders on the plan's own stages:")
        print_comparison(comparison, in_bytes=plan is not None)
        if saved is not None:
            console.print_line(
                f"\nTraining steps, each with its own best degrees and cut; this plan: {saved.proof}"
            )
            console.print_table("", BASELINE_COLUMNS, baseline_rows(saved))
    if explain:
        say = messages.note if json else console.print_line
        for name, reason in comparison.not_applicable:
            say(f"{name}: {reason}")


def _document(comparison: Comparison, saved: SavedPlan | None) -> Compared:
    from msgspec import UNSET

    from scripts.documents.schedules import Compared

    return Compared(
        schedules=comparison.rows,
        not_applicable=dict(comparison.not_applicable),
        devices=UNSET
        if saved is None
        else tuple(saved.layout.devices_at(position) for position in range(saved.layout.pipeline)),
        baselines=UNSET if saved is None else saved.baselines,
    )
