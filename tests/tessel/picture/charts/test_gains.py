"""The chart of gains over 1F1B: a bar a schedule, its length 1F1B's time over the schedule's."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from tessel.comparison import Comparison, ComparisonRow
from tessel.errors import ScheduleError
from tessel.picture.figures import gains_figure


def row(name: str, makespan: int, *, fits: bool = True) -> ComparisonRow:
    return ComparisonRow(
        schedule=name,
        makespan=makespan,
        bubble_ratio=0.1,
        peak_memory=(1,),
        fits=fits,
        ratio_to_1f1b=makespan / 120,
    )


def comparison(*rows: ComparisonRow) -> Comparison:
    return Comparison(rows=rows, schedules=(), not_applicable=())


def test_a_bar_is_as_long_as_the_gain_and_the_largest_is_on_top() -> None:
    (axes,) = gains_figure(
        comparison(row("gpipe", 150), row("1f1b", 120), row("searched", 100), row("zb-h2", 96, fits=False))
    ).axes

    assert [patch.get_width() for patch in axes.patches] == pytest.approx([0.25, 0.2, -0.2])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["zb-h2", "ours", "gpipe"]
    assert [text.get_text() for text in axes.texts] == ["+25.0%, does not fit", "+20.0%", "-20.0%"]
    hollow = [tuple(patch.get_facecolor()[:3]) == to_rgb("white") for patch in axes.patches]
    assert hollow == [True, False, False]


def test_gains_need_1f1b() -> None:
    with pytest.raises(ScheduleError, match="which was not compared"):
        gains_figure(comparison(row("searched", 100)))


def test_a_style_reaches_the_bars_and_their_figures() -> None:
    (axes,) = gains_figure(
        comparison(row("1f1b", 120), row("searched", 100), row("zb-h1", 110)),
        annotation_args={"fontsize": 4},
        rectangle_args={"searched": {"hatch": "//"}},
    ).axes
    assert [patch.get_hatch() for patch in axes.patches] == ["//", None]
    assert {text.get_fontsize() for text in axes.texts} == {4}
