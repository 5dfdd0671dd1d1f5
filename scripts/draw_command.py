"""`tessel draw`: a picture of a plan or a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console

if TYPE_CHECKING:
    from tessel.schedule import Schedule

FORMATS = (".svg", ".png", ".pdf")


def draw(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    out: Annotated[Path, typer.Option(help="The picture; its suffix chooses the format.")],
) -> None:
    """Draw a plan or a schedule: device per row, time to the right, memory below.

    Example: `tessel draw out/gpt2/plan.json --out schedule.svg`.
    """
    from tessel.picture import save_figure, schedule_figure

    if out.suffix not in FORMATS:
        raise typer.BadParameter(
            f"--out {out} has the suffix {out.suffix or '(none)'}; end it with one of {', '.join(FORMATS)}"
        )
    schedule, step_ms, title = _load(file)
    save_figure(schedule_figure(schedule, step_ms=step_ms, title=title), out)
    console.print_note(f"picture written to {out}")


def _load(file: Path) -> tuple[Schedule, float | None, str]:
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.plan import load_plan

    if detect_kind(file) is DocumentKind.PLAN:
        plan = load_plan(file)
        return plan.schedule, plan.step_us / 1000, f"{plan.model} on {plan.device_model}"
    return load_schedule(file), None, file.name
