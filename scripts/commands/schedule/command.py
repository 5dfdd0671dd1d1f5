"""`tessel schedule`: search for the order of all micro-batches on a named shape or your own placement."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.schedule.batch import find_batch
from scripts.commands.schedule.frontier import find_makespan_frontier, find_period_frontier
from scripts.commands.schedule.results import save_schedule, show_repetend, show_schedule
from scripts.options import completion
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.search_options import (
    JsonOption,
    TimeLimitOption,
    work_help,
)
from scripts.reports.picture_options import StyleOption, WidthOption
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.inputs.arguments import check_counts, check_folder, parse_limits, parse_spans
from tessel.jobs.inputs.limits import check_overlap_factor, make_budget
from tessel.jobs.shown.pictures import load_look, parse_width
from tessel.progress import interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.documents.searches import PrintedSpread
    from tessel.picture.style import PictureStyle
    from tessel.placement import Placement
    from tessel.schedule import Schedule
    from tessel.search.budget import SearchBudget

_DEFAULT_MICRO_BATCHES = 8
"""Micro-batches of a schedule unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class _ShapeOptions:
    """What a shape is made of; a placement file says all of it itself."""

    devices: Annotated[int | None, "Number of devices, such as 4; needed with a shape's name."] = None
    infer: Annotated[bool, "Leave out the backward and all memory."] = False
    split_backward: Annotated[bool, "Split each backward into its input and weight halves."] = False
    choose_backward: Annotated[bool, "Let the search choose joint or split, block by block."] = False
    recompute: Annotated[bool, "Recompute before each backward."] = False
    forward_span: Annotated[str | None, "Steps of a forward block; one, or one per stage."] = None
    backward_span: Annotated[str | None, "Steps of a joint backward; one, or one per stage."] = None
    backward_input_span: Annotated[str | None, "Steps of the input half; one, or one per stage."] = None
    backward_weight_span: Annotated[str | None, "Steps of the weight half; one, or one per stage."] = None
    forward_memory: Annotated[
        str | None, "Units that a forward block adds and its backward frees; one, or one per stage."
    ] = None
    recompute_memory: Annotated[
        str | None, "Units that a recomputation adds and its backward frees; one, or one per stage."
    ] = None
    tensor_parallel_span: Annotated[int | None, "Steps of a tensor-parallel block."] = None
    chunks: Annotated[int | None, "Stages per device, for `interleaved` and `zbv`.  [default: 2]"] = None
    lag: Annotated[str | None, "Steps between devices; one, or one per hop (`1,0,1`).  [default: 0]"] = None


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """What is searched for on a placement, for how long, and where the answer goes."""

    micro_batches: Annotated[int | None, "Micro-batches of one step, such as 16.  [default: 8]"] = None
    batch: Annotated[
        str | None, "Micro-batches that differ: factors of spans and how many, `1x6,2.5x2`, or a .json file."
    ] = None
    replicas: Annotated[int | None, "Share out the batch to so many replicas of the pipeline."] = None
    keep_order: Annotated[bool, "Give each replica consecutive micro-batches of the batch."] = False
    memory: Annotated[
        str | None, "Limit in units: one number, or one per device (`6,6,4,4`); none if left out."
    ] = None
    overlap_factor: Annotated[
        float | None,
        "Share of their sum that a forward and a backward take that run together on a device: 0.6.",
    ] = None
    spread: Annotated[
        str | None,
        "How the duration of each block varies: lognormal:0.1, uniform:0.2, or as recorded steps (.csv) or "
        "records (.jsonl) do; the makespan gets quantiles.",
    ] = None
    period_only: Annotated[bool, "Find only the repetend, without warm-up and cool-down."] = False
    frontier: Annotated[
        bool, "Show the optimal period for each memory limit; with --micro-batches, the optimal makespan."
    ] = False
    work: Annotated[float | None, work_help("10, unless --time-limit is given")] = None
    time_limit: TimeLimitOption = None
    seed: Annotated[int, "Seed of the search."] = 0
    save: Annotated[
        Path | None, "Write the schedule to this file, such as schedule.json; kept nowhere if left out."
    ] = None
    width: WidthOption = None
    style: StyleOption = None
    json: JsonOption = False

    def check(self) -> None:
        """Refuse a number of micro-batches that is none, and a share.

        Raises:
            typer.BadParameter: a number is less than 1.
            UsageError: a pair takes no share of its sum, or durations vary in no way that there is.
        """
        check_counts(self, ("micro_batches", "replicas"))
        check_overlap_factor(self.overlap_factor)
        if self.spread is not None:
            from tessel.jobs.inputs.spreads import spread_of

            spread_of(self.spread)

    def spread_of(self, schedules: Sequence[Schedule]) -> PrintedSpread | None:
        """Return what the makespan of replicas is where durations vary; None where that was not asked for.

        Raises:
            UsageError: it is no distribution.
            DocumentError: a file of recorded steps cannot be read.
            RecordFileError: a file of records cannot be read.
        """
        if self.spread is None:
            return None
        from scripts.documents.searches import PrintedSpread
        from tessel.batches.spread import QUANTILES
        from tessel.jobs.inputs.spreads import spread_of
        from tessel.search.batches.sampled import spread_of_makespan

        distribution = spread_of(self.spread)
        found = spread_of_makespan(schedules, distribution, seed=self.seed)
        return PrintedSpread(
            distribution=str(distribution),
            mean=found.mean,
            quantiles={f"p{each}": steps for each, steps in zip(QUANTILES, found.quantiles, strict=True)},
            greedy_ratio=found.greedy_ratio,
        )

    def check_looks(self) -> None:
        """Refuse looks that no picture has; to be called after the search is compiled, which pictures import.

        Raises:
            typer.BadParameter: a width is none.
            DocumentError: the style cannot be read.
        """
        if self.width is not None:
            self.picture_width()
        if self.style is not None:
            self.picture_style()

    def picture_width(self) -> float | None:
        """Return the width of a frontier's picture in inches; None where it is as for half a screen."""
        return None if self.width is None else parse_width(self.width)

    def picture_style(self) -> PictureStyle:
        """Return how a frontier's picture looks, over the defaults."""
        return load_look(self.style)

    def make_budget(self) -> SearchBudget:
        """Return what `--work` and `--time-limit` allow."""
        return make_budget(self.work, self.time_limit)


