"""The frontier as a picture: how long a micro-batch, or a whole schedule, takes with how much memory."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tessel.search.frontier import FrontierPoint
from tessel.search.makespan_frontier import MakespanPoint

_PROVEN = "#0072B2"
_OPEN = "#FFFFFF"
_BOUND = "#999999"


def frontier_figure(points: Sequence[FrontierPoint | MakespanPoint], *, title: str = "") -> Figure:
    """Return a figure with the frontier on axes of its own."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    draw_frontier(points, figure.add_subplot(), title=title)
    return figure


def draw_frontier(points: Sequence[FrontierPoint | MakespanPoint], axes: Axes, *, title: str = "") -> Axes:
    """Draw steps against the memory limit; hollow marks are not proven least, the grey line is the bound.

    Args:
        points: rising in memory; of the steady state (steps a micro-batch), or of whole schedules (makespan).
        axes: where; labels and limits are set.
        title: above the picture.

    Returns:
        The axes.
    """
    limits = [max(point.memory) for point in points]
    steps = [_steps(point) for point in points]
    axes.step(limits, steps, where="post", color=_PROVEN)
    axes.step(limits, [_bound(point) for point in points], where="post", color=_BOUND, linestyle=":")
    for proven, label, face in ((True, "proven least", _PROVEN), (False, "not proven", _OPEN)):
        own = [number for number, point in enumerate(points) if point.optimal is proven]
        if own:
            axes.plot(
                [limits[number] for number in own],
                [steps[number] for number in own],
                "o",
                markeredgecolor=_PROVEN,
                markerfacecolor=face,
                linestyle="none",
                label=label,
            )
    for limit, height, point in zip(limits, steps, points, strict=True):
        axes.annotate(_mark(point), (limit, height), textcoords="offset points", xytext=(5, 5))
    axes.set_xlabel("memory limit of a device (units)")
    is_whole = any(isinstance(point, MakespanPoint) for point in points)
    axes.set_ylabel("makespan (steps)" if is_whole else "steps a micro-batch (period / micro-batches)")
    axes.set_ylim(0, 1.1 * max(steps, default=1.0))
    axes.margins(x=0.08)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if points:
        axes.plot([], [], color=_BOUND, linestyle=":", label="lower bound")
        axes.legend(frameon=False)
    axes.set_title(title, parse_math=False)
    axes.grid(visible=True, alpha=0.3)
    return axes


def _steps(point: FrontierPoint | MakespanPoint) -> float:
    return float(point.rate) if isinstance(point, FrontierPoint) else float(point.makespan)


def _bound(point: FrontierPoint | MakespanPoint) -> float:
    if isinstance(point, FrontierPoint):
        return point.lower_bound / point.copies
    return float(point.lower_bound)


def _mark(point: FrontierPoint | MakespanPoint) -> str:
    if isinstance(point, MakespanPoint):
        return str(point.makespan)
    return f"{point.period}/{point.copies}" if point.copies > 1 else str(point.period)
