"""A schedule as text for a terminal: device per row, the micro-batch's number in each column of steps.

    device 0   0 1 . . . . 0 0 0 1 1 1        forward blocks plain, other blocks in colour where there is any
    device 1   . 0 1 0 0 0 1 1 1 . . .

Long schedules are cut at the width; steps are merged where a schedule counts in thousands.
"""

from __future__ import annotations

import math

from rich.text import Text

from tessel.picture.bars import Bar, bars_of
from tessel.schedule import Schedule

_STYLE_BY_KIND = {
    "forward": "bold blue",
    "backward": "yellow",
    "backward_input": "bold yellow",
    "backward_weight": "green",
    "recompute": "magenta",
    "other": "white",
}


def text_grid(schedule: Schedule, *, width: int = 100) -> Text:
    """Return the schedule as coloured text.

    Args:
        schedule: what to show.
        width: columns at most; one column then stands for as many steps as needed.
    """
    label_width = len(f"device {schedule.placement.devices - 1}") + 2
    digits = len(str(max(schedule.micro_batches - 1, 0)))
    columns = max((width - label_width) // (digits + 1), 1)
    steps_per_column = max(math.ceil(schedule.makespan / columns), 1)
    rows: list[list[Bar | None]] = [
        [None] * math.ceil(schedule.makespan / steps_per_column) for _ in range(schedule.placement.devices)
    ]
    for bar in bars_of(schedule):
        if bar.start == bar.end:
            continue
        first = bar.start // steps_per_column
        for column in range(first, max(math.ceil(bar.end / steps_per_column), first + 1)):
            if column < len(rows[bar.device]):
                rows[bar.device][column] = bar
    text = Text()
    for device, row in enumerate(rows):
        text.append(f"device {device}".ljust(label_width))
        for cell in row:
            if cell is None:
                text.append(".".rjust(digits) + " ", style="dim")
            else:
                text.append(str(cell.micro_batch).rjust(digits) + " ", style=_STYLE_BY_KIND[cell.kind.value])
        text.append("\n")
    if steps_per_column > 1:
        text.append(f"one column is {steps_per_column} steps\n", style="dim")
    return text
