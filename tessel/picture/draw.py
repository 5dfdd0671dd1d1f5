"""Draw schedules with matplotlib, on axes that the caller gives.

Device per row, time to the right, colour by kind of block, the micro-batch's number in each bar that has
room for it, dashed lines where the repeating part begins and ends, and below it each device's memory over
time. Colours are those of Okabe and Ito, which colour-blind people can tell apart; kinds also differ in
lightness. Nothing here reads or writes global figure state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tessel.errors import DocumentError
from tessel.picture.bars import Bar, bars_of, idle_steps, memory_curves
from tessel.placement import Block, BlockKind
from tessel.schedule import Schedule

COLOR_BY_KIND = {
    BlockKind.FORWARD: "#56B4E9",
    BlockKind.BACKWARD: "#E69F00",
    BlockKind.BACKWARD_INPUT: "#F0E442",
    BlockKind.BACKWARD_WEIGHT: "#009E73",
    BlockKind.RECOMPUTE: "#CC79A7",
    BlockKind.OTHER: "#BBBBBB",
}
LABEL_BY_KIND = {
    BlockKind.FORWARD: "forward",
    BlockKind.BACKWARD: "backward",
    BlockKind.BACKWARD_INPUT: "backward, input",
    BlockKind.BACKWARD_WEIGHT: "backward, weight",
    BlockKind.RECOMPUTE: "recompute",
    BlockKind.OTHER: "other",
}

_BAR_HEIGHT = 0.84
_CHARACTER_EM = 0.62  # advance width of a digit in DejaVu Sans, in ems
_MAX_TEXTS = 4000  # beyond this many numbers a reader follows none of them, and drawing takes seconds


def draw_schedule(schedule: Schedule, axes: Axes, *, step_ms: float | None = None, title: str = "") -> Axes:
    """Draw the schedule's bars on the axes.

    Args:
        schedule: what to draw.
        axes: where; its limits, ticks and labels are set.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        title: above the picture.

    Returns:
        The axes.
    """
    scale = 1.0 if step_ms is None else step_ms
    bars = bars_of(schedule)
    axes.add_collection(_collection(bars, scale))
    axes.set_xlim(0, max(schedule.makespan, 1) * scale)
    axes.set_ylim(schedule.placement.devices - 0.5, -0.5)
    _draw_numbers(axes, bars, scale)
    _draw_phases(axes, schedule, scale)
    idle = idle_steps(schedule)
    axes.set_yticks(
        range(schedule.placement.devices),
        [
            f"device {device}  ({steps / max(schedule.makespan, 1):.0%} idle)"
            for device, steps in enumerate(idle)
        ],
    )
    axes.set_xlabel("time (steps)" if step_ms is None else "time (ms)")
    axes.set_title(title, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return axes


def draw_memory(
    schedule: Schedule,
    axes: Axes,
    *,
    step_ms: float | None = None,
    unit: float = 1.0,
    unit_name: str = "units",
) -> Axes:
    """Draw what each device holds over time, and the limit where there is one.

    Args:
        schedule: what to draw.
        axes: where.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        unit: memory units of one tick unit, such as 2**20 for MiB.
        unit_name: what the axis counts.
    """
    scale = 1.0 if step_ms is None else step_ms
    for curve in memory_curves(schedule):
        axes.step(
            np.asarray(curve.steps) * scale,
            np.asarray(curve.units) / unit,
            where="post",
            linewidth=1.2,
            label=f"device {curve.device}",
            color=_DEVICE_COLORS[curve.device % len(_DEVICE_COLORS)],
            linestyle=("-", "--", ":", "-.")[curve.device // len(_DEVICE_COLORS) % 4],
        )
    if schedule.memory is not None and max(schedule.memory) / unit < 3 * _top(axes):
        for limit in sorted(set(schedule.memory)):
            axes.axhline(limit / unit, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlim(0, max(schedule.makespan, 1) * scale)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (steps)" if step_ms is None else "time (ms)")
    axes.set_ylabel(unit_name)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def schedule_figure(schedule: Schedule, *, step_ms: float | None = None, title: str = "") -> Figure:
    """Return a figure of the schedule over its memory, with a legend.

    Args:
        schedule: what to draw.
        step_ms: milliseconds of a step, where it has a length; memory is then taken as bytes.
        title: above the picture.
    """
    devices = schedule.placement.devices
    has_memory = any(block.memory for block in schedule.placement.blocks)
    heights = [max(1.2, 0.42 * devices), 1.4] if has_memory else [max(1.2, 0.42 * devices)]
    figure = Figure(figsize=(13, sum(heights) + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    draw_schedule(schedule, all_axes[0], step_ms=step_ms, title=title)
    if has_memory:
        in_bytes = step_ms is not None
        draw_memory(
            schedule,
            all_axes[1],
            step_ms=step_ms,
            unit=2**20 if in_bytes else 1,
            unit_name="saved (MiB)" if in_bytes else "memory (units)",
        )
        if devices <= len(_DEVICE_COLORS):
            all_axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    kinds = [kind for kind in BlockKind if any(block.kind is kind for block in _run_blocks(schedule))]
    figure.legend(
        handles=[Patch(color=COLOR_BY_KIND[kind], label=LABEL_BY_KIND[kind]) for kind in kinds],
        loc="outside lower center",
        ncols=len(kinds),
        frameon=False,
    )
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix (svg, png or pdf); the file appears whole or not.

    Raises:
        DocumentError: the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial{path.suffix}")
    try:
        # Without a date the same schedule gives the same bytes.
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(partial, dpi=150, metadata=metadata)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DocumentError(
            f"{path} cannot be written ({error.strerror}); choose a folder that exists and can be written"
        ) from error


_DEVICE_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999")


def _collection(bars: Sequence[Bar], scale: float) -> PolyCollection:
    half = _BAR_HEIGHT / 2
    corners = [
        [
            (bar.start * scale, bar.device - half),
            (bar.end * scale, bar.device - half),
            (bar.end * scale, bar.device + half),
            (bar.start * scale, bar.device + half),
        ]
        for bar in bars
    ]
    shortest = min((bar.end - bar.start for bar in bars if bar.end > bar.start), default=1)
    longest = max((bar.end for bar in bars), default=1)
    return PolyCollection(
        corners,
        facecolors=[COLOR_BY_KIND[bar.kind] for bar in bars],
        edgecolors="black",
        # Edges would hide bars that are hardly wider than they are.
        linewidths=0.4 if shortest / longest > 1 / 1500 else 0.0,
    )


def _draw_numbers(axes: Axes, bars: Sequence[Bar], scale: float, font_size: float = 7.5) -> None:
    """Write each bar's micro-batch into it where the text is narrower than the bar."""
    if len(bars) > _MAX_TEXTS:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = figure.get_size_inches()[0] * axes.get_position().width
    points_per_unit = inches * 72 / (axes.get_xlim()[1] - axes.get_xlim()[0])
    for bar in bars:
        text = str(bar.micro_batch)
        room = (bar.end - bar.start) * scale * points_per_unit
        if len(text) * _CHARACTER_EM * font_size <= room:
            center = (bar.start + bar.end) / 2 * scale
            axes.text(center, bar.device, text, ha="center", va="center", fontsize=font_size, clip_on=True)


def _draw_phases(axes: Axes, schedule: Schedule, scale: float) -> None:
    if schedule.repetend is None:
        return
    for step in (schedule.repetend.start, schedule.repetend.end):
        axes.axvline(step * scale, color="black", linewidth=1.0, linestyle=(0, (4, 3)))
    middle = (schedule.repetend.start + schedule.repetend.end) / 2 * scale
    axes.text(middle, -0.52, "repetend", ha="center", va="bottom", fontsize=8)


def _top(axes: Axes) -> float:
    return max(float(axes.get_ylim()[1]), 1e-9)


def _run_blocks(schedule: Schedule) -> list[Block]:
    names = {start.block for start in schedule.starts}
    return [block for block in schedule.placement.blocks if block.name in names]
