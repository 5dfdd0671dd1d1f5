"""Pictures, pages, reports and traces of a plan or a schedule: what a file's suffix asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.reports.comparison import build_comparison
from scripts.reports.planned import layout_report, layout_tables
from scripts.reports.tables import format_figure, format_layers, format_tensors
from scripts.terminal import console

if TYPE_CHECKING:
    from scripts.reports.planned import AnyPlan
    from tessel.comparison import Comparison
    from tessel.picture.page import PageModel, PagePart, PageTable
    from tessel.plan import Plan
    from tessel.schedule import Schedule

PICTURES = (".svg", ".png", ".pdf")
FORMATS = (*PICTURES, ".html", ".json", ".txt", ".md")


def write_picture(
    schedule: Schedule,
    plan: AnyPlan | None,
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


def _compared_document(comparison: Comparison, plan: AnyPlan | None, out: Path, *, title: str) -> bytes:
    """Return the page, or the report, of a comparison."""
    from tessel.plan import Plan

    if out.suffix == ".md":
        return _report(comparison, plan).encode()
    from tessel.picture import page_document

    return page_document(
        comparison,
        title=title,
        step_ms=None if plan is None else plan.step_us / 1000,
        static_bytes=None if plan is None else plan.static_bytes,
        model=_plan_model(plan) if isinstance(plan, Plan) else None,
        tables=() if plan is None else _plan_tables(plan) if isinstance(plan, Plan) else layout_tables(plan),
    )


def _report(comparison: Comparison, plan: AnyPlan | None) -> str:
    """Return the Markdown report of a comparison."""
    from scripts.reports.markdown_report import comparison_table, plan_report
    from tessel.plan import Plan

    if plan is None:
        return comparison_table(comparison)
    return plan_report(plan, comparison) if isinstance(plan, Plan) else layout_report(plan, comparison)


def _plan_model(plan: Plan) -> PageModel:
    from tessel.picture.page import GraphPart, PageModel
    from tessel.pipeline import block_of_function

    functions = dict.fromkeys(node.function for node in plan.graph)
    return PageModel(
        parts=_plan_parts(plan),
        graph=tuple(
            GraphPart(part=node.part, function=node.function, layers=node.layers, inputs=node.inputs)
            for node in plan.graph
        ),
        block_of_function={function: block_of_function(function) for function in functions},
        layers={block.name: _layers_of(block.name, plan) for block in plan.placement.blocks},
    )


def _layers_of(block: str, plan: Plan) -> tuple[str, ...]:
    """Return the layers of the stage that a block runs: `b1_input` is of stage 1."""
    number = re.search(r"\d+", block)
    stage = None if number is None else int(number[0])
    return plan.stages[stage].layers if stage is not None and stage < len(plan.stages) else ()


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
