"""Pictures, pages, reports and traces of a plan or a schedule: what a file's suffix asks for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessel.errors import UsageError
from tessel.jobs.shown.formatting import format_bytes, format_figure, format_layers, format_tensors
from tessel.jobs.shown.plan_tables import layout_report, layout_tables
from tessel.progress import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessel.comparison import Comparison
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.picture.page.document import PageModel, PagePart, PageTable, PageVariant
    from tessel.picture.style import PictureStyle
    from tessel.schedule import Schedule
    from tessel.tuned_plan import TunedPlan

PICTURES = (".svg", ".png", ".pdf")
_MIN_INCHES, _MAX_INCHES = 2.0, 60.0
FORMATS = (*PICTURES, ".html", ".json", ".txt", ".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOptions:
    """What `tessel draw` was asked for, beside the file.

    Attributes:
        compare: whether hand-written schedules stand on the same time axis.
        gains: whether the picture is a bar chart of the gains over 1F1B.
        names: of the hand-written schedules; all that apply if None.
        style: a file with the looks of bars, numbers and critical paths.
        width: of a picture: `column`, `page`, `screen` or inches; as for a screen if None.
    """

    compare: bool = False
    gains: bool = False
    critical_path: bool = False
    names: tuple[str, ...] | None = None
    style: Path | None = None
    width: str | float | None = None


def write_picture(
    schedule: Schedule,
    plan: PlanView | None,
    out: Path,
    *,
    title: str,
    options: PictureOptions = PictureOptions(),
) -> None:
    """Write the picture, page, report, trace or text that the path's suffix asks for.

    Raises:
        UsageError: the suffix or the width is none.
        DocumentError: the style cannot be read, or the folder not be written.
    """
    from tessel.documents import save_document
    from tessel.picture.files import draw as draw_file

    if out.suffix not in FORMATS:
        raise UsageError(
            f"{out} has the suffix {out.suffix or '(none)'}; end it with one of {', '.join(FORMATS)}"
        )
    is_picture = out.suffix in PICTURES  # what else there is needs no matplotlib
    style = load_look(options.style) if is_picture or options.style is not None else None
    width = _inches(options) if is_picture or options.width is not None else None
    compared = out.suffix in (".html", ".md") or options.compare or options.gains
    comparison = build_comparison(schedule, plan, options.names) if compared else None
    if options.gains:
        title = f"Gains over 1F1B: {title}"
    elif comparison is None and schedule.found_by:
        title = f"{title}, found by {schedule.found_by}"
    if plan is not None:
        title = f"{title}: {verdict_of(plan)}"
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
                width=width,
                device_names=None if plan is None else plan.device_names,
            )


def verdict_of(plan: PlanView) -> str:
    """Return what a step takes, what it takes at least, and what is proven of it, for a heading."""
    return f"{plan.step_ms:.4g} ms a step, at least {plan.lower_bound_ms:.4g} ms, {plan.proof}"


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
        UsageError: it is none of these, or no picture of that width could be read.
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
        raise UsageError(
            f"--width {text} is no width of a picture; give {', '.join(named)}, or {_MIN_INCHES:g} to "
            f"{_MAX_INCHES:g} inches such as 5.5in"
        )
    return inches


def _inches(options: PictureOptions) -> float:
    from tessel.picture.sizes import SCREEN_INCHES

    if options.width is not None:
        return parse_width(str(options.width))
    return SCREEN_INCHES / 2 if options.gains else SCREEN_INCHES


def _compared_document(comparison: Comparison, plan: PlanView | None, out: Path, *, title: str) -> bytes:
    """Return the page, or the report, of a comparison."""
    if out.suffix == ".md":
        return _report(comparison, plan).encode()
    return compared_page(comparison, plan, title=title)


def compared_page(
    comparison: Comparison,
    plan: PlanView | None,
    *,
    title: str,
    variants: Sequence[PageVariant] = (),
    is_changed: bool = False,
) -> bytes:
    """Return the page of a comparison; in milliseconds and bytes for a plan.

    Args:
        comparison: schedules of the plan's placement, or of any.
        variants: schedules that were searched beforehand.
        is_changed: whether blocks or limits are others than the plan's, whose tables are then left out.
    """
    from tessel.picture.page.document import page_document

    return page_document(
        comparison,
        title=title,
        step_ms=None if plan is None else plan.step_us / 1000,
        static_bytes=None if plan is None else plan.static_bytes,
        device_names=None if plan is None else plan.device_names,
        model=None if plan is None or plan.tuned is None else _plan_model(plan.tuned),
        tables=() if plan is None or is_changed else _tables(plan),
        variants=variants,
    )


def _tables(plan: PlanView) -> tuple[PageTable, ...]:
    """Return what a page shows beside the schedule."""
    if plan.tuned is not None:
        return _plan_tables(plan.tuned)
    assert plan.planned is not None, "a plan is of a model or of a table"
    return layout_tables(plan.planned)


def _report(comparison: Comparison, plan: PlanView | None) -> str:
    """Return the Markdown report of a comparison."""
    from tessel.jobs.shown.markdown_report import comparison_table, plan_report

    if plan is None:
        return comparison_table(comparison)
    if plan.tuned is not None:
        return plan_report(plan.tuned, comparison)
    assert plan.planned is not None, "a plan is of a model or of a table"
    return layout_report(plan.planned, comparison)


def build_comparison(
    schedule: Schedule, plan: PlanView | None = None, names: Sequence[str] | None = None
) -> Comparison:
    """Build the hand-written schedules beside one; in milliseconds and bytes for a plan.

    Raises:
        ValueError: there is no hand-written schedule of such a name.
    """
    from tessel.comparison import compare_schedules

    with messages.bar("building hand-written schedules") as update:
        return compare_schedules(
            schedule,
            names=names,
            step_us=None if plan is None else plan.step_us,
            static_bytes=None if plan is None else plan.static_bytes,
            on_progress=lambda name, done, total: update(f"building {name}", done, total),
        )


def _plan_model(plan: TunedPlan) -> PageModel:
    from tessel.picture.page.document import GraphPart, PageModel
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


def _layers_of(block: str, plan: TunedPlan) -> tuple[str, ...]:
    """Return the layers of the stage that a block runs: `b1_input` is of stage 1."""
    number = re.search(r"\d+", block)
    stage = None if number is None else int(number[0])
    return plan.stages[stage].layers if stage is not None and stage < len(plan.stages) else ()


def _plan_parts(plan: TunedPlan) -> tuple[PagePart, ...]:
    from tessel.picture.page.document import PagePart
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


def _plan_tables(plan: TunedPlan) -> tuple[PageTable, ...]:
    from tessel.picture.page.document import PageTable

    stages = tuple(
        (
            f"{stage.name}: {', '.join(stage.layers)}",
            *(
                "-" if figure is None else format_figure(figure)
                for figure in (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
            ),
            format_bytes(stage.weight_bytes),
            format_bytes(stage.saved_bytes),
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
