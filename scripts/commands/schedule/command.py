"""`tessel schedule`: search for the order of all micro-batches on a named shape or your own placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.schedule.batch import find_batch
from scripts.commands.schedule.frontier import find_makespan_frontier, find_period_frontier
from scripts.commands.schedule.options import DEFAULT_MICRO_BATCHES, ScheduleOptions, ShapeOptions
from scripts.commands.schedule.placement import find_placement
from scripts.commands.schedule.results import save_schedule, show_repetend, show_schedule
from scripts.options import completion
from scripts.options.dataclass_options import common_options, takes_options
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.inputs.arguments import check_folder, parse_limits
from tessel.progress import interrupts

if TYPE_CHECKING:
    from tessel.placement import Placement

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
    blocks: ShapeOptions,
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
    placement = find_placement(shape, blocks)
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
    micro_batches = DEFAULT_MICRO_BATCHES if options.micro_batches is None else options.micro_batches
    found = search_thread.run_search(
        lambda: find(placement, micro_batches=micro_batches, memory=limits, budget=budget, seed=options.seed),
        budget,
        description="searching",
    )
    with interrupts.deferred():
        save_schedule(found, options.save)
        show_schedule(found, budget, as_json=options.json)
