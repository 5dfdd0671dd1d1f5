"""The frontier as a picture: steps a micro-batch takes in the long run, against the memory it is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tessel.search.frontier import FrontierPoint

_PROVEN = "#0072B2"
_OPEN = "#FFFFFF"


def frontier_figure(points: Sequence[FrontierPoint], *, title: str = "") -> Figure:
    """Return a figure with the frontier on axes of its own."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    draw_frontier(points, figure.add_subplot(), title=title)
    return figure


def draw_frontier(points: Sequence[FrontierPoint], axes: Axes, *, title: str = "") -> Axes:
    """Draw steps a micro-batch against the memory limit; hollow marks are not proven least.

    Args:
        points: rising in memory.
        axes: where; labels and limits are set.
        title: above the picture.

    Returns:
        The axes.
    """
    limits = [max(point.memory) for point in points]
    rates = [float(point.rate) for point in points]
    axes.step(limits, rates, where="post", color=_PROVEN)
    for limit, rate, point in zip(limits, rates, points, strict=True):
        axes.plot(
            limit, rate, "o", markeredgecolor=_PROVEN, markerfacecolor=_PROVEN if point.optimal else _OPEN
        )
        axes.annotate(
            f"{point.period}/{point.copies}" if point.copies > 1 else str(point.period),
            (limit, rate),
            textcoords="offset points",
            xytext=(5, 5),
        )
    axes.set_xlabel("memory limit of a device (units)")
    axes.set_ylabel("steps a micro-batch")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    return axes
