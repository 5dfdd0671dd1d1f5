"""Frontiers and graphs for a column, a page and a screen: as wide as asked for, names inside their boxes."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from tessel.picture.charts.frontier import frontier_figure
from tessel.picture.partition_graph import GraphNode, partition_figure
from tessel.picture.sizes import COLUMN_INCHES, PAGE_INCHES
from tessel.search.frontier.period import FrontierPoint

POINTS = [
    FrontierPoint(memory=(limit,) * 2, period=period, copies=1, lower_bound=period, optimal=True)
    for limit, period in ((1, 128), (2, 64), (4, 4))
]

CHAIN = [
    GraphNode(
        operator="nn.log_softmax",
        inputs=(index - 1,) if index else (),
        part=index // 3,
        backend=("blas", "tvm")[index // 3 % 2],
        layer=f"transformer.h.{index}.mlp.c_proj",
        shape=(1, 128, 50257),
    )
    for index in range(12)
]


@pytest.mark.parametrize("width", [COLUMN_INCHES, PAGE_INCHES])
def test_frontiers_and_graphs_have_the_width_of_print_and_its_letters(width: float) -> None:
    frontier, graph = frontier_figure(POINTS, width=width), partition_figure(CHAIN, width=width)
    assert frontier.get_figwidth() == graph.get_figwidth() == width
    assert frontier.axes[0].xaxis.label.get_size() < frontier_figure(POINTS).axes[0].xaxis.label.get_size()


@pytest.mark.parametrize("width", [COLUMN_INCHES, PAGE_INCHES, None])
def test_names_stay_inside_their_boxes(width: float | None) -> None:
    figure = partition_figure(CHAIN, title="A title that is longer than a column is wide " * 2, width=width)
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    boxes = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    names = [text.get_window_extent() for text in axes.texts]
    for number, box in enumerate(boxes):
        for name in names[3 * number : 3 * number + 3]:
            assert box.x0 <= name.x0
            assert name.x1 <= box.x1
    assert axes.title.get_window_extent().x1 <= figure.bbox.x1


def test_a_style_reaches_the_frontier_and_the_graph() -> None:
    own = {"color": "#123456"}
    (axes,) = frontier_figure(POINTS, annotation_args=own, line_args=own).axes
    assert {text.get_color() for text in axes.texts} == {"#123456"}
    assert [line.get_color() for line in axes.lines].count("#123456") == 4  # two levels, two falls

    (axes,) = partition_figure(
        CHAIN,
        annotation_args={"fontsize": 3},
        rectangle_args={"blas": {"hatch": "//"}},
        line_args={"linewidth": 9},
    ).axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert [box.get_hatch() for box in boxes[:6]] == ["//"] * 3 + [None] * 3
    assert {text.get_fontsize() for text in axes.texts} == {3}
    assert sum(patch.get_linewidth() == 9 for patch in axes.patches) >= 11
