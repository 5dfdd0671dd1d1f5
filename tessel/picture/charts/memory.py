"""Plot the memory of each device over time, with its limit, on given axes.

With few devices, each has a curve. With more devices than distinguishable colours, each has a row, whose
colour shows the share of its limit (of the highest peak if there is no limit) in use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tessel.picture.bars import MemoryCurve, memory_curves, names_of
from tessel.picture.colors import CRITICAL, DEVICE_COLORS
from tessel.schedule import Schedule

_FAR = 3.0
"""Limits more than this many times the peak would flatten the curves; they are written instead."""

_COLUMNS = 1200
"""Columns of a row; about the pixels that the axes have."""


def draw_memory(
    schedule: Schedule,
    axes: Axes,
    *,
    step_ms: float | None = None,
    unit: float = 1.0,
    unit_name: str = "units",
    device_names: Sequence[str] | None = None,
) -> Axes:
    """Draw what each device holds over time, and its limit where there is one.

    Of curves, a limit that all devices share is one black line; others have their device's colour.

    Args:
        axes: where; beside rows it gives room to a colour bar.
        step_ms: milliseconds of a step; the time axis counts steps if None.
        unit: memory units of one tick unit, such as 2**20 for MiB.
        unit_name: what the axis counts.
        device_names: of each row, what its device is called; the numbers from 0 on if None.

    Returns:
        The axes.
    """
    scale = 1.0 if step_ms is None else step_ms
    end = max(schedule.makespan, 1) * scale
    if schedule.placement.devices > len(DEVICE_COLORS):
        _draw_rows(schedule, axes, end)
    else:
        _draw_curves(schedule, axes, scale, unit, unit_name, names_of(schedule, device_names))
    axes.set_xlim(0, end)
    axes.set_xlabel("time (steps)" if step_ms is None else "time (ms)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _draw_curves(
    schedule: Schedule, axes: Axes, scale: float, unit: float, unit_name: str, names: Sequence[str]
) -> None:
    for curve in memory_curves(schedule):
        axes.step(
            np.asarray(curve.steps) * scale,
            np.asarray(curve.units) / unit,
            where="post",
            linewidth=1.2,
            label=f"device {names[curve.device]}",
            color=DEVICE_COLORS[curve.device],
        )
    if schedule.memory is not None:
        _draw_limits(axes, schedule.memory, max(schedule.peak_memory), unit, unit_name)
    axes.set_ylim(bottom=0)
    if unit == 1:
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_ylabel(unit_name)


def _draw_limits(axes: Axes, limits: Sequence[int], peak: int, unit: float, unit_name: str) -> None:
    if min(limits) > _FAR * peak:
        text = f"least limit {_plain(min(limits) / unit)} {unit_name}, above the picture"
        axes.text(1.0, 1.0, text, transform=axes.transAxes, ha="right", va="bottom", fontsize="small")
    elif len(set(limits)) == 1:
        axes.axhline(limits[0] / unit, color="black", linewidth=1.0, linestyle="--", label="limit")
    else:
        for device, limit in enumerate(limits):
            if limit <= _FAR * peak:
                color = DEVICE_COLORS[device]
                axes.axhline(limit / unit, color=color, linewidth=1.0, linestyle=(0, (6, 3)))


def _draw_rows(schedule: Schedule, axes: Axes, end: float) -> None:
    devices = schedule.placement.devices
    whole = schedule.memory or (max(schedule.peak_memory),) * devices
    edges = np.linspace(0, schedule.makespan, min(schedule.makespan, _COLUMNS) + 1)
    shares = [
        _most_held(curve, edges) / max(limit, 1)
        for curve, limit in zip(memory_curves(schedule), whole, strict=True)
    ]
    mesh = axes.pcolormesh(
        np.linspace(0, end, len(edges)),
        np.arange(devices + 1) - 0.5,
        np.array(shares),
        cmap=colormaps["Blues"].with_extremes(over=CRITICAL),  # over the limit
        vmin=0,
        vmax=1,
        rasterized=True,
    )
    axes.set_ylim(devices - 0.5, -0.5)
    axes.set_ylabel("device")
    figure = axes.get_figure(root=True)
    assert figure is not None
    label = "held, of peak" if schedule.memory is None else "held, of limit"
    figure.colorbar(mesh, ax=axes, label=label, format=PercentFormatter(1), pad=0.01, aspect=8)


def _most_held(curve: MemoryCurve, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the most held between each two edges; shape (len(edges) - 1,)."""
    first = np.searchsorted(curve.steps, edges[:-1], side="right") - 1
    last = np.searchsorted(curve.steps, edges[1:], side="left")
    pairs = np.stack([first, last], axis=1).ravel()
    # A sentinel, because the end of a slice must be a position too.
    return np.maximum.reduceat(np.append(curve.units, 0).astype(np.float64), pairs)[::2]


def _plain(value: float) -> str:
    """Return a figure with four digits or all before the point, never as a power of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
