"""Draw schedules with matplotlib, on axes that the caller gives.

Device per row, time to the right, colour by kind of block, every second micro-batch (or, where devices run
several stages, every later chunk) lighter, the micro-batch's number in each bar that has room for it, pale
grey where a device idles, dashed lines where the repeating part begins and ends, and on demand the critical
path through the bars. The bars of later chunks have a dark strip at their foot, the higher the later, because
tints alone are not told apart in greyscale. A block on adjacent devices is one box with one number; where its
devices are apart, a thin line joins its boxes. Outlines are a darker tone of the bar and become thinner with
it, so that many short bars keep their colours. Where there are so many bars that a vector picture would take
longer to open than to read, they are rasterised; lines and text stay vectors. Nothing here reads or writes
global figure state.

Source: the arguments for annotations, rectangles and lines are those of René's visualizer (Chung et al.,
Perseus, SOSP 2024); here one collection per kind replaces one rectangle per instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb

from tessel.picture.bars import Box, boxes_of, critical_bars, idle_steps, names_of
from tessel.picture.colors import CHUNK_COLOR, CRITICAL, IDLE, BlockStyle, block_styles, chunk_whites, ink_on
from tessel.schedule import Schedule

ArtistArgs = Mapping[str, object]
"""Properties of a matplotlib artist by name, as its `set` takes them."""

MAX_VECTOR_BARS = 20_000
"""More bars than this are drawn as pixels: an SVG of 65 536 bars as vectors has 14 MB and is slow to open."""

NARROW_INCHES = 5.0
"""Rows of pictures that are narrower are labelled by the device's number alone."""

_Numbers = npt.NDArray[np.float64]

_BAR_HEIGHT = 0.84
_CHARACTER_EM = 0.62  # advance width of a digit in DejaVu Sans, in ems
_PADDING_EM = 0.3  # on both sides together, or numbers of neighbours read as one
_FONT_POINTS = 7.5
_SMALLEST_POINTS = 4.5  # smaller digits are not read on paper
_OUTLINE = 0.45  # share of the bar's colour in its outline and strip; the rest is black
_OUTLINE_POINTS = 0.5
_OUTLINE_SHARE = 0.06  # of the width of its bar, at most
_HIGHEST_STRIP = 0.3  # of a bar's height: the strip of a device's last chunk
_MAX_TEXTS = 4000  # beyond this many numbers a reader follows none of them, and drawing takes seconds
_PATH_BELOW = 0.3  # the critical path runs below the numbers


class Look(TypedDict, total=False):
    """How schedules are drawn, by the names of `draw_schedule`."""

    critical_path: bool
    annotation_args: ArtistArgs | None
    rectangle_args: Mapping[str, ArtistArgs] | None
    line_args: ArtistArgs | None
    device_names: Sequence[str] | None


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
    device_names: Sequence[str] | None = None,
) -> Axes:
    """Draw the schedule's bars on the axes.

    Args:
        axes: where; its limits, ticks and labels are set.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        title: above the picture.
        end: step at which the time axis ends; the makespan if None.
        critical_path: whether to draw the critical path through the bars.
        annotation_args: properties of the numbers (`matplotlib.text.Text`), over the ones used here.
        rectangle_args: properties of the bars (`matplotlib.collections.PolyCollection`) by kind, likewise;
            kinds of one's own go by their blocks' names without the number, such as "allreduce".
        line_args: properties of the critical path (`matplotlib.lines.Line2D`), likewise.
        device_names: of each row, what its device is called; the numbers from 0 on if None.

    Returns:
        The axes.
    """
    scale = 1.0 if step_ms is None else step_ms
    boxes = boxes_of(schedule)
    axes.set_xlim(0, max(schedule.makespan if end is None else end, 1) * scale)
    axes.set_ylim(schedule.placement.devices - 0.5, -0.5)
    room = _room(axes)
    colors = _draw_boxes(axes, schedule, boxes, scale, rectangle_args or {})
    phases = () if schedule.repetend is None else (schedule.repetend.start, schedule.repetend.end)
    _draw_numbers(axes, boxes, colors, scale, phases, annotation_args or {})
    marked = _draw_phases(axes, schedule, scale, room)
    if critical_path:
        _draw_critical_path(axes, schedule, scale, line_args or {})
    _label_devices(axes, schedule, room, names_of(schedule, device_names))
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


