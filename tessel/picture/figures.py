"""Complete figures: one schedule above its memory, several schedules on one time axis, and gains over 1F1B.

A figure is made for a width: of a screen, or of a page or a column of print, where rows, text and labels are
smaller. Its text then has the size it is printed with; nothing needs to be scaled. The legend below it has as
many columns as fit that width. Checked in tests/tessel/picture/test_draw.py and test_captions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerBase
from matplotlib.patches import Rectangle
from matplotlib.transforms import Transform

from tessel.comparison import Comparison
from tessel.picture.captions import DescribedFigure
from tessel.picture.charts.gains import draw_gains
from tessel.picture.charts.memory import draw_memory
from tessel.picture.colors import DEVICE_COLORS
from tessel.picture.description import (
    describe_comparison,
    describe_gains,
    describe_schedule,
    headline,
    schedule_title,
)
from tessel.picture.draw import MAX_VECTOR_BARS, NARROW_INCHES, ArtistArgs, ChunkSwatch, Look, draw_schedule
from tessel.picture.sizes import SCREEN_INCHES, Size, text_of
from tessel.schedule import Schedule

_DPI = 150.0
_FINE_DPI = 300.0
"""Of bars that become pixels in a PNG: zooming in, one sees single blocks of 512 micro-batches.

In a PDF as fine a picture takes half a gigabyte of memory and two more seconds.
"""

_MAX_ROWS = 33
"""Rows of one schedule in full height; with more devices rows become lower instead."""


def schedule_figure(
    schedule: Schedule,
    *,
    step_ms: float | None = None,
    title: str = "",
    width: float = SCREEN_INCHES,
    **look: Unpack[Look],
) -> DescribedFigure:
    """Return a figure of the schedule over its memory, with a legend.

    Args:
        schedule: what to draw.
        step_ms: milliseconds of a step, where it has a length; memory is then taken as bytes.
        title: above the picture.
        width: of the figure, in inches.
        **look: see `draw_schedule`.
    """
    devices = schedule.placement.devices
    size = Size.of(width)
    heights = [max(2.8, min(devices, _MAX_ROWS)) * size.row]
    if any(block.memory for block in schedule.placement.blocks):
        heights.append(size.memory)
    fine = len(schedule.starts) > MAX_VECTOR_BARS
    with text_of(size):
        figure, all_axes = _stacked(heights, size, dpi=_FINE_DPI if fine else _DPI)
        draw_schedule(schedule, all_axes[0], step_ms=step_ms, title=size.wrapped(title), **look)
        if len(all_axes) > 1:
            in_bytes = step_ms is not None
            draw_memory(
                schedule,
                all_axes[1],
                step_ms=step_ms,
                unit=2**20 if in_bytes else 1,
                unit_name="saved (MiB)" if in_bytes else "memory (units)",
                device_names=look.get("device_names"),
            )
            if devices <= len(DEVICE_COLORS) and width >= NARROW_INCHES:
                all_axes[1].legend(
                    loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small"
                )
        add_legend(figure, all_axes[:1] if width >= NARROW_INCHES else all_axes)
    figure.title = title or schedule_title(schedule)
    figure.description = describe_schedule(schedule, step_ms=step_ms)
    return figure


def comparison_figure(
    comparison: Comparison,
    *,
    step_ms: float | None = None,
    title: str = "",
    width: float = SCREEN_INCHES,
    **look: Unpack[Look],
) -> DescribedFigure:
    """Return a figure of several schedules on one time axis, fastest first, each with its figures.

    Grey ends where a schedule does; the white after it is what it saves over the slowest one.

    Args:
        step_ms: milliseconds of a step; the time axis counts steps if None.
        title: above the picture.
        width: of the figure, in inches.
        **look: see `draw_schedule`.
    """
    schedules = dict(comparison.schedules)
    rows = comparison.rows
    devices = schedules[rows[0].schedule].placement.devices
    size = Size.of(width)
    height = max(2.2, 0.6 * min(devices, _MAX_ROWS)) * size.row
    end = max(row.makespan for row in rows)
    with text_of(size):
        figure, all_axes = _stacked([height + 4 * size.points / 72] * len(rows), size, dpi=_DPI)
        figure.suptitle(size.wrapped(title), x=0.01, ha="left", parse_math=False)
        for row, axes in zip(rows, all_axes, strict=True):
            draw_schedule(
                schedules[row.schedule],
                axes,
                step_ms=step_ms,
                title=size.wrapped(headline(row)),
                end=end,
                **look,
            )
            axes.label_outer()
        add_legend(figure, all_axes)
    figure.title = title or f"{len(rows)} schedules compared"
    figure.description = describe_comparison(comparison)
    return figure


def gains_figure(
    comparison: Comparison,
    *,
    title: str = "",
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
    width: float = SCREEN_INCHES / 2,
) -> DescribedFigure:
    """Return a figure with what `draw_gains` draws: how much longer 1F1B takes than each schedule.

    Args:
        comparison: schedules of one placement, 1F1B among them.
        width: of the figure, in inches.

    Raises:
        ScheduleError: 1F1B was not compared.
    """
    size = Size.of(width)
    with text_of(size):
        figure, (axes,) = _stacked([max(3, len(comparison.rows)) * size.points * 2 / 72], size, dpi=_DPI)
        figure.suptitle(size.wrapped(title), x=0.01, ha="left", parse_math=False)
        draw_gains(comparison, axes, annotation_args=annotation_args, rectangle_args=rectangle_args)
    figure.title = title or "Gains over 1F1B"
    figure.description = describe_gains(comparison)
    return figure


def _stacked(heights: Sequence[float], size: Size, *, dpi: float) -> tuple[DescribedFigure, list[Axes]]:
    figure = DescribedFigure(figsize=(size.width, sum(heights) + size.rest), layout="constrained", dpi=dpi)
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


_SWATCH_EM = 5.0  # width of a legend's swatch and the spaces around it, in ems
_GLYPH_EM = 0.56


def add_legend(figure: Figure, all_axes: Sequence[Axes]) -> None:
    """Explain what the axes show: one entry a label, of whatever axes has it first; idle time last."""
    handles: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles["idle"] = handles.pop("idle")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=_columns(handles, figure.get_size_inches()[0]),
        frameon=False,
        handler_map={ChunkSwatch: _ChunkHandler()},
    )


def _columns(labels: Sequence[str] | dict[str, Artist], width: float) -> int:
    ems = _SWATCH_EM + _GLYPH_EM * max(map(len, labels))
    return max(1, min(len(labels), int(width * 72 / (ems * rcParams["font.size"]))))


class _ChunkHandler(HandlerBase):
    """Draws a chunk's swatch with the strip that marks its bars."""

    def create_artists(
        self,
        legend: Legend,
        orig_handle: Artist,
        xdescent: float,
        ydescent: float,
        width: float,
        height: float,
        fontsize: float,
        trans: Transform,
    ) -> list[Artist]:
        assert isinstance(orig_handle, ChunkSwatch)
        corner = (-xdescent, -ydescent)
        box = Rectangle(corner, width, height, facecolor=orig_handle.shade, linewidth=0, transform=trans)
        strip = Rectangle(
            corner, width, height * orig_handle.strip, facecolor="#222222", linewidth=0, transform=trans
        )
        return [box, strip]
