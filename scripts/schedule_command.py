"""`tessel schedule`: search for the order of all micro-batches on a named shape or your own placement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scripts import completion, console, interrupts, searching, uncompiled
from scripts.arguments import check_folder, parse_limits, parse_spans

if TYPE_CHECKING:
    from scripts.documents.searches import PrintedOpenRange
    from tessel.placement import Placement
    from tessel.schedule import Schedule
    from tessel.search import FrontierPoint, MakespanPoint, RepetendResult
    from tessel.search.budget import SearchBudget
    from tessel.search.frontier.open_ranges import Frontier, OpenRange

    AnyFrontier = Frontier[FrontierPoint] | Frontier[MakespanPoint]

_SHAPE = "Shape options"
_SEARCH = "Search options"
_OUTPUT = "Output options"

_PICTURES = (".svg", ".png", ".pdf")
"""What a frontier is saved as."""

DEFAULT_MICRO_BATCHES = 8
"""Micro-batches of a schedule unless told otherwise."""


def schedule(
    shape: Annotated[
        str,
        typer.Argument(
            metavar="SHAPE|FILE",
            help="A shape's name or a placement file.",
            autocompletion=completion.shapes,
        ),
    ],
    devices: Annotated[
        int | None, typer.Option(help="Number of devices.", rich_help_panel=_SHAPE, show_default=False)
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches of one step.  [default: 8]", show_default=False)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Limit in units: one number, or one per device (`6,6,4,4`).")
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="Leave out the backward and all memory.", rich_help_panel=_SHAPE)
    ] = False,
    split_backward: Annotated[
        bool,
        typer.Option(
            "--split-backward",
            help="Split each backward into its input and weight halves.",
            rich_help_panel=_SHAPE,
        ),
    ] = False,
    choose_backward: Annotated[
        bool,
        typer.Option(
            "--choose-backward",
            help="Let the search choose joint or split, block by block.",
            rich_help_panel=_SHAPE,
        ),
    ] = False,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Recompute before each backward.", rich_help_panel=_SHAPE),
    ] = False,
    forward_span: Annotated[
        str | None,
        typer.Option(help="Steps of a forward block; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None,
    backward_span: Annotated[
        str | None,
        typer.Option(help="Steps of a joint backward; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None,
    backward_input_span: Annotated[
        str | None,
        typer.Option(help="Steps of the input half; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None,
    backward_weight_span: Annotated[
        str | None,
        typer.Option(help="Steps of the weight half; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None,
    forward_memory: Annotated[
        str | None,
        typer.Option(
            help="Units that a forward block adds and its backward frees; one, or one per stage.",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    recompute_memory: Annotated[
        str | None,
        typer.Option(
            help="Units that a recomputation adds and its backward frees; one, or one per stage.",
            rich_help_panel=_SHAPE,
        ),
    ] = None,
    tensor_parallel_span: Annotated[
        int | None, typer.Option(help="Steps of a tensor-parallel block.", rich_help_panel=_SHAPE)
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(help="Stages per device, for `interleaved` and `zbv`.", rich_help_panel=_SHAPE),
    ] = None,
    lag: Annotated[
        str | None, typer.Option(help="Steps between devices; one, or one per hop.", rich_help_panel=_SHAPE)
    ] = None,
    period_only: Annotated[
        bool,
        typer.Option(
            "--period-only",
            help="Find only the repetend, without warm-up and cool-down.",
            rich_help_panel=_SEARCH,
        ),
    ] = False,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="Show the optimal period for each memory limit; with --micro-batches, the optimal makespan.",
            rich_help_panel=_SEARCH,
        ),
    ] = False,
    work: Annotated[
        float | None, typer.Option(help=searching.WORK_HELP, rich_help_panel=_SEARCH, show_default=False)
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(help=searching.TIME_HELP, rich_help_panel=_SEARCH, show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.", rich_help_panel=_SEARCH)] = 0,
    save: Annotated[
        Path | None, typer.Option(help="Write the schedule to this file.", rich_help_panel=_OUTPUT)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Search for the order of all blocks of all micro-batches under a memory limit.

    Examples:

    `tessel schedule vshape --devices 4 --micro-batches 16 --memory 4`

    `tessel schedule my_placement.json --micro-batches 8 --save schedule.json`

    `tessel schedule vshape --devices 4 --micro-batches 16 --frontier --save frontier.svg`
    """
    check_folder("--save", save, suffixes=_PICTURES if frontier else ())
    if micro_batches is not None and micro_batches < 1:
        raise typer.BadParameter(f"--micro-batches is {micro_batches}; a step has at least one micro-batch")
    options = {
        "infer": infer,
        "split_backward": split_backward,
        "choose_backward": choose_backward,
        "recompute": recompute,
        "forward_span": forward_span,
        "backward_span": backward_span,
        "backward_input_span": backward_input_span,
        "backward_weight_span": backward_weight_span,
        "forward_memory": forward_memory,
        "recompute_memory": recompute_memory,
        "tensor_parallel_span": tensor_parallel_span,
        "chunks": chunks,
        "lag": lag,
    }
    placement = _placement(shape, devices, _given(options))
    limits = None if memory is None else parse_limits(memory, placement.devices)
    uncompiled.compile_or_do_without(searching.only_time(work, time_limit))
    if frontier:
        if micro_batches is None:
            budget = searching.make_budget(work, time_limit)
            _period_frontier(placement, budget, as_json=json, picture=save)
        else:
            budget = searching.make_budget(work, time_limit)
            _makespan_frontier(placement, micro_batches, budget, seed, as_json=json, picture=save)
        return
    if period_only:
        _repetend(placement, limits, searching.make_budget(work, time_limit), as_json=json)
        return
    number = DEFAULT_MICRO_BATCHES if micro_batches is None else micro_batches
    budget = searching.make_budget(work, time_limit)
    result = _whole_schedule(placement, number, limits, budget, seed)
    with interrupts.deferred():
        _save(result, save)
        _show_schedule(result, budget, as_json=json)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are on the command line; a span of 0 is one of them."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