def _draw_boxes(
    axes: Axes,
    schedule: Schedule,
    boxes: Sequence[Box],
    scale: float,
    rectangle_args: Mapping[str, ArtistArgs],
) -> dict[Box, _Numbers]:
    """Draw the bars over the idle time; return the colour of each that is drawn, shape (4,)."""
    rows = np.arange(schedule.placement.devices, dtype=np.float64)
    whole = np.tile((0, schedule.makespan * scale), (len(rows), 1))
    axes.add_collection(
        PolyCollection(_corners(rows, rows, whole), facecolor=IDLE, linewidth=0, zorder=0.5, label="idle")
    )
    shortest = min((box.bar.end - box.bar.start for box in boxes if box.bar.end > box.bar.start), default=1)
    points = shortest * scale * _room(axes).time
    rasterized = sum(box.last_device - box.bar.device + 1 for box in boxes) > MAX_VECTOR_BARS
    styles = block_styles(schedule.placement)
    chunks = chunk_whites(styles.values())
    colors: dict[Box, _Numbers] = {}
    for own in _groups(boxes, styles):
        style = styles[own[0].bar.block]
        first, last, times = _extents(own, scale)
        collection = PolyCollection(_corners(first, last, times), label=style.label)
        # On bars of less than a point, the tints of micro-batches would beat with the pixels.
        tinted = bool(chunks) or points > 1
        outlines = np.minimum(_OUTLINE_POINTS, _OUTLINE_SHARE * _room(axes).time * np.diff(times)[:, 0])
        whites = np.array([styles[box.bar.block].white[box.bar.micro_batch % 2] for box in own])
        shades = _lighter(style.color, whites if tinted else np.zeros(1))
        collection.set(
            facecolor=shades, edgecolor=_OUTLINE * np.array(to_rgb(style.color)), linewidth=outlines
        )
        # Snapped to pixels, bars of about a pixel would show a pattern that is not there.
        collection.set(rasterized=rasterized, snap=None if points > 1 else False)
        collection.set(**rectangle_args.get(style.group, {}))
        axes.add_collection(collection)
        faces = np.asarray(collection.get_facecolor())
        colors |= {box: faces[number % len(faces)] for number, box in enumerate(own)} if len(faces) else {}
    if chunks:
        _draw_strips(axes, boxes, styles, scale, rasterized=rasterized)
    _draw_joints(axes, boxes, scale)
    for chunk, white in enumerate(chunks):  # for the legend alone
        (shade,) = _lighter(CHUNK_COLOR, np.array([white]))
        axes.add_collection(ChunkSwatch(shade, _strip(chunk, len(chunks)), label=f"chunk {chunk}"))
    return colors


class ChunkSwatch(PolyCollection):
    """A chunk as a legend shows it; nothing on the axes.

    Attributes:
        shade: red, green and blue, each 0 to 1.
        strip: height of the strip at the foot of its bars, as a share of theirs.
    """

    def __init__(self, shade: _Numbers, strip: float, *, label: str) -> None:
        """Make the swatch of a chunk in this shade of grey."""
        super().__init__([], facecolor=shade, label=label)
        self.shade = to_rgb(shade.tolist())
        self.strip = strip


