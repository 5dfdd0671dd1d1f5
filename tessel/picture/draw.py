"""Draw schedules with matplotlib, on axes that the caller gives.

Device per row, time to the right, colour by kind of block, every second micro-batch (or, where devices run
several stages, every later chunk) lighter, the micro-batch's number in each bar that has room for it, pale
grey where a device idles, dashed lines where the repeating part begins and ends, and on demand the critical
path through the bars. Where there are so many bars that a vector picture would take longer to open than to
read, they are rasterised; lines and text stay vectors. Nothing here reads or writes global figure state.

Source: the arguments for annotations, rectangles and lines are those of René's visualizer (Chung et al.,
Perseus, SOSP 2024); here one collection per kind replaces one rectangle per instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb

from tessel.picture.bars import Bar, bars_of, critical_bars, idle_steps
from tessel.picture.colors import CHUNK_COLOR, CRITICAL, IDLE, BlockStyle, block_styles, chunk_whites
from tessel.schedule import Schedule

ArtistArgs = Mapping[str, object]
"""Properties of a matplotlib artist by name, as its `set` takes them."""

MAX_VECTOR_BARS = 20_000
"""More bars than this are drawn as pixels: an SVG of 65 536 bars as vectors has 14 MB and is slow to open."""

_Numbers = npt.NDArray[np.float64]

_BAR_HEIGHT = 0.84
_CHARACTER_EM = 0.62  # advance width of a digit in DejaVu Sans, in ems
_PADDING_EM = 0.3  # on both sides together, or numbers of neighbours read as one
_FONT_POINTS = 7.5
_SMALLEST_POINTS = 4.5  # smaller digits are not read on paper
_MAX_TEXTS = 4000  # beyond this many numbers a reader follows none of them, and drawing takes seconds
_PATH_BELOW = 0.3  # the critical path runs below the numbers


def draw_schedule(
    schedule: Schedule,
    axes: Axes,
    *,
    step_ms: float | None = None,
    title: str = "",
    end: int | None = None,
    critical_path: bool = False,
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
    line_args: ArtistArgs | None = None,
) -> Axes:
    """Draw the schedule's bars on the axes.

    Args:
        schedule: what to draw.
        axes: where; its limits, ticks and labels are set.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        title: above the picture.
        end: step at which the time axis ends; the makespan if None.
        critical_path: whether to draw the critical path through the bars.
        annotation_args: properties of the numbers (`matplotlib.text.Text`), over the ones used here.
        rectangle_args: properties of the bars (`matplotlib.collections.PolyCollection`) by kind, likewise;
            kinds of one's own go by their blocks' names without the number, such as "allreduce".
        line_args: properties of the critical path (`matplotlib.lines.Line2D`), likewise.

    Returns:
        The axes.
    """
    scale = 1.0 if step_ms is None else step_ms
    bars = bars_of(schedule)
    axes.set_xlim(0, max(schedule.makespan if end is None else end, 1) * scale)
    axes.set_ylim(schedule.placement.devices - 0.5, -0.5)
    room = _room(axes)
    _draw_bars(axes, schedule, bars, scale, rectangle_args or {})
    _draw_numbers(axes, bars, scale, room, annotation_args or {})
    marked = _draw_phases(axes, schedule, scale, room)
    if critical_path:
        _draw_critical_path(axes, schedule, scale, line_args or {})
    _label_devices(axes, schedule, room)
    axes.set_xlabel("time (steps)" if step_ms is None else "time (ms)")
    axes.set_title(title, loc="left", pad=16.0 if marked else 6.0, parse_math=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return axes


class _Room(NamedTuple):
    """Points on paper of a unit of time and of a device's row."""

    time: float
    row: float


def _room(axes: Axes) -> _Room:
    figure = axes.get_figure(root=True)
    assert figure is not None
    # Before layout: a constrained layout will only make the axes larger.
    width, height = (inches * 72 for inches in figure.get_size_inches())
    position = axes.get_position()
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    return _Room(width * position.width / (right - left), height * position.height / (bottom - top))


def _draw_bars(
    axes: Axes,
    schedule: Schedule,
    bars: Sequence[Bar],
    scale: float,
    rectangle_args: Mapping[str, ArtistArgs],
) -> None:
    devices = np.arange(schedule.placement.devices, dtype=np.float64)
    whole = np.tile((0, schedule.makespan * scale), (len(devices), 1))
    axes.add_collection(
        PolyCollection(_corners(devices, whole), facecolor=IDLE, linewidth=0, zorder=0.5, label="idle")
    )
    shortest = min((bar.end - bar.start for bar in bars if bar.end > bar.start), default=1)
    # Edges would hide bars that are hardly wider than they are, and shades would beat with the pixels.
    wide = shortest / max(schedule.makespan, 1) > 1 / 1500
    styles = block_styles(schedule.placement)
    chunks = chunk_whites(styles.values())
    for own in _groups(bars, styles):
        style = styles[own[0].block]
        times = np.array([(bar.start, bar.end) for bar in own]) * scale
        collection = PolyCollection(
            _corners(np.array([bar.device for bar in own], dtype=np.float64), times), label=style.label
        )
        whites = np.array([styles[bar.block].white[bar.micro_batch % 2] for bar in own])
        shades = _lighter(style.color, whites if wide or chunks else np.zeros(1))
        collection.set(facecolor=shades, edgecolor="black", linewidth=0.4 if wide else 0.0)
        # Snapped to pixels, bars of about a pixel would show a pattern that is not there.
        collection.set(rasterized=len(bars) > MAX_VECTOR_BARS, snap=None if wide else False)
        collection.set(**rectangle_args.get(style.group, {}))
        axes.add_collection(collection)
    for chunk, white in enumerate(chunks):  # for the legend alone
        (shade,) = _lighter(CHUNK_COLOR, np.array([white]))
        axes.add_collection(PolyCollection([], facecolor=shade, label=f"chunk {chunk}"))


