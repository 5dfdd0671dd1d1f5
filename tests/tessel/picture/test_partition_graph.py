"""Pictures of partitions: places by depth, one colour a backend, and of real sizes."""

from __future__ import annotations

import time
from pathlib import Path

from tessel.picture import GraphNode, partition_figure, save_figure
from tessel.picture.partition_graph import _columns, _places


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
    assert _places(columns) == [(0.0, 0.0), (1.0, -0.5), (1.0, 0.5), (2.0, 0.0)]


def test_each_backend_has_one_color_in_the_legend() -> None:
    (axes,) = partition_figure(diamond(), title="diamond").axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["blas", "tvm"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert colors[1] == colors[2] == colors[3] != colors[0]


def test_a_graph_of_a_thousand_operators_is_drawn(tmp_path: Path) -> None:
    nodes = [
        GraphNode(operator="add", inputs=(index - 1,) if index else (), part=index // 3, backend="tvm")
        for index in range(1000)
    ]
    started = time.monotonic()
    save_figure(partition_figure(nodes), tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").stat().st_size > 10_000
    assert time.monotonic() - started < 60