def _draw_strips(
    axes: Axes, boxes: Sequence[Box], styles: Mapping[str, BlockStyle], scale: float, *, rasterized: bool
) -> None:
    """Mark the later chunks of a device, each by a strip at the foot of its bars."""
    num_chunks = 1 + max(style.chunk for style in styles.values())
    marked = [box for box in boxes if styles[box.bar.block].chunk and box.bar.end > box.bar.start]
    _, last, times = _extents(marked, scale)
    strips = np.array([_strip(styles[box.bar.block].chunk, num_chunks) for box in marked])
    dark = [_OUTLINE * np.array(to_rgb(styles[box.bar.block].color)) for box in marked]
    foot = last + _BAR_HEIGHT / 2
    axes.add_collection(
        PolyCollection(
            _rectangles(foot - strips * _BAR_HEIGHT, foot, times),
            facecolor=dark,
            linewidth=0,
            snap=False,
            rasterized=rasterized,
            label="_strips",
        )
    )


def _strip(chunk: int, num_chunks: int) -> float:
    return _HIGHEST_STRIP * chunk / (num_chunks - 1) if num_chunks > 2 else _HIGHEST_STRIP / 2 * chunk


def _draw_joints(axes: Axes, boxes: Sequence[Box], scale: float) -> None:
    """Join the boxes of each block whose devices are not adjacent by a line behind the bars."""
    found: dict[tuple[str, int], list[Box]] = {}
    for box in boxes:
        found.setdefault((box.bar.block, box.bar.micro_batch), []).append(box)
    lines = []
    for apart in found.values():
        if len(apart) > 1:
            center = (apart[0].bar.start + apart[0].bar.end) / 2 * scale
            lines.append([(center, apart[0].last_device), (center, apart[-1].bar.device)])
    if lines:
        axes.add_collection(
            LineCollection(lines, color="#333333", linewidth=0.8, zorder=0.9, label="_joints")
        )


def _groups(boxes: Sequence[Box], styles: Mapping[str, BlockStyle]) -> list[list[Box]]:
    """Return the boxes of each group, in the order of the styles."""
    found: dict[str, list[Box]] = {style.group: [] for style in styles.values()}
    for box in boxes:
        if box.bar.end > box.bar.start:  # else there is nothing to see
            found[styles[box.bar.block].group].append(box)
    # A legend takes the colour of the first bar, which is to be that of the first chunk.
    return [sorted(own, key=lambda box: styles[box.bar.block].chunk) for own in found.values() if own]


def _lighter(color: str, whites: _Numbers) -> _Numbers:
    """Return the colour with these shares of white in it; shape (len(whites), 3)."""
    rgb = np.array(to_rgb(color))
    return rgb + (1 - rgb) * whites[:, None]


def _extents(boxes: Sequence[Box], scale: float) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Return first rows, last rows and times, shape (len(boxes), 2), of boxes."""
    rows = np.array([(box.bar.device, box.last_device) for box in boxes], dtype=np.float64).reshape(-1, 2)
    times = np.array([(box.bar.start, box.bar.end) for box in boxes], dtype=np.float64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1], times * scale


def _corners(first: _Numbers, last: _Numbers, times: _Numbers) -> Sequence[npt.ArrayLike]:
    """Return the corners of bars from the row `first` to the row `last`."""
    return _rectangles(first - _BAR_HEIGHT / 2, last + _BAR_HEIGHT / 2, times)


def _rectangles(top: _Numbers, bottom: _Numbers, times: _Numbers) -> Sequence[npt.ArrayLike]:
    """Return the corners of rectangles, shape (len(top), 4, 2), from `times`: (start, end) of each.

    Of an array, matplotlib makes all paths at once; of a list, one by one, four times slower.
    """
    x = times[:, [0, 1, 1, 0]]
    y = np.stack([top, top, bottom, bottom], axis=1)
    corners = np.stack([x, y], axis=2)
    return cast("Sequence[npt.ArrayLike]", corners)  # matplotlib's stubs know no arrays here


def _draw_numbers(
    axes: Axes,
    boxes: Sequence[Box],
    colors: Mapping[Box, _Numbers],
    scale: float,
    phases: Sequence[int],
    annotation_args: ArtistArgs,
) -> None:
    """Write each block's micro-batch into its box, all in equal boxes in one size, or none of them.

    Where the line of a phase would run through a number, it stands beside the line, if the box has room. In a
    box on several devices that is too narrow, the number stands upright.
    """
    room = _room(axes)
    digits = max((len(str(box.bar.micro_batch)) for box in boxes), default=1)
    written = []
    for box in boxes:
        if not box.is_first or box not in colors:
            continue
        wide = (box.bar.end - box.bar.start) * scale * room.time
        high = _BAR_HEIGHT * room.row
        level = _number_points(digits, wide, high)
        upright = _number_points(digits, high, wide) if box.last_device > box.bar.device else 0.0
        if max(level, upright) >= _SMALLEST_POINTS:
            written.append((box, max(level, upright), upright > level))
    if len(written) > _MAX_TEXTS:
        return
    for box, points, is_upright in written:
        center = (box.bar.start + box.bar.end) / 2
        aside = (box.bar.end - box.bar.start) / 4
        half = (
            (1.0 if is_upright else digits) * (_CHARACTER_EM * points + _PADDING_EM) / 2 / (scale * room.time)
        )
        crossing = [step for step in phases if abs(step - center) < 1.2 * half]
        if crossing and half <= aside:
            center += aside if crossing[0] <= center else -aside
        text = axes.text(center * scale, _number_row(box), str(box.bar.micro_batch), clip_on=True)
        text.set(ha="center", va="center", fontsize=points, rotation=90 if is_upright else 0)
        text.set(color=ink_on([float(part) for part in colors[box]]))
        text.set(**annotation_args)


def _number_row(box: Box) -> float:
    """Return where the number of a box stands: near its middle, level with its neighbours'."""
    return (box.bar.device + box.last_device) // 2


