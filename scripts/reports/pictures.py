"""Pictures, pages, reports and traces of a plan or a schedule: what a file's suffix asks for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.models import OptionInfo

from scripts.reports.comparison import build_comparison
from scripts.reports.planned import layout_report, layout_tables
from scripts.reports.tables import format_figure, format_layers, format_tensors
from scripts.terminal import console
from tessel.progress import messages

if TYPE_CHECKING:
    from scripts.reports.planned import AnyPlan
    from tessel.comparison import Comparison
    from tessel.picture.page import PageModel, PagePart, PageTable
    from tessel.picture.style import PictureStyle
    from tessel.schedule import Schedule
    from tessel.tuned_plan import Plan

PICTURES = (".svg", ".png", ".pdf")
_MIN_INCHES, _MAX_INCHES = 2.0, 60.0
FORMATS = (*PICTURES, ".html", ".json", ".txt", ".md")

_WIDTH_HELP = (
    "Width of a picture: column or page (3.33 and 7 inches: one and both columns of print), screen, or "
    "inches such as 5.5in."
)
_STYLE_HELP = "JSON file with the looks of what a picture is made of (docs/pictures.md)."


def width_option(panel: str | None = None) -> OptionInfo:
    """Return the option `--width` of a command that draws."""
    found: OptionInfo = typer.Option(help=_WIDTH_HELP, rich_help_panel=panel)
    return found


def style_option(panel: str | None = None) -> OptionInfo:
    """Return the option `--style` of a command that draws."""
    found: OptionInfo = typer.Option(metavar="FILE", help=_STYLE_HELP, rich_help_panel=panel)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOptions:
    """What `tessel draw` was asked for, beside the file.

    Attributes:
        compare: whether hand-written schedules stand on the same time axis.
        gains: whether the picture is a bar chart of the gains over 1F1B.
        critical_path: whether critical paths are drawn.
        names: of the hand-written schedules; all that apply if None.
        style: a file with the looks of bars, numbers and critical paths.
        width: of a picture, in inches; as for a screen if None.
    """

    compare: bool = False
    gains: bool = False
    critical_path: bool = False
    names: tuple[str, ...] | None = None
    style: Path | None = None
    width: float | None = None


def write_picture(
    schedule: Schedule,
    plan: AnyPlan | None,
    out: Path,
    *,
    title: str,
    options: PictureOptions = PictureOptions(),
) -> None:
    """Write the picture, page, report, trace or text that the path's suffix asks for.

    Raises:
        DocumentError: the style cannot be read, or the folder not be written.
    """
    from tessel.documents import save_document
    from tessel.picture.files import draw as draw_file

    style = load_look(options.style)
    compared = out.suffix in (".html", ".md") or options.compare or options.gains
    comparison = build_comparison(schedule, plan, options.names) if compared else None
    if options.gains:
        title = f"Gains over 1F1B: {title}"
    elif comparison is None and schedule.found_by:
        title = f"{title}, found by {schedule.found_by}"
    with messages.bar(f"drawing {len(schedule.starts)} blocks"):
        if comparison is not None and out.suffix not in PICTURES:
            save_document(out, _compared_document(comparison, plan, out, title=title))
        else:
            draw_file(
                schedule if comparison is None else comparison,
                out,
                title=title,
                step_us=None if plan is None else plan.step_us,
                critical_path=options.critical_path,
                gains=options.gains,
                style=style,
                width=_inches(options),
                device_names=None if plan is None else plan.device_names,
            )


def load_look(style: Path | None) -> PictureStyle:
    """Return what a file says of a picture's looks; nothing if there is none.

    Raises:
        DocumentError: the file cannot be read, or has a key or a value that no style has.
    """
    from tessel.picture.style import PictureStyle, load_style

    return PictureStyle() if style is None else load_style(style)


def parse_width(text: str) -> float:
    """Return a picture's width in inches; `column`, `page`, `screen`, or a number with or without `in`.

    Raises:
        BadParameter: it is none of these, or no picture of that width could be read.
    """
    from tessel.picture.sizes import COLUMN_INCHES, PAGE_INCHES, SCREEN_INCHES

    named = {"column": COLUMN_INCHES, "page": PAGE_INCHES, "screen": SCREEN_INCHES}
    if text in named:
        return named[text]
    try:
        inches = float(text.removesuffix("in"))
    except ValueError:
        inches = math.nan
    if not _MIN_INCHES <= inches <= _MAX_INCHES:
        raise typer.BadParameter(
            f"--width {text} is no width of a picture; give {', '.join(named)}, or {_MIN_INCHES:g} to "
            f"{_MAX_INCHES:g} inches such as 5.5in"
        )
    return inches


def _inches(options: PictureOptions) -> float:
    from tessel.picture.sizes import SCREEN_INCHES

    if options.width is not None:
        return options.width
    return SCREEN_INCHES / 2 if options.gains else SCREEN_INCHES


def _compared_document(comparison: Comparison, plan: AnyPlan | None, out: Path, *, title: str) -> bytes:
    """Return the page, or the report, of a comparison."""
    from tessel.tuned_plan import Plan

    if out.suffix == ".md":
        return _report(comparison, plan).encode()
    from tessel.picture import page_document

    return page_document(
        comparison,
        title=title,
        step_ms=None if plan is None else plan.step_us / 1000,
        static_bytes=None if plan is None else plan.static_bytes,
        device_names=None if plan is None else plan.device_names,
        model=_plan_model(plan) if isinstance(plan, Plan) else None,
        tables=() if plan is None else _plan_tables(plan) if isinstance(plan, Plan) else layout_tables(plan),
    )


def _report(comparison: Comparison, plan: AnyPlan | None) -> str:
    """Return the Markdown report of a comparison."""
    from scripts.reports.markdown_report import comparison_table, plan_report
    from tessel.tuned_plan import Plan

    if plan is None:
        return comparison_table(comparison)
    return plan_report(plan, comparison) if isinstance(plan, Plan) else layout_report(plan, comparison)


def _plan_model(plan: Plan) -> PageModel:
    from tessel.picture.page import GraphPart, PageModel
    from tessel.pipeline import blocks_of_function

    functions = dict.fromkeys(node.function for node in plan.graph)
    return PageModel(
        parts=_plan_parts(plan),
        graph=tuple(
            GraphPart(part=node.part, function=node.function, layers=node.layers, inputs=node.inputs)
            for node in plan.graph
        ),
        block_of_function={
            function: blocks[0]
            for function in functions
            if (blocks := blocks_of_function(function, plan.placement))
        },
        layers={block.name: _layers_of(block.name, plan) for block in plan.placement.blocks},
    )


def _layers_of(block: str, plan: Plan) -> tuple[str, ...]:
    """Return the layers of the stage that a block runs: `b1_input` is of stage 1."""
    number = re.search(r"\d+", block)
    stage = None if number is None else int(number[0])
    return plan.stages[stage].layers if stage is not None and stage < len(plan.stages) else ()


def _plan_parts(plan: Plan) -> tuple[PagePart, ...]:
    from tessel.picture.page import PagePart
    from tessel.pipeline import blocks_of_function

    return tuple(
        PagePart(
            operators=part.operators,
            backend=part.backend,
            latency_us=part.figure.latency_us,
            source=part.figure.source,
            occurrences=part.occurrences,
            runner_up=part.runner_up,
            blocks=tuple(
                block for function in part.functions for block in blocks_of_function(function, plan.placement)
            ),
            layers=format_layers(part.layers),
            tensors=format_tensors(part),
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
