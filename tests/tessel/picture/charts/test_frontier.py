"""The picture of a frontier shows what is open, and no bound where none is proven."""

from __future__ import annotations

from fractions import Fraction

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tessel.picture.charts.frontier import frontier_figure
from tessel.search.frontier.open_ranges import Frontier, OpenRange
from tessel.search.frontier.period import FrontierPoint


def point(limit: int, period: int, lower_bound: int) -> FrontierPoint:
    return FrontierPoint(
        memory=(limit,) * 2,
        period=period,
        copies=1,
        lower_bound=lower_bound,
        optimal=period == lower_bound,
    )


POINTS = [point(1, 16, 16), point(2, 8, 6), point(4, 4, 4)]

CUT = Frontier(
    POINTS,
    open_ranges=(
        OpenRange(first=2, last=2, at_least=6, at_most=8),
        OpenRange(first=3, last=3, at_least=4, at_most=8),
    ),
    bounds=((1, 16), (2, 6), (4, Fraction(4))),
    stopped_by="work",
)


def lines(axes: Axes, style: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_linestyle() == style and len(line.get_xdata())]


def spans(axes: Axes, style: str) -> list[tuple[float, float, float]]:
    """Begin, end and height of the level lines of a style."""
    return [
        (line.get_xdata()[0], line.get_xdata()[1], line.get_ydata()[0])
        for line in lines(axes, style)
        if line.get_ydata()[0] == line.get_ydata()[1]
    ]


def test_open_limits_are_dashed_and_open_points_hollow() -> None:
    axes = frontier_figure(CUT).axes[0]
    assert spans(axes, "--") == [(2, 4, 8)]
    assert spans(axes, "-") == [(1, 2, 16)]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "#FFFFFF"]
    assert [list(line.get_xdata()) for line in hollow] == [[2]]
    legend = axes.get_legend()
    assert legend is not None
    assert {"proven optimal", "not proven", "lower bound", "open: better may exist"} == {
        text.get_text() for text in legend.get_texts()
    }


def test_the_bound_between_two_points_is_that_of_the_higher_limit() -> None:
    (bound,) = lines(frontier_figure(CUT).axes[0], ":")
    assert list(bound.get_xdata()) == [1, 2, 4]
    assert list(bound.get_ydata()) == [16, 6, 4]
    assert bound.get_drawstyle() == "steps-pre"


def test_an_open_end_goes_on_dashed() -> None:
    beyond = Frontier(
        POINTS[2:],
        open_ranges=(OpenRange(first=5, last=None, at_least=3, at_most=4),),
        bounds=((4, 3),),
        stopped_by="time",
    )
    ((begin, end, height),) = spans(frontier_figure(beyond).axes[0], "--")
    assert begin == 4 < end
    assert height == 4


def test_plain_points_and_none_are_drawn_too() -> None:
    assert spans(frontier_figure(POINTS).axes[0], "-") == [(1, 2, 16), (2, 4, 8)]
    assert frontier_figure([]).axes[0].get_legend() is None