def _number_points(digits: int, along: float, across: float) -> float:
    """Return the size in points of a number with this room along its line and across it."""
    return min(_FONT_POINTS, 0.8 * across, along / (digits * _CHARACTER_EM + _PADDING_EM))


def _draw_phases(axes: Axes, schedule: Schedule, scale: float, room: _Room) -> bool:
    """Mark where the repeating part begins and ends; return whether there is one."""
    if schedule.repetend is None:
        return False
    start, end = schedule.repetend.start, schedule.repetend.end
    for step in (start, end):
        axes.axvline(step * scale, color="black", linewidth=1.0, linestyle=(0, (4, 3)))
    size = 0.833 * rcParams["font.size"]  # matplotlib's "small"
    phases = (("warm-up", 0, start), ("repetend", start, end), ("cool-down", end, schedule.makespan))
    for name, begin, finish in phases:
        if len(name) * _CHARACTER_EM * size <= (finish - begin) * scale * room.time:
            axes.text((begin + finish) / 2 * scale, -0.52, name, ha="center", va="bottom", fontsize="small")
    return True


def _draw_critical_path(axes: Axes, schedule: Schedule, scale: float, line_args: ArtistArgs) -> None:
    path = critical_bars(schedule)
    times = [time * scale for bar in path for time in (bar.start, bar.end)]
    rows = [bar.device + _PATH_BELOW for bar in path for _ in range(2)]
    (line,) = axes.plot(times, rows, label="critical path", clip_on=False)
    line.set(color=CRITICAL, linewidth=1.8, solid_joinstyle="round", zorder=3)
    line.set(**line_args)


def _label_devices(axes: Axes, schedule: Schedule, room: _Room, names: Sequence[str]) -> None:
    every = max(int(np.ceil(7 / room.row)), 1)  # rows lower than 7 points do not all have a label
    shown = range(0, schedule.placement.devices, every)
    figure = axes.get_figure(root=True)
    assert figure is not None
    if figure.get_size_inches()[0] < NARROW_INCHES:
        labels = [names[device] for device in shown]
        axes.set_ylabel("device")
    else:
        idle = idle_steps(schedule)
        labels = [
            f"device {names[device]}  ({idle[device] / max(schedule.makespan, 1):.0%} idle)"
            for device in shown
        ]
    axes.set_yticks(shown, labels, fontsize=min(rcParams["font.size"], max(0.8 * room.row, 5.0)))
