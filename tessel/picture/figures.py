"""Complete figures: one schedule above its memory, or several schedules on one time axis; and saving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tessel.comparison import Comparison, ComparisonRow
from tessel.errors import DocumentError
from tessel.picture.colors import DEVICE_COLORS
from tessel.picture.draw import MAX_VECTOR_BARS, ArtistArgs, draw_schedule
from tessel.picture.memory import draw_memory
from tessel.schedule import Schedule

_WIDTH_INCHES = 13.0
_ROW_INCHES = 0.42
_DPI = 150.0
_FINE_DPI = 300.0
"""Of bars that become pixels in a PNG: zooming in, one sees single blocks of 512 micro-batches.

In a PDF as fine a picture takes half a gigabyte of memory and two more seconds.
"""

_MAX_INCHES = 14.0
"""Of the rows of one schedule; with more than 33 devices rows become lower instead."""


def schedule_figure(
    schedule: Schedule,
    *,
    step_ms: float | None = None,
    title: str = "",
    critical_path: bool = False,
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
    line_args: ArtistArgs | None = None,
) -> Figure:
    """Return a figure of the schedule over its memory, with a legend.

    Args:
        schedule: what to draw.
        step_ms: milliseconds of a step, where it has a length; memory is then taken as bytes.
        title: above the picture.
        critical_path: whether to draw the critical path through the bars.
        annotation_args: see `draw_schedule`.
        rectangle_args: see `draw_schedule`.
        line_args: see `draw_schedule`.
    """
    devices = schedule.placement.devices
    heights = [min(max(1.2, _ROW_INCHES * devices), _MAX_INCHES)]
    if any(block.memory for block in schedule.placement.blocks):
        heights.append(1.4)
    fine = len(schedule.starts) > MAX_VECTOR_BARS
    figure, all_axes = _stacked(heights, dpi=_FINE_DPI if fine else _DPI)
    draw_schedule(
        schedule,
        all_axes[0],
        step_ms=step_ms,
        title=title,
        critical_path=critical_path,
        annotation_args=annotation_args,
        rectangle_args=rectangle_args,
        line_args=line_args,
    )
    if len(all_axes) > 1:
        in_bytes = step_ms is not None
        draw_memory(
            schedule,
            all_axes[1],
            step_ms=step_ms,
            unit=2**20 if in_bytes else 1,
            unit_name="saved (MiB)" if in_bytes else "memory (units)",
        )
        if devices <= len(DEVICE_COLORS):
            all_axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    _add_legend(figure, all_axes[:1])
    return figure


def comparison_figure(
    comparison: Comparison,
    *,
    step_ms: float | None = None,
    title: str = "",
    critical_path: bool = False,
) -> Figure:
    """Return a figure of several schedules on one time axis, fastest first, each with its figures.

    Grey ends where a schedule does; the white after it is what it saves over the slowest one.

    Args:
        comparison: schedules of one placement.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        title: above the picture.
        critical_path: whether to draw the critical paths through the bars.
    """
    schedules = dict(comparison.schedules)
    rows = comparison.rows
    devices = schedules[rows[0].schedule].placement.devices
    height = min(max(0.9, 0.6 * _ROW_INCHES * devices), _MAX_INCHES / 2)
    figure, all_axes = _stacked([height + 0.4] * len(rows), dpi=_DPI)
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    end = max(row.makespan for row in rows)
    for row, axes in zip(rows, all_axes, strict=True):
        draw_schedule(
            schedules[row.schedule],
            axes,
            step_ms=step_ms,
            title=_headline(row),
            end=end,
            critical_path=critical_path,
        )
        axes.label_outer()
    _add_legend(figure, all_axes)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix (svg, png or pdf); the file appears whole or not.

    Raises:
        DocumentError: the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial{path.suffix}")
    try:
        # Without a date the same schedule gives the same bytes.
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
        dpi = max(figure.dpi, _DPI) if path.suffix == ".png" else _DPI
        figure.savefig(partial, dpi=dpi, metadata=metadata)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DocumentError(
            f"{path} cannot be written ({error.strerror}); choose a folder that exists and can be written"
        ) from error


def _stacked(heights: Sequence[float], *, dpi: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 1.5), layout="constrained", dpi=dpi)
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


def _headline(row: ComparisonRow) -> str:
    parts = [f"{row.title}: {row.length} {row.unit}", f"{row.bubble_ratio:.1%} bubbles"]
    if row.ratio_to_1f1b is not None:
        parts.append(f"{row.ratio_to_1f1b:.3f} of 1F1B")
    if not row.fits:
        parts.append("breaks the memory limit")
    return ", ".join(parts)


def _add_legend(figure: Figure, all_axes: Sequence[Axes]) -> None:
    """One entry a label, of whatever axes has it first; idle time last."""
    handles: dict[str, Artist] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles["idle"] = handles.pop("idle")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(len(handles), 1),
        frameon=False,
    )
