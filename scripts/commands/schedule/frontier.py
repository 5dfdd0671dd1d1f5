"""Frontiers: the optimal period, or the optimal makespan, of each memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.commands.schedule.results import STOPPED_BY
from scripts.terminal import console
from tessel.jobs import search_thread
from tessel.jobs.shown.formatting import format_numbers
from tessel.progress import interrupts, messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.commands.schedule.command import ScheduleOptions
    from scripts.documents.searches import PrintedOpenRange
    from tessel.picture.style import PictureStyle
    from tessel.placement import Placement
    from tessel.search import FrontierPoint, MakespanPoint
    from tessel.search.frontier.open_ranges import Frontier, OpenRange

    AnyFrontier = Frontier[FrontierPoint] | Frontier[MakespanPoint]

_SMALLER_SHARE = 0.15
"""Of the budget left, for each smaller number of micro-batches that a page offers."""


def find_period_frontier(placement: Placement, options: ScheduleOptions) -> None:
    """Find the optimal period of each memory limit, and show it as the options ask."""
    from tessel.search import find_frontier

    budget = options.make_budget()
    points = search_thread.run_search(
        lambda: find_frontier(placement, budget=budget),
        budget,
        description="searching a period for each limit",
    )
    with interrupts.deferred():
        _draw_frontier(points, options.save, width=options.picture_width(), style=options.picture_style())
        if options.json:
            _print_periods(points)
        else:
            _show_periods(points)


def find_makespan_frontier(placement: Placement, micro_batches: int, options: ScheduleOptions) -> None:
    """Find the optimal makespan of each memory limit, and show it as the options ask."""
    from tessel import search

    budget = options.make_budget()
    is_page = options.save is not None and options.save.suffix == ".html"
    sizes = _smaller_sizes(micro_batches) if is_page else ()
    smaller: list[Frontier[MakespanPoint]] = []

    def search_all() -> Frontier[MakespanPoint]:
        for size in sizes:
            part = budget.part(_SMALLER_SHARE)
            smaller.append(
                search.find_makespan_frontier(placement, micro_batches=size, budget=part, seed=options.seed)
            )
        return search.find_makespan_frontier(
            placement, micro_batches=micro_batches, budget=budget, seed=options.seed
        )

    points = search_thread.run_search(search_all, budget, description="searching a schedule for each limit")
    with interrupts.deferred():
        if is_page and options.save is not None:
            _write_page((*smaller, points), options.save)
        else:
            _draw_frontier(points, options.save, width=options.picture_width(), style=options.picture_style())
        if options.json:
            _print_makespans(points, micro_batches)
        else:
            _show_makespans(points)


def _show_periods(points: Frontier[FrontierPoint]) -> None:
    columns = ["memory limit", "period", "micro-batches", "steps per micro-batch", "lower bound", "proven"]
    rows = [
        [
            format_numbers(point.memory),
            str(point.period),
            str(point.copies),
            f"{float(point.rate):.4g}",
            str(point.lower_bound),
            _proof_of(point, is_open=points.is_open(max(point.memory))),
        ]
        for point in points
    ]
    console.print_table("", columns, rows)
    _print_open(points, "steps per micro-batch")


def _show_makespans(points: Frontier[MakespanPoint]) -> None:
    rows = [
        [
            format_numbers(point.memory),
            str(point.makespan),
            str(point.lower_bound),
            "proven optimal" if point.optimal else f"{point.gap:.1%}",
            point.found_by,
        ]
        for point in points
    ]
    console.print_table("", ["memory limit", "makespan", "lower bound", "gap", "found by"], rows)
    _print_open(points, "steps")


def _proof_of(point: FrontierPoint, *, is_open: bool) -> str:
    if not is_open:
        return "yes"
    return "open" if not point.optimal else "for this number of copies only"


def _print_periods(points: Frontier[FrontierPoint]) -> None:
    from scripts.documents.searches import PeriodFrontier, PrintedPeriod

    printed = tuple(
        PrintedPeriod(
            memory=point.memory,
            period=point.period,
            copies=point.copies,
            lower_bound=point.lower_bound,
            optimal=point.optimal,
            open=points.is_open(max(point.memory)),
        )
        for point in points
    )
    console.print_json(
        PeriodFrontier(frontier=printed, open=_open_documents(points), stopped_by=points.stopped_by)
    )


def _print_makespans(points: Frontier[MakespanPoint], micro_batches: int) -> None:
    from scripts.documents.searches import MakespanFrontier, PrintedMakespan

    printed = tuple(
        PrintedMakespan(
            memory=point.memory,
            makespan=point.makespan,
            lower_bound=point.lower_bound,
            optimal=point.optimal,
            gap=point.gap,
            found_by=point.found_by,
            open=points.is_open(max(point.memory)),
        )
        for point in points
    )
    console.print_json(
        MakespanFrontier(
            micro_batches=micro_batches,
            frontier=printed,
            open=_open_documents(points),
            stopped_by=points.stopped_by,
        )
    )


def _open_documents(points: AnyFrontier) -> tuple[PrintedOpenRange, ...]:
    """What a document says about limits whose best value is not known."""
    from scripts.documents.searches import PrintedOpenRange

    return tuple(
        PrintedOpenRange(
            first=each.first,
            last=each.last,
            at_least=float(each.at_least),
            at_most=None if each.at_most is None else float(each.at_most),
        )
        for each in points.open_ranges
    )


def _print_open(points: AnyFrontier, unit: str) -> None:
    """Say at which limits something better may exist than the table shows."""
    if not points.open_ranges:
        return
    rows = [
        [
            _limits_text(each),
            f"{float(each.at_least):.5g}",
            "none found" if each.at_most is None else f"{float(each.at_most):.5g}",
        ]
        for each in points.open_ranges
    ]
    reason = STOPPED_BY[points.stopped_by]
    console.print_line(f"\nopen, since {reason}: better schedules may exist at these limits")
    console.print_table("", ["memory limit", f"at least ({unit})", "found"], rows)


def _limits_text(each: OpenRange) -> str:
    if each.last is None:
        return f"{each.first} and more"
    return str(each.first) if each.first == each.last else f"{each.first} to {each.last}"


def _smaller_sizes(micro_batches: int) -> tuple[int, ...]:
    """Return a quarter and half of the micro-batches, which a page offers, too."""
    return tuple(sorted({micro_batches // 4, micro_batches // 2} - {0, micro_batches}))


def _write_page(frontiers: Sequence[Frontier[MakespanPoint]], page: Path) -> None:
    """Write a page on which limit and number of micro-batches choose among the schedules found."""
    from tessel.comparison import compare_schedules
    from tessel.documents import save_document
    from tessel.picture.page.document import PageVariant, page_document

    if not frontiers[-1]:
        messages.note(f"no schedule was found, so {page} is not written")
        return
    variants = [
        PageVariant(
            memory=max(point.memory),
            schedule=point.schedule,
            lower_bound=point.lower_bound,
            optimal=point.optimal,
        )
        for points in frontiers
        for point in points
    ]
    fastest = frontiers[-1][-1].schedule
    title = f"Schedules of {fastest.placement.devices} devices by memory limit and number of micro-batches"
    save_document(page, page_document(compare_schedules(fastest), title=title, variants=variants))
    messages.note(f"page written to {page}")


def _draw_frontier(
    points: AnyFrontier, picture: Path | None, *, width: float | None, style: PictureStyle
) -> None:
    if picture is not None:
        from tessel.picture.captions import save_figure
        from tessel.picture.charts.frontier import frontier_figure

        figure = frontier_figure(
            points, annotation_args=style.annotation_args, line_args=style.line_args, width=width
        )
        save_figure(figure, picture)
        messages.note(f"picture written to {picture}")
