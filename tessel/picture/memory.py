"""Draw what devices hold over time, each with its limit, on axes that the caller gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from tessel.picture.bars import memory_curves
from tessel.picture.colors import DEVICE_COLORS
from tessel.schedule import Schedule

_FAR = 3.0
"""Limits more than this many times the peak would flatten the curves; they are written instead."""


def draw_memory(
    schedule: Schedule,
    axes: Axes,
    *,
    step_ms: float | None = None,
    unit: float = 1.0,
    unit_name: str = "units",
) -> Axes:
    """Draw what each device holds over time, and its limit where there is one.

    A limit that all devices share is one black line; others have their device's colour.

    Args:
        schedule: what to draw.
        axes: where.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        unit: memory units of one tick unit, such as 2**20 for MiB.
        unit_name: what the axis counts.

    Returns:
        The axes.
    """
    scale = 1.0 if step_ms is None else step_ms
    for curve in memory_curves(schedule):
        axes.step(
            np.asarray(curve.steps) * scale,
            np.asarray(curve.units) / unit,
            where="post",
            linewidth=1.2,
            label=f"device {curve.device}",
            color=_color(curve.device),
            linestyle=("-", "--", ":", "-.")[curve.device // len(DEVICE_COLORS) % 4],
        )
    if schedule.memory is not None:
        _draw_limits(axes, schedule.memory, max(schedule.peak_memory), unit, unit_name)
    axes.set_xlim(0, max(schedule.makespan, 1) * scale)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time (steps)" if step_ms is None else "time (ms)")
    axes.set_ylabel(unit_name)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _draw_limits(axes: Axes, limits: Sequence[int], peak: int, unit: float, unit_name: str) -> None:
    if min(limits) > _FAR * peak:
        text = f"least limit {min(limits) / unit:.4g} {unit_name}, above the picture"
        axes.text(1.0, 1.0, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
        return
    if len(set(limits)) == 1:
        axes.axhline(limits[0] / unit, color="black", linewidth=1.0, linestyle="--", label="limit")
        return
    for device, limit in enumerate(limits):
        if limit <= _FAR * peak:
            axes.axhline(limit / unit, color=_color(device), linewidth=1.0, linestyle=(0, (6, 3)))


def _color(device: int) -> str:
    return DEVICE_COLORS[device % len(DEVICE_COLORS)]
