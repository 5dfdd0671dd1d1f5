"""Plot of the frontier: time per micro-batch, or makespan, against the memory limit.

    ●━━━┓          filled: proven optimal; solid: nothing better exists up to the next point
        ○┅┅┅┅┅┓    hollow: not proven; dashed: open, something better may exist at these limits
     ···:·····●    dotted: no value is below, at any limit, as far as is proven

Checked in tests/tessel/picture/charts/test_frontier.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tessel.picture.captions import DescribedFigure
from tessel.picture.draw import ArtistArgs
from tessel.picture.sizes import SCREEN_INCHES, Size, text_of
from tessel.search.frontier.makespan import MakespanPoint
from tessel.search.frontier.open_ranges import Frontier, OpenRange
from tessel.search.frontier.period import FrontierPoint

_PROVEN = "#0072B2"
_OPEN = "#FFFFFF"
_BOUND = "#999999"

_BEYOND = 1.1
"""How far an open end is drawn, as a multiple of the last limit."""

Points = Sequence[FrontierPoint] | Sequence[MakespanPoint] | Sequence[FrontierPoint | MakespanPoint]


def frontier_figure(
    points: Points,
    *,
    title: str = "",
    annotation_args: ArtistArgs | None = None,
    line_args: ArtistArgs | None = None,
    width: float | None = None,
) -> DescribedFigure:
    """Return a figure with what `draw_frontier` draws on axes of its own.

    Args:
        width: of the figure, in inches; half a screen if None.
    """
    size = replace(Size.of(SCREEN_INCHES), width=SCREEN_INCHES / 2) if width is None else Size.of(width)
    with text_of(size):
        figure = DescribedFigure(figsize=(size.width, max(0.62 * size.width, 2.2)), layout="constrained")
        draw_frontier(
            points,
            figure.add_subplot(),
            title=size.wrapped(title),
            annotation_args=annotation_args,
            line_args=line_args,
        )
    figure.title = title or "What each memory limit of a device costs"
    figure.description = describe_frontier(points)
    return figure


def describe_frontier(points: Points) -> str:
    """Return what the picture of a frontier shows, a point after the other."""
    values = [
        f"limit {max(point.memory)}: {_mark(point)}{'' if _is_proven(points, point) else ' (not proven)'}"
        for point in points
    ]
    is_whole = any(isinstance(point, MakespanPoint) for point in points)
    unit = "the makespan in steps" if is_whole else "steps per micro-batch"
    return f"A falling staircase: for each memory limit, {unit}. {', '.join(values)}."


def draw_frontier(
    points: Points,
    axes: Axes,
    *,
    title: str = "",
    annotation_args: ArtistArgs | None = None,
    line_args: ArtistArgs | None = None,
) -> Axes:
    """Draw steps against the memory limit, what is open, and the bound.

    Args:
        points: by ascending memory; steady state (steps per micro-batch) or whole schedules (makespan).
            What is open, and the bounds between the points, are known of a `Frontier` only.
        axes: where; labels and limits are set.
        title: above the picture.
        annotation_args: properties of the points' values (`matplotlib.text.Text`), over the ones used here.
        line_args: properties of the curve (`matplotlib.lines.Line2D`), likewise; what is open stays dashed.

    Returns:
        The axes.
    """
    limits = [max(point.memory) for point in points]
    steps = [_steps(point) for point in points]
    open_ranges = points.open_ranges if isinstance(points, Frontier) else ()
    _draw_curve(limits, steps, open_ranges, axes, line_args or {})
    _draw_bounds(points, axes)
    is_open = [not _is_proven(points, point) for point in points]
    for wanted, label, face in ((False, "proven optimal", _PROVEN), (True, "not proven", _OPEN)):
        own = [number for number, here in enumerate(is_open) if here is wanted]
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
        text = axes.annotate(_mark(point), (limit, height), textcoords="offset points", xytext=(5, 5))
        text.set(**(annotation_args or {}))
    axes.set_xlabel("memory limit of a device (units)")
    is_whole = any(isinstance(point, MakespanPoint) for point in points)
    axes.set_ylabel("makespan (steps)" if is_whole else "steps per micro-batch")
    axes.set_ylim(0, 1.1 * max(steps, default=1.0))
    axes.margins(x=0.08)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if points:
        axes.plot([], [], color=_BOUND, linestyle=":", label="lower bound")
        if open_ranges:
            axes.plot([], [], color=_PROVEN, linestyle="--", label="open: better may exist")
        axes.legend(frameon=False)
    axes.set_title(title, parse_math=False)
    axes.grid(visible=True, alpha=0.3)
    return axes


def _draw_curve(
    limits: Sequence[int],
    steps: Sequence[float],
    open_ranges: Sequence[OpenRange],
    axes: Axes,
    line_args: ArtistArgs,
) -> None:
    """Draw what is found, a line from each point to the next limit, dashed where it is open between."""
    ends: list[float] = [float(limit) for limit in limits[1:]]
    endless = [each.first for each in open_ranges if each.last is None]
    if endless and limits:
        ends.append(max(_BEYOND * limits[-1], endless[0] + 1))
    for number, end in enumerate(ends):
        begin, height = limits[number], steps[number]
        between = [
            each for each in open_ranges if (each.last is None or each.last > begin) and each.first < end
        ]
        (level,) = axes.plot([begin, end], [height, height], color=_PROVEN)
        level.set(**line_args)
        level.set_linestyle("--" if between else "-")
        if number + 1 < len(steps):
            (fall,) = axes.plot([end, end], [height, steps[number + 1]], color=_PROVEN, linestyle="-")
            fall.set(**line_args)


def _draw_bounds(points: Points, axes: Axes) -> None:
    """Draw the bound: what is proven for a limit holds for all lower ones, up to where more is proven."""
    if isinstance(points, Frontier):
        known = [(limit, float(bound)) for limit, bound in points.bounds]
    else:
        known = [(max(point.memory), _bound(point)) for point in points]
    highest: list[tuple[int, float]] = []
    for limit, bound in reversed(known):
        highest.append((limit, max([bound, *(height for _, height in highest[-1:])])))
    first = min((max(point.memory) for point in points), default=0)
    shown = [(limit, bound) for limit, bound in reversed(highest) if limit >= first]
    axes.step(
        [limit for limit, _ in shown],
        [bound for _, bound in shown],
        where="pre",
        color=_BOUND,
        linestyle=":",
    )


def _is_proven(points: Points, point: FrontierPoint | MakespanPoint) -> bool:
    is_open = isinstance(points, Frontier) and points.is_open(max(point.memory))
    return point.optimal and not is_open


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
