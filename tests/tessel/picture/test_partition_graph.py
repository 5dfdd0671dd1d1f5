"""Pictures of partitions: places by depth, one colour a backend, and of real sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.patches import FancyBboxPatch, Rectangle

from tessel.picture.captions import save_figure
from tessel.picture.partition_graph import GraphNode, _columns, _places, partition_figure


def diamond() -> list[GraphNode]:
    return [
        GraphNode(operator="matmul", inputs=(), part=0, backend="blas"),
        GraphNode(operator="nn.relu", inputs=(0,), part=1, backend="tvm"),
        GraphNode(operator="tanh", inputs=(0,), part=2, backend="tvm"),
        GraphNode(operator="add", inputs=(1, 2), part=1, backend="tvm"),
    ]


def test_nodes_stand_right_of_their_inputs_and_apart() -> None:
    columns = _columns(diamond())
    assert columns == [0, 1, 1, 2]
    assert _places(columns) == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (2.0, 0.0)]


def test_deep_graphs_go_on_below_as_lines_of_text_do() -> None:
    places = _places([*range(20), 3])
    assert places[9] == (9.0, 0.0)
    assert places[10:20] == [(float(x), places[10][1]) for x in range(10)]
    assert places[20] == (3.0, 1.0)
    assert places[10][1] > 1.0


def test_each_backend_has_one_color_in_the_legend() -> None:
    (axes,) = partition_figure(diamond(), title="diamond").axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["blas", "tvm"]
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    colors = [box.get_facecolor() for box in boxes]
    assert colors[1] == colors[2] == colors[3] != colors[0]


def frames(nodes: list[GraphNode]) -> dict[str, tuple[float, float]]:
    """Left and right end of each part's frames."""
    (axes,) = partition_figure(nodes).axes
    return {
        str(patch.get_gid()): (patch.get_x(), patch.get_x() + patch.get_width())
        for patch in axes.patches
        if isinstance(patch, Rectangle) and patch.get_gid()
    }


def test_a_part_is_enclosed_unless_another_stands_between() -> None:
    assert list(frames(diamond())) == ["part-1"]
    (left, right) = frames(diamond())["part-1"]
    assert 0.4 < left < 0.6 < 2.4 < right < 2.6  # from the second column to the third

    chain = [("tvm", 0), ("blas", 1), ("tvm", 0)]
    between = [
        GraphNode(operator="add", inputs=(index - 1,) if index else (), part=part, backend=backend)
        for index, (backend, part) in enumerate(chain)
    ]
    assert frames(between) == {}


def test_a_partition_says_what_it_shows() -> None:
    figure = partition_figure(diamond(), title="diamond")
    assert figure.title == "diamond"
    assert "blas: 1 in 1, tvm: 3 in 2" in figure.description


def test_a_box_says_which_operator_it_is() -> None:
    layer = "transformer.h.11.mlp.c_fc"
    node = GraphNode(operator="matmul", inputs=(), part=0, backend="blas", layer=layer, shape=(1, 128, 3072))
    (axes,) = partition_figure([node]).axes
    assert [text.get_text() for text in axes.texts] == ["matmul", "h.11.mlp.c_fc", "1×128×3072"]


@pytest.mark.parametrize("num_operators", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_large_graph_is_drawn(num_operators: int, tmp_path: Path) -> None:
    nodes = [
        GraphNode(operator="add", inputs=(index - 1,) if index else (), part=index // 3, backend="tvm")
        for index in range(num_operators)
    ]
    save_figure(partition_figure(nodes), tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").stat().st_size > 10_000
