"""A schedule as text for a terminal: device per row, time to the right, one character per interval of time.

    device 0  0>1>......0<<<<<..1<<<<<    `>` forward, `<` backward, `.` idle; the number is the micro-batch
    device 1  ..0>0<<<<<1>1<<<<<......

Where a device runs several stages, each has a mark of its own (`>` and `}`, `<` and `{`, …). A bar begins
with its micro-batch where that leaves room for its kind, which is seen without colours too. Where several
blocks fall on one character, the one with the largest share is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.text import Text

from tessel.picture.bars import Bar, bars_of, names_of
from tessel.picture.colors import BlockStyle, block_styles
from tessel.placement import BlockKind, Placement
from tessel.schedule import Schedule

_Mark = tuple[str, str]

_MARKS_BY_KIND = {
    BlockKind.FORWARD: (">}])", "bold blue"),
    BlockKind.BACKWARD: ("<{[(", "yellow"),
    BlockKind.BACKWARD_INPUT: ("iIjJ", "bold yellow"),
    BlockKind.BACKWARD_WEIGHT: ("wWvV", "green"),
    BlockKind.RECOMPUTE: ("rRsS", "magenta"),
    BlockKind.OTHER: ("=#+%", "white"),
}
"""A mark a chunk, over again from the fifth on, and the style, of each kind."""


def text_grid(schedule: Schedule, *, width: int = 100, device_names: Sequence[str] | None = None) -> Text:
    """Return the schedule as coloured text.

    Args:
        width: columns at most; one column then stands for as many steps as needed.
        device_names: of each row, what its device is called; the numbers from 0 on if None.
    """
    names = names_of(schedule, device_names)
    label_width = len("device ") + max(map(len, names)) + 2
    room = max(width - label_width, 1)
    digits = len(str(max(schedule.micro_batches - 1, 0)))
    columns = min(room, max(schedule.makespan, 1) * (digits + 1))
    if columns >= schedule.makespan > 0:
        columns -= columns % schedule.makespan  # each step as wide as the others
    rows: list[list[Bar]] = [[] for _ in range(schedule.placement.devices)]
    for bar in bars_of(schedule):
        if bar.end > bar.start:
            rows[bar.device].append(bar)
    styles = block_styles(schedule.placement)
    marks = _marks(schedule.placement, styles)
    text = Text()
    for device, bars in enumerate(rows):
        text.append(f"device {names[device]}".ljust(label_width))
        for characters, style in _runs(_cells(bars, columns, schedule.makespan), marks):
            text.append(characters, style=style)
        text.append("\n")
    legend = _legend({bar.block for bars in rows for bar in bars}, styles, marks)
    scale = schedule.makespan / max(columns, 1)
    if scale > 1:
        legend.append(f"one column is {scale:.4g} steps")
    text.append("   ".join(legend) + "\n", style="dim")
    return text


def _legend(drawn: set[str], styles: Mapping[str, BlockStyle], marks: Mapping[str, _Mark]) -> list[str]:
    """Return what the marks of each kind are, in order of its chunks."""
    found: dict[str, dict[int, str]] = {}
    for name, style in styles.items():
        if name in drawn:
            found.setdefault(style.label, {})[style.chunk] = marks[name][0]
    entries = [
        f"{' '.join(dict(sorted(of_chunk.items())).values())} {label}" for label, of_chunk in found.items()
    ]
    several = any(len(of_chunk) > 1 for of_chunk in found.values())
    return [*entries, ". idle", *(["a mark a chunk"] if several else [])]


def _marks(placement: Placement, styles: Mapping[str, BlockStyle]) -> dict[str, _Mark]:
    """Return mark and style by block: a mark a chunk, and a mark a kind where those are one's own."""
    kinds = {block.name: block.kind for block in placement.blocks}
    own = [name for name in styles if kinds[name] is BlockKind.OTHER]
    looks = list(dict.fromkeys((styles[name].label, styles[name].chunk) for name in own))
    found = {}
    for name, style in styles.items():
        marks, colour = _MARKS_BY_KIND[kinds[name]]
        number = looks.index((style.label, style.chunk)) if name in own else style.chunk
        found[name] = marks[number % len(marks)], colour
    return found


def _cells(bars: list[Bar], columns: int, makespan: int) -> list[Bar | None]:
    """Return for each column the bar that takes most of it, or None where idle time does.

    Times are multiplied by the number of columns, so that a column is `makespan` of them.
    """
    taken = [0] * columns
    busy = [0] * columns
    cells: list[Bar | None] = [None] * columns
    for bar in bars:
        start, end = bar.start * columns, bar.end * columns
        for column in range(start // makespan, -(-end // makespan)):
            part = min(end, (column + 1) * makespan) - max(start, column * makespan)
            busy[column] += part
            if part > taken[column]:
                taken[column], cells[column] = part, bar
    return [cell if 2 * busy[column] >= makespan else None for column, cell in enumerate(cells)]


def _runs(cells: list[Bar | None], marks: Mapping[str, _Mark]) -> Iterator[tuple[str, str]]:
    """Yield the characters and the style of each bar, and of each pause."""
    for bar, run in groupby(cells, key=lambda cell: cell):
        length = len(list(run))
        if bar is None:
            yield "." * length, "dim"
            continue
        mark, style = marks[bar.block]
        number = str(bar.micro_batch)
        yield (number if len(number) < length else "").ljust(length, mark), style
