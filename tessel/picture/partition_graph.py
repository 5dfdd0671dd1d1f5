"""A data-flow graph coloured by backend: which operators run together, and who runs them.

Operators stand in columns by depth, each below its inputs' column; those of one part share an outline. Names
are written where there is room for them. Nothing here reads or writes global figure state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from tessel.picture.colors import color_by_backend

_MAX_TEXTS = 400
_COLUMN_INCHES = 0.9
_MAX_INCHES = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator.

    Attributes:
        operator: its name.
        inputs: positions of the nodes it reads; all before it.
        part: number of the partition it belongs to.
        backend: who runs that.
    """

    operator: str
    inputs: tuple[int, ...]
    part: int
    backend: str


def partition_figure(nodes: Sequence[GraphNode], *, title: str = "") -> Figure:
    """Return a figure with the graph on axes of its own, as wide as the graph is deep."""
    columns = _columns(nodes)
    depth = max(columns, default=0) + 1
    breadth = max((columns.count(column) for column in set(columns)), default=1)
    figure = Figure(
        figsize=(min(max(8.0, depth * _COLUMN_INCHES), _MAX_INCHES), max(3.0, 0.5 * breadth + 1.2)),
        layout="constrained",
    )
    draw_partition(nodes, figure.add_subplot(), title=title)
    return figure


def draw_partition(nodes: Sequence[GraphNode], axes: Axes, *, title: str = "") -> Axes:
    """Draw the graph on the axes: inputs to the left, results to the right.

    Args:
        nodes: in an order in which inputs come first.
        axes: where; limits are set and ticks removed.
        title: above the picture.

    Returns:
        The axes.
    """
    columns = _columns(nodes)
    places = _places(columns)
    colors = color_by_backend(node.backend for node in nodes)
    lines = [
        ((places[source][0] + 0.4, places[source][1]), (places[target][0] - 0.4, places[target][1]))
        for target, node in enumerate(nodes)
        for source in node.inputs
    ]
    same_part = [nodes[source].part == node.part for node in nodes for source in node.inputs]
    axes.add_collection(
        LineCollection(
            lines,
            colors=["black" if inside else "#999999" for inside in same_part],
            linewidths=[1.6 if inside else 0.6 for inside in same_part],
            zorder=1,
        )
    )
    for position, node in enumerate(nodes):
        x, y = places[position]
        axes.add_patch(
            FancyBboxPatch(
                (x - 0.4, y - 0.3),
                0.8,
                0.6,
                boxstyle="round,pad=0,rounding_size=0.1",
                facecolor=colors[node.backend],
                edgecolor="black",
                linewidth=0.5,
                zorder=2,
            )
        )
        if len(nodes) <= _MAX_TEXTS:
            axes.text(x, y, _short(node.operator), ha="center", va="center", fontsize=6, zorder=3)
    axes.set_xlim(-0.6, max(columns, default=0) + 0.6)
    heights = [y for _, y in places] or [0.0]
    axes.set_ylim(max(heights) + 0.6, min(heights) - 0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, loc="left")
    axes.legend(
        handles=[Patch(facecolor=color, label=backend) for backend, color in colors.items()],
        loc="upper left",
        bbox_to_anchor=(0, -0.02),
        ncols=len(colors) or 1,
        frameon=False,
    )
    return axes


def _columns(nodes: Sequence[GraphNode]) -> list[int]:
    columns: list[int] = []
    for node in nodes:
        columns.append(1 + max((columns[source] for source in node.inputs), default=-1))
    return columns


def _places(columns: Sequence[int]) -> list[tuple[float, float]]:
    """Return (column, row) of each node; the rows of a column are centred on zero."""
    counts = {column: columns.count(column) for column in set(columns)}
    seen: dict[int, int] = dict.fromkeys(counts, 0)
    places = []
    for column in columns:
        places.append((float(column), seen[column] - (counts[column] - 1) / 2))
        seen[column] += 1
    return places


def _short(operator: str) -> str:
    name = operator.rpartition(".")[2]
    return name if len(name) <= 12 else f"{name[:11]}…"