def _placement(shape: str, devices: int | None, options: dict[str, Any]) -> Placement:
    from tessel.documents import load_placement
    from tessel.shapes import SHAPES, make_shape

    if shape not in SHAPES and (Path(shape).suffix or Path(shape).exists()):
        return load_placement(Path(shape))
    if shape in SHAPES and devices is None:
        raise typer.BadParameter(f"--devices is missing; say how many devices the {shape} spans")
    for name in options.keys() & _SPANS:
        options[name] = parse_spans(options[name])
    if "forward_memory" in options:
        options["backward_memory"] = _negated(options["forward_memory"])
    return make_shape(shape, 1 if devices is None else devices, **options)


_SPANS = {
    "forward_span",
    "backward_span",
    "backward_input_span",
    "backward_weight_span",
    "forward_memory",
    "recompute_memory",
    "lag",
}


def _negated(units: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return -units if isinstance(units, int) else tuple(-each for each in units)


def _repetend(
    placement: Placement, limits: tuple[int, ...] | None, budget: SearchBudget, *, as_json: bool
) -> None:
    from tessel.search import find_repetend

    found = searching.run_search(
        lambda: find_repetend(placement, memory=limits, budget=budget), budget, description="searching"
    )
    with interrupts.deferred():
        _show_repetend(found, budget, as_json=as_json)


def _whole_schedule(
    placement: Placement,
    micro_batches: int,
    limits: tuple[int, ...] | None,
    budget: SearchBudget,
    seed: int,
) -> Schedule:
    from tessel.search import find_schedule

    return searching.run_search(
        lambda: find_schedule(
            placement, micro_batches=micro_batches, memory=limits, budget=budget, seed=seed
        ),
        budget,
        description="searching",
    )


def _period_frontier(
    placement: Placement, budget: SearchBudget, *, as_json: bool, picture: Path | None
) -> None:
    from tessel.search import find_frontier

    points = searching.run_search(
        lambda: find_frontier(placement, budget=budget),
        budget,
        description="searching a period for each limit",
    )
    with interrupts.deferred():
        _draw_frontier(points, picture)
        if as_json:
            _print_periods(points)
            return
        columns = [
            "memory limit",
            "period",
            "micro-batches",
            "steps per micro-batch",
            "lower bound",
            "proven",
        ]
        rows = [
            [
                console.format_numbers(point.memory),
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


def _makespan_frontier(
    placement: Placement,
    micro_batches: int,
    budget: SearchBudget,
    seed: int,
    *,
    as_json: bool,
    picture: Path | None,
) -> None:
    from tessel.search import find_makespan_frontier

    points = searching.run_search(
        lambda: find_makespan_frontier(placement, micro_batches=micro_batches, budget=budget, seed=seed),
        budget,
        description="searching a schedule for each limit",
    )
    with interrupts.deferred():
        _draw_frontier(points, picture)
        if as_json:
            _print_makespans(points, micro_batches)
            return
        rows = [
            [
                console.format_numbers(point.memory),
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
    reason = _STOPPED_BY[points.stopped_by]
    console.print_line(f"\nopen, since {reason}: better schedules may exist at these limits")
    console.print_table("", ["memory limit", f"at least ({unit})", "found"], rows)


def _limits_text(each: OpenRange) -> str:
    if each.last is None:
        return f"{each.first} and more"
    return str(each.first) if each.first == each.last else f"{each.first} to {each.last}"


_STOPPED_BY = {
    "proven": "no better schedule exists",
    "work": "the work budget was spent",
    "time": "the time limit was reached",
    "interrupt": "the search was interrupted",
    "size": "the problem is too large to search further",
}


def _draw_frontier(points: AnyFrontier, picture: Path | None) -> None:
    if picture is not None:
        from tessel.picture import frontier_figure, save_figure

        save_figure(frontier_figure(points), picture)
        console.print_note(f"picture written to {picture}")


def _show_schedule(found: Schedule, budget: SearchBudget, *, as_json: bool) -> None:
    if as_json:
        from msgspec import UNSET

        from scripts.documents.searches import PrintedSchedule

        # What is proven is printed as it is saved; `optimal` says it.
        stopped_by = UNSET if budget.is_proven else budget.stopped_by
        saved = {name: getattr(found, name) for name in found.__struct_fields__}
        console.print_json(PrintedSchedule(**saved, stopped_by=stopped_by))
        return
    proof = "proven optimal" if found.optimal else f"gap {found.gap:.1%}"
    console.print_line(
        f"makespan      {found.makespan} steps for {found.micro_batches} micro-batches ({proof})"
    )
    console.print_line(f"lower bound   {found.lower_bound}")
    console.print_line(f"bubble ratio  {found.bubble_ratio:.1%}")
    limit = "" if found.memory is None else f" (limit {console.format_numbers(found.memory)})"
    console.print_line(f"peak memory   {console.format_numbers(found.peak_memory)}{limit}")
    if found.repetend is not None:
        repetend = found.repetend
        state = "proven optimal" if repetend.optimal else f"at least {repetend.lower_bound}"
        console.print_line(
            f"repetend      {repetend.micro_batches} micro-batches every {repetend.period} steps ({state}), "
            f"steps {repetend.start} to {repetend.end}"
        )
    _print_end(found.found_by, f"{found.search_seconds:.3f}", budget)


def _print_end(found_by: str, seconds: str, budget: SearchBudget) -> None:
    from tessel.search.budget import OPERATIONS_A_UNIT

    units = f"{budget.operations / OPERATIONS_A_UNIT:.3g} units of work"
    console.print_line(f"found by      {found_by}, in {seconds} s")
    console.print_line(f"stopped by    {budget.stopped_by}: {_STOPPED_BY[budget.stopped_by]}, after {units}")


def _show_repetend(found: RepetendResult, budget: SearchBudget, *, as_json: bool) -> None:
    if as_json:
        from scripts.documents.searches import PrintedRepetend

        document = PrintedRepetend(
            period=found.period,
            micro_batches=found.copies,
            lower_bound=found.lower_bound,
            optimal=found.optimal,
            steps_per_micro_batch=found.period / found.copies,
            rate_lower_bound=float(found.rate_lower_bound),
            rate_optimal=found.rate_optimal,
            starts=found.starts,
            search_seconds=found.search_seconds,
            found_by=found.found_by,
            stopped_by=budget.stopped_by,
        )
        console.print_json(document)
        return
    state = "proven optimal" if found.optimal else f"at least {found.lower_bound}"
    console.print_line(f"period        {found.period} steps for {found.copies} micro-batches ({state})")
    rate = f"{found.period / found.copies:.4g}"
    least = "proven optimal" if found.rate_optimal else f"at least {float(found.rate_lower_bound):.4g}"
    console.print_line(f"rate          {rate} steps per micro-batch ({least})")
    _print_end(found.found_by, f"{found.search_seconds:.4f}", budget)


def _save(found: Schedule, path: Path | None) -> None:
    from tessel.documents import save_document

    if path is not None:
        save_document(path, found.to_json())
        console.print_note(f"schedule written to {path}")
