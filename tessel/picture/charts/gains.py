"""A bar chart of the gains over 1F1B: how much longer 1F1B takes than each schedule.

    searched  ███████████████ +19 %     above 0 a schedule is faster than 1F1B, below it slower;
    zb-h1     █████████ +11 %           hollow bars break the memory limit
    gpipe     ┆ 0 %

Checked in tests/tessel/picture/charts/test_gains.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from tessel.comparison import Comparison
from tessel.errors import ScheduleError
from tessel.picture.colors import COLOR_BY_KIND
from tessel.picture.description import gain
from tessel.picture.draw import ArtistArgs
from tessel.placement import BlockKind

_FITTING = COLOR_BY_KIND[BlockKind.FORWARD]
_SLOWER = "#D55E00"


def draw_gains(
    comparison: Comparison,
    axes: Axes,
    *,
    title: str = "",
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
) -> Axes:
    """Draw a bar a schedule but 1F1B, largest gain on top.

    Args:
        comparison: schedules of one placement, 1F1B among them.
        axes: where; limits, ticks and labels are set.
        title: above the picture.
        annotation_args: properties of the bars' figures (`matplotlib.text.Text`), over the ones used here.
        rectangle_args: properties of the bars (`matplotlib.patches.Rectangle`) by schedule, likewise.

    Returns:
        The axes.

    Raises:
        ScheduleError: 1F1B was not compared.
    """
    rows = [row for row in comparison.rows if row.schedule != "1f1b"]
    if any(row.ratio_to_1f1b is None for row in rows) or len(rows) == len(comparison.rows):
        raise ScheduleError("gains are over 1F1B, which was not compared; name it among the schedules")
    rows.sort(key=lambda row: (-gain(row), row.schedule))
    gains = [gain(row) for row in rows]
    bars = axes.barh(range(len(rows)), gains, height=0.7)
    for bar, row, value in zip(bars, rows, gains, strict=True):
        color = _FITTING if value >= 0 else _SLOWER
        bar.set(facecolor=color if row.fits else "white", edgecolor=color, linewidth=0.8)
        bar.set(**(rectangle_args or {}).get(row.schedule, {}))
    notes = [
        f"{value:+.1%}" + ("" if row.fits else ", does not fit")
        for row, value in zip(rows, gains, strict=True)
    ]
    for text in axes.bar_label(bars, notes, padding=3, fontsize="small"):
        text.set(**(annotation_args or {}))
    axes.set_yticks(range(len(rows)), [row.title for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.2)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("how much longer 1F1B takes")
    axes.set_title(title, loc="left", parse_math=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return axes
