"""`tessel draw`: a picture, a page or a trace of a plan or a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options.dataclass_options import takes_options
from scripts.reports.picture_options import StyleOption, WidthOption
from scripts.reports.tables import SchedulesOption
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder, parse_names
from tessel.jobs.plan import load_planned
from tessel.jobs.shown.pictures import FORMATS, PictureOptions, write_picture
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.jobs.plan import Plan
    from tessel.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """What is drawn, where to, and how it looks."""

    out: Annotated[
        Path | None,
        "What to write; the suffix chooses: .svg .png .pdf a picture, .html a page, .json a trace "
        "for Perfetto, .txt text, .md a report. Left out: text on the terminal, the default.",
    ] = None
    compare: Annotated[bool, "Draw the hand-written schedules beside it, on one time axis."] = False
    gains: Annotated[bool, "Draw a bar chart of the gains over 1F1B in place of the schedules."] = False
    critical_path: Annotated[bool, "Draw the critical path through the bars."] = False
    schedules: SchedulesOption = None
    width: WidthOption = None
    style: StyleOption = None
    serve: Annotated[
        bool,
        "Serve a page on this machine, until Ctrl-C, on which durations, memory and micro-batches "
        "are changed and the search answers within a second.",
    ] = False
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --serve; 0 for a free one.")] = 0
    json: Annotated[bool, "Print one JSON document on stdout: what was drawn, and where."] = False


@takes_options
def draw(
    file: Annotated[Path, typer.Argument(metavar="PLAN|FILE", help="A plan or a schedule file.")],
    options: DrawOptions,
) -> None:
    """Draw a plan or a schedule: device per row, time to the right, memory below.

    Examples:

    `tessel draw out/gpt2/plan.json --out schedule.svg --critical-path`

    `tessel draw out/gpt2/plan.json --out comparison.svg --compare --schedules 1f1b,zb-h1`

    `tessel draw schedule.json --out schedule.html`

    `tessel draw schedule.json --out schedule.pdf --width column`

    `tessel draw schedule.json --serve`
    """
    out = options.out
    if out is not None and out.suffix not in FORMATS:
        raise typer.BadParameter(
            f"--out {out} has the suffix {out.suffix or '(none)'}; end it with one of {', '.join(FORMATS)}"
        )
    check_folder("--out", out)
    if out is not None and out.resolve() == file.resolve():
        raise typer.BadParameter(f"--out {out} is the file to draw, which would be lost; name another")
    schedule, plan = load_planned(file)
    if options.serve:
        _serve(schedule, plan, options.port)
        return
    if out is not None:
        from tessel.picture.description import schedule_title

        pictured = PictureOptions(
            compare=options.compare,
            gains=options.gains,
            critical_path=options.critical_path,
            names=parse_names(options.schedules),
            style=options.style,
            width=options.width,
        )
        title = schedule_title(schedule) if plan is None else plan.title
        write_picture(schedule, plan, out, title=title, options=pictured)
    if options.json:
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
        from tessel.picture.text import text_grid

        console.print_drawing(text_grid(schedule, width=console.stdout().width))
    else:
        messages.note(f"{out} written")


def _serve(schedule: Schedule, plan: Plan | None, port: int) -> None:
    from tessel.jobs import jit_fallback
    from tessel.jobs.serving import serve_until_interrupt
    from tessel.jobs.shown.live_page import LivePage
    from tessel.picture.description import schedule_title

    jit_fallback.compile_if_needed()
    page = LivePage(schedule, plan, schedule_title(schedule) if plan is None else plan.title)
    page.warm_up()
    serve_until_interrupt(
        page.answer,
        port=port,
        tell=lambda address: messages.note(f"open {address} in a browser; Ctrl-C ends it"),
    )