def _groups(bars: Sequence[Bar], styles: Mapping[str, BlockStyle]) -> list[list[Bar]]:
    """Return the bars of each group, in the order of the styles."""
    found: dict[str, list[Bar]] = {style.group: [] for style in styles.values()}
    for bar in bars:
        if bar.end > bar.start:  # else there is nothing to see
            found[styles[bar.block].group].append(bar)
    # A legend takes the colour of the first bar, which is to be that of the first chunk.
    return [sorted(own, key=lambda bar: styles[bar.block].chunk) for own in found.values() if own]


def _lighter(color: str, whites: _Numbers) -> _Numbers:
    """Return the colour with these shares of white in it; shape (len(whites), 3)."""
    rgb = np.array(to_rgb(color))
    return rgb + (1 - rgb) * whites[:, None]


def _corners(devices: _Numbers, times: _Numbers) -> Sequence[npt.ArrayLike]:
    """Return the corners of rectangles, shape (len(devices), 4, 2), from `times`: (start, end) of each.

    Of an array, matplotlib makes all paths at once; of a list, one by one, four times slower.
    """
    half = _BAR_HEIGHT / 2
    x = times[:, [0, 1, 1, 0]]
    y = devices[:, None] + np.array([-half, -half, half, half])
    corners = np.stack([x, y], axis=2)
    return cast("Sequence[npt.ArrayLike]", corners)  # matplotlib's stubs know no arrays here


def _draw_numbers(
    axes: Axes, bars: Sequence[Bar], scale: float, room: _Room, annotation_args: ArtistArgs
) -> None:
    """Write each bar's micro-batch into it where the text is narrower and lower than the bar."""
    points = min(_FONT_POINTS, 0.8 * _BAR_HEIGHT * room.row)
    fitting = [
        bar
        for bar in bars
        if bar.end > bar.start
        and (len(str(bar.micro_batch)) * _CHARACTER_EM + _PADDING_EM) * points
        <= (bar.end - bar.start) * scale * room.time
    ]
    if points < _SMALLEST_POINTS or len(fitting) > _MAX_TEXTS:
        return
    for bar in fitting:
        center = (bar.start + bar.end) / 2 * scale
        text = axes.text(center, bar.device, str(bar.micro_batch), clip_on=True)
        text.set(ha="center", va="center", fontsize=points)
        text.set(**annotation_args)


def _draw_phases(axes: Axes, schedule: Schedule, scale: float, room: _Room) -> bool:
    """Mark where the repeating part begins and ends; return whether there is one."""
    if schedule.repetend is None:
        return False
    start, end = schedule.repetend.start, schedule.repetend.end
    for step in (start, end):
        axes.axvline(step * scale, color="black", linewidth=1.0, linestyle=(0, (4, 3)))
    phases = (("warm-up", 0, start), ("repetend", start, end), ("cool-down", end, schedule.makespan))
    for name, begin, finish in phases:
        if len(name) * _CHARACTER_EM * 8 <= (finish - begin) * scale * room.time:
            axes.text((begin + finish) / 2 * scale, -0.52, name, ha="center", va="bottom", fontsize=8)
    return True


def _draw_critical_path(axes: Axes, schedule: Schedule, scale: float, line_args: ArtistArgs) -> None:
    path = critical_bars(schedule)
    times = [time * scale for bar in path for time in (bar.start, bar.end)]
    rows = [bar.device + _PATH_BELOW for bar in path for _ in range(2)]
    (line,) = axes.plot(times, rows, label="critical path", clip_on=False)
    line.set(color=CRITICAL, linewidth=1.8, solid_joinstyle="round", zorder=3)
    line.set(**line_args)


def _label_devices(axes: Axes, schedule: Schedule, room: _Room) -> None:
    every = max(int(np.ceil(7 / room.row)), 1)  # rows lower than 7 points do not all have a label
    idle = idle_steps(schedule)
    axes.set_yticks(
        range(0, schedule.placement.devices, every),
        [
            f"device {device}  ({idle[device] / max(schedule.makespan, 1):.0%} idle)"
            for device in range(0, schedule.placement.devices, every)
        ],
        fontsize=min(10.0, max(0.8 * room.row, 5.0)),
    )
