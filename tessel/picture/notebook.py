"""Pictures that a notebook shows of its own accord: SVG texts of schedules and of placements.

`tessel.load_ipython_extension` tells IPython to show schedules and placements by these functions. A placement
is shown as one micro-batch that runs alone, each block as early as its edges and devices allow.
Checked in tests/tessel/picture/test_notebook.py.
"""

from __future__ import annotations

from tessel.orders import Task, earliest_starts
from tessel.picture.captions import svg_document
from tessel.picture.figures import schedule_figure
from tessel.placement import Placement
from tessel.schedule import Schedule

MAX_BLOCKS = 4000
"""Runs of blocks that are drawn at most: their picture has 2 MB, and a notebook keeps every one."""


def schedule_svg(schedule: Schedule) -> str | None:
    """Return the schedule over its memory as an SVG document; None for more than `MAX_BLOCKS` runs."""
    return _svg(schedule, repr(schedule))


def placement_svg(placement: Placement) -> str | None:
    """Return one micro-batch of the placement as an SVG document; None for more than `MAX_BLOCKS` blocks.

    Where there are choices, each is drawn with its first option.
    """
    chosen = placement.chosen({choice.name: 0 for choice in placement.choices})
    steps = [Task(chosen.index_by_name[name], 0) for name in chosen.topological_order]
    orders = [
        [step for step in steps if device in chosen.blocks[step.block_index].devices]
        for device in range(chosen.devices)
    ]
    alone = Schedule.of(chosen, earliest_starts(chosen, orders), micro_batches=1)
    return _svg(alone, repr(placement))


def _svg(schedule: Schedule, title: str) -> str | None:
    if len(schedule.starts) > MAX_BLOCKS:
        return None
    return svg_document(schedule_figure(schedule, title=title))
