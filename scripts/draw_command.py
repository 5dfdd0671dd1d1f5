"""`tessel draw`: a picture, a page or a trace of a plan or a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.arguments import check_folder, parse_names
from scripts.compare_command import SchedulesOption, build_comparison
from scripts.report import format_figure

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.picture.page import PagePart, PageTable
    from tessel.plan import Plan
    from tessel.schedule import Schedule

PICTURES = (".svg", ".png", ".pdf")
FORMATS = (*PICTURES, ".html", ".json", ".txt", ".md")


def draw(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="What to write; the suffix chooses: .svg .png .pdf a picture, .html a page, .json a trace "
            "for Perfetto, .txt text, .md a report. Left out: text on the terminal."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Draw the hand-written schedules beside it, on one time axis.")
    ] = False,
    critical_path: Annotated[
        bool, typer.Option("--critical-path", help="Draw the critical path through the bars.")
    ] = False,
    schedules: SchedulesOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout: what was drawn, and where.")
    ] = False,
) -> None:
    """Draw a plan or a schedule: device per row, time to the right, memory below.

    Examples:

    `tessel draw out/gpt2/plan.json --out schedule.svg --critical-path`

    `tessel draw out/gpt2/plan.json --out comparison.svg --compare --schedules 1f1b,zb-h1`

    `tessel draw schedule.json --out schedule.html`
    """
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.plan import load_plan

    if out is not None and out.suffix not in FORMATS:
        raise typer.BadParameter(
            f"--out {out} has the suffix {out.suffix or '(none)'}; end it with one of {', '.join(FORMATS)}"
        )
    check_folder("--out", out)
    if out is not None and out.resolve() == file.resolve():
        raise typer.BadParameter(f"--out {out} is the file to draw, which would be lost; name another")
    plan = load_plan(file) if detect_kind(file) is DocumentKind.PLAN else None
    schedule = plan.schedule if plan is not None else load_schedule(file)
    if out is not None:
        title = file.name if plan is None else f"{plan.model} on {plan.device_model}"
        write_picture(
            schedule,
            plan,
            out,
            title=title,
            compare=compare,
            critical_path=critical_path,
            names=parse_names(schedules),
        )
    if json:
        from scripts.documents.schedules import Drawn

        console.print_json(
            Drawn(
                out=None if out is None else str(out),
                bytes=None if out is None else out.stat().st_size,
                blocks=len(schedule.starts),
                makespan=schedule.makespan,
            )
        )
    elif out is None:
        from tessel.picture import text_grid

        console.print_drawing(text_grid(schedule, width=console.stdout().width))
    else:
        console.print_note(f"{out} written")


def write_picture(
    schedule: Schedule,
    plan: Plan | None,
    out: Path,
    *,
    title: str,
    compare: bool = False,
    critical_path: bool = False,
    names: tuple[str, ...] | None = None,
) -> None:
    """Write the picture, page, report, trace or text that the path's suffix asks for."""
    from tessel.documents import save_document
    from tessel.picture.files import draw as draw_file

    compared = out.suffix in (".html", ".md") or (compare and out.suffix in PICTURES)
    comparison = build_comparison(schedule, plan, names) if compared else None
    if comparison is None and schedule.found_by:
        title = f"{title}, found by {schedule.found_by}"
    with console.progress_bar(f"drawing {len(schedule.starts)} blocks"):
        if comparison is not None and out.suffix not in PICTURES:
            save_document(out, _compared_document(comparison, plan, out, title=title))
        else:
            subject = schedule if comparison is None else comparison
            step_us = None if plan is None else plan.step_us
            draw_file(subject, out, title=title, step_us=step_us, critical_path=critical_path)


def _compared_document(comparison: Comparison, plan: Plan | None, out: Path, *, title: str) -> bytes:
    """Return the page, or the report, of a comparison."""
    if out.suffix == ".md":
        from scripts.markdown_report import comparison_table, plan_report

        text = comparison_table(comparison) if plan is None else plan_report(plan, comparison)
        return text.encode()
    from tessel.picture import page_document

    return page_document(
        comparison,
        title=title,
        step_ms=None if plan is None else plan.step_us / 1000,
        static_bytes=None if plan is None else plan.static_bytes,
        parts=() if plan is None else _plan_parts(plan),
        tables=() if plan is None else _plan_tables(plan),
    )


def _plan_parts(plan: Plan) -> tuple[PagePart, ...]:
    from tessel.picture.page import PagePart
    from tessel.pipeline import block_of_function

    return tuple(
        PagePart(
            operators=part.operators,
            backend=part.backend,
            latency_us=part.figure.latency_us,
            source=part.figure.source,
            occurrences=part.occurrences,
            runner_up=part.runner_up,
            blocks=tuple(map(block_of_function, part.functions)),
        )
        for part in plan.partition
    )


def _plan_tables(plan: Plan) -> tuple[PageTable, ...]:
    from tessel.picture.page import PageTable

    stages = tuple(
        (
            f"{stage.name}: {', '.join(stage.layers)}",
            *(
                "-" if figure is None else format_figure(figure)
                for figure in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
            ),
            console.format_bytes(stage.weight_bytes),
            console.format_bytes(stage.saved_bytes),
        )
        for stage in plan.stages
    )
    return (
        PageTable(
            title="Stages, per micro-batch (measured unless marked)",
            columns=("stage", "F", "B and W joint", "B", "W", "weights", "saved"),
            rows=stages,
        ),
    )