_PICTURES = (".svg", ".png", ".pdf")
"""What a frontier is saved as; one of whole schedules also as a page."""


@common_options(
    "devices micro_batches memory infer split_backward chunks lag period_only frontier",
    "work time_limit save json",
)
@takes_options
def schedule(
    shape: Annotated[
        str,
        typer.Argument(
            metavar="SHAPE|FILE", help="A shape's name or a placement file.", autocompletion=completion.shapes
        ),
    ],
    blocks: _ShapeOptions,
    options: ScheduleOptions,
) -> None:
    """Search for the order of all blocks of all micro-batches under a memory limit.

    Examples:

    `tessel schedule vshape --devices 4 --micro-batches 16 --memory 4`

    `tessel schedule my_placement.json --micro-batches 8 --save schedule.json`

    `tessel schedule vshape --devices 4 --batch 1x6,2.5x2`

    `tessel schedule vshape --devices 4 --micro-batches 16 --frontier --save frontier.svg`

    `tessel schedule vshape --devices 4 --micro-batches 16 --frontier --save frontier.html`
    """
    pages = () if options.micro_batches is None else (".html",)
    check_folder("--save", options.save, suffixes=(*_PICTURES, *pages) if options.frontier else ())
    options.check()
    placement = _find_placement(shape, blocks)
    limits = None if options.memory is None else parse_limits(options.memory, placement.devices)
    jit_fallback.compile_if_needed()
    options.check_looks()
    if options.frontier:
        if options.micro_batches is None:
            find_period_frontier(placement, options)
        else:
            find_makespan_frontier(placement, options.micro_batches, options)
    elif options.batch is not None:
        find_batch(placement, options.batch, limits, options)
    elif options.period_only:
        _find_repetend(placement, limits, options)
    else:
        _find_schedule(placement, limits, options)


def _find_repetend(placement: Placement, limits: tuple[int, ...] | None, options: ScheduleOptions) -> None:
    from tessel.search import find_repetend

    budget = options.make_budget()
    found = search_thread.run_search(
        lambda: find_repetend(placement, memory=limits, budget=budget), budget, description="searching"
    )
    with interrupts.deferred():
        show_repetend(found, budget, as_json=options.json)


def _find_schedule(placement: Placement, limits: tuple[int, ...] | None, options: ScheduleOptions) -> None:
    from functools import partial

    from tessel.search import find_overlapped, find_schedule

    factor = options.overlap_factor
    find = find_schedule if factor is None else partial(find_overlapped, factor=factor)
    budget = options.make_budget()
    micro_batches = _DEFAULT_MICRO_BATCHES if options.micro_batches is None else options.micro_batches
    found = search_thread.run_search(
        lambda: find(placement, micro_batches=micro_batches, memory=limits, budget=budget, seed=options.seed),
        budget,
        description="searching",
    )
    with interrupts.deferred():
        save_schedule(found, options.save)
        show_schedule(found, budget, options)


_SPANS = {
    "forward_span",
    "backward_span",
    "backward_input_span",
    "backward_weight_span",
    "forward_memory",
    "recompute_memory",
    "lag",
}


_MAX_DEVICES = 2**16
"""Devices of a shape: building so many takes seconds."""


def _find_placement(shape: str, options: _ShapeOptions) -> Placement:
    """Return the placement of a file, or that of a shape with its options.

    Raises:
        typer.BadParameter: the number of devices is missing, or an option's value is none.
        DocumentError: the file cannot be read as a placement.
    """
    from tessel.documents import load_placement
    from tessel.shapes import SHAPES, make_shape

    if shape not in SHAPES and (Path(shape).suffix or Path(shape).exists()):
        return load_placement(Path(shape))
    if shape in SHAPES and options.devices is None:
        raise typer.BadParameter(f"--devices is missing; say how many devices the {shape} spans")
    # What is on the command line; a span of 0 is one of these.
    given = {
        name: value for name, value in asdict(options).items() if value is not None and value is not False
    }
    devices = given.pop("devices", 1)
    if devices > _MAX_DEVICES:
        raise typer.BadParameter(f"--devices is {devices}; give at most {_MAX_DEVICES}")
    for name in given.keys() & _SPANS:
        given[name] = parse_spans(given[name])
    if "forward_memory" in given:
        given["backward_memory"] = _negated(given["forward_memory"])
    return make_shape(shape, devices, **given)


def _negated(units: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return -units if isinstance(units, int) else tuple(-each for each in units)
