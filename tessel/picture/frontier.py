"""The frontier as a picture: steps a micro-batch takes in the long run, against the memory it is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
    for proven, label, face in ((True, "proven least", _PROVEN), (False, "not proven", _OPEN)):
        own = [number for number, point in enumerate(points) if point.optimal is proven]
        if own:
            axes.plot(
                [limits[number] for number in own],
                [rates[number] for number in own],
                "o",
                markeredgecolor=_PROVEN,
                markerfacecolor=face,
                linestyle="none",
                label=label,
            )
    for limit, rate, point in zip(limits, rates, points, strict=True):
        axes.annotate(
            f"{point.period}/{point.copies}" if point.copies > 1 else str(point.period),
            (limit, rate),
            textcoords="offset points",
            xytext=(5, 5),
        )
    axes.set_xlabel("memory limit of a device (units)")
    axes.set_ylabel("steps a micro-batch (period / micro-batches)")
    axes.set_ylim(0, 1.1 * max(rates, default=1.0))
    axes.margins(x=0.08)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if points:
        axes.legend(frameon=False)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    return axes
