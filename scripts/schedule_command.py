"""`tessel schedule`: search the order of all micro-batches for a shape or a placement of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.arguments import parse_duration, parse_limits, parse_spans

if TYPE_CHECKING:
    from tessel.placement import Placement
    from tessel.schedule import Schedule
    from tessel.search import RepetendResult

_SHAPE_ONLY = "only with a shape; a file says it itself"


def schedule(
    shape: Annotated[str, typer.Argument(metavar="SHAPE|FILE", help="A shape's name or a placement file.")],
    devices: Annotated[int | None, typer.Option(help=f"Number of devices ({_SHAPE_ONLY}).")] = None,
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of one step.")] = 8,
    memory: Annotated[str | None, typer.Option(help="Limit in units: one number, or one a device.")] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Leave out the backward and all memory.")] = False,
    split_backward: Annotated[
        bool, typer.Option("--split-backward", help="Split each backward into input and weight halves.")
    ] = False,
    choose_backward: Annotated[
        bool, typer.Option("--choose-backward", help="Leave joint or split to the search, block by block.")
    ] = False,
    forward_span: Annotated[str, typer.Option(help="Steps of a forward block; one, or one a stage.")] = "1",
    backward_span: Annotated[str, typer.Option(help="Steps of a joint backward; one, or one a stage.")] = "3",
    tensor_parallel_span: Annotated[int, typer.Option(help="Steps of a tensor-parallel block.")] = 1,
    chunks: Annotated[int, typer.Option(help="Chunks a device, for `interleaved`.")] = 2,
    lag: Annotated[int, typer.Option(help="Steps between devices.")] = 0,
    period_only: Annotated[
        bool, typer.Option("--period-only", help="Find the repetend alone, without warm-up and cool-down.")
    ] = False,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Show the least period for every memory limit.")
    ] = False,
    time_limit: Annotated[str, typer.Option(help="Time for the search, such as 10s.")] = "10s",
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the schedule to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Search the order of all blocks of all micro-batches.

    Examples: `tessel schedule vshape --devices 4 --micro-batches 16 --memory 4`,
    `tessel schedule my_placement.json --micro-batches 8 --save schedule.json`.
    """
    from tessel.search import find_frontier, find_repetend, find_schedule

    if micro_batches < 1:
        raise typer.BadParameter(f"--micro-batches is {micro_batches}; a step has at least one micro-batch")
    placement = _placement(
        shape,
        devices,
        infer=infer,
        split_backward=split_backward,
        choose_backward=choose_backward,
        forward_span=forward_span,
        backward_span=backward_span,
        tensor_parallel_span=tensor_parallel_span,
        chunks=chunks,
        lag=lag,
    )
    limits = None if memory is None else parse_limits(memory, placement.devices)
    time_limit_s = parse_duration(time_limit)
    if frontier:
        points = find_frontier(placement, time_limit_s=time_limit_s)
        _show_frontier(points, as_json=json)
    elif period_only:
        _show_repetend(
            find_repetend(placement, memory=limits, time_limit_s=time_limit_s, seed=seed), as_json=json
        )
    else:
        with console.progress_bar("searching") as update:
            found = find_schedule(
                placement,
                micro_batches=micro_batches,
                memory=limits,
                time_limit_s=time_limit_s,
                seed=seed,
                on_progress=lambda progress: update(f"makespan {progress.makespan}"),
            )
        _show_schedule(found, as_json=json)
        _save(found, save)


def _placement(shape: str, devices: int | None, **options: object) -> Placement:
    from tessel.documents import load_placement
    from tessel.shapes import SHAPES, make_shape

    if shape not in SHAPES and (Path(shape).suffix or Path(shape).exists()):
        if devices is not None:
            raise typer.BadParameter(f"--devices is {_SHAPE_ONLY}: leave it out for {shape}")
        return load_placement(Path(shape))
    if devices is None:
        raise typer.BadParameter(f"--devices is missing; say how many devices the {shape} spans")
    arguments = dict(options)
    for name in ("forward_span", "backward_span"):
        arguments[name] = parse_spans(str(arguments[name]))
    if shape != "interleaved":
        arguments.pop("chunks")
    return make_shape(shape, devices, **arguments)


def _show_schedule(found: Schedule, *, as_json: bool) -> None:
    if as_json:
        console.print_json(found)
        return
    proof = "proven least" if found.optimal else f"gap {found.gap:.1%}"
    console.print_line(
        f"makespan {found.makespan} steps for {found.micro_batches} micro-batches "
        f"(lower bound {found.lower_bound}, {proof}), found by {found.found_by} in {found.search_seconds:.3f} s"
    )
    console.print_line(f"bubble ratio {found.bubble_ratio:.1%}, peak memory {list(found.peak_memory)} units")
    if found.repetend is not None:
        repetend = found.repetend
        state = "proven least" if repetend.optimal else f"at least {repetend.lower_bound}"
        console.print_line(
            f"repetend of {repetend.micro_batches} micro-batches every {repetend.period} steps ({state}), "
            f"steps {repetend.start} to {repetend.end}"
        )


def _show_repetend(found: RepetendResult, *, as_json: bool) -> None:
    from scripts.repetend_document import repetend_document

    if as_json:
        console.print_json(repetend_document(found))
        return
    state = "proven least" if found.optimal else f"at least {found.lower_bound}"
    console.print_line(
        f"period {found.period} steps for {found.copies} micro-batches ({state}), "
        f"found by {found.found_by} in {found.search_seconds:.4f} s"
    )


def _save(found: Schedule, path: Path | None) -> None:
    from tessel.documents import save_document

    if path is not None:
        save_document(path, found.to_json())
        console.print_note(f"schedule written to {path}")
