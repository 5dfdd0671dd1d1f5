"""A data-flow graph coloured by backend: which operators run together, and on which backend.

Operators are laid out in columns by depth, each to the right of its inputs, and deep graphs wrap like lines
of text. A part is enclosed by a frame on each line, where no operator of another part stands between; links
inside a part are thick; one that leads to another line ends in a ring, and begins again with one. Names are
written where there is room for them. Nothing here reads or writes global figure state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Rectangle
from matplotlib.path import Path

from tessel.picture.colors import color_by_backend, ink_on
from tessel.picture.described import DescribedFigure

_MAX_TEXTS = 2000
_MAX_LAYER_LETTERS = 22
_COLUMNS = 10  # as many as leave a box room for 22 letters of 5 points on a screen
_COLUMN_INCHES = 1.2
_ROW_INCHES = 0.5
_FRAME = 0.06  # from a part's boxes to its frame
_MAX_INCHES = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator.

    Attributes:
        operator: its name.
        inputs: positions of the nodes it reads; all before it.
        part: number of the partition it belongs to.
        backend: who runs that.
        layer: path of the layer that it belongs to; empty where that is not known.
        shape: of its result.
    """

    operator: str
    inputs: tuple[int, ...]
    part: int
    backend: str
    layer: str = ""
    shape: tuple[int, ...] = ()


def partition_figure(nodes: Sequence[GraphNode], *, title: str = "") -> DescribedFigure:
    """Return a figure with the graph on axes of its own, as large as the graph needs."""
    places = _places(_columns(nodes)) or [(0.0, 0.0)]
    width = max(x for x, _ in places) + 2
    height = max(y for _, y in places) + 3
    figure = DescribedFigure(
        figsize=(max(8.0, width * _COLUMN_INCHES), min(max(2.5, height * _ROW_INCHES), _MAX_INCHES)),
        layout="constrained",
    )
    draw_partition(nodes, figure.add_subplot(), title=title)
    figure.title = title or "A data-flow graph coloured by backend"
    figure.description = describe_partition(nodes)
    return figure


def describe_partition(nodes: Sequence[GraphNode]) -> str:
    """Return what the picture shows: operators and sub-graphs of each backend."""
    operators = Counter(node.backend for node in nodes)
    parts = Counter(backend for _, backend in {(node.part, node.backend) for node in nodes})
    shares = [f"{name}: {operators[name]} in {parts[name]}" for name in sorted(operators)]
    return (
        f"A data-flow graph of {len(nodes)} operators; operators and sub-graphs of each backend: "
        f"{', '.join(shares)}."
    )


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
    _draw_frames(nodes, places, [column // _COLUMNS for column in columns], axes)
    _draw_links(nodes, places, axes)
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
            _write(node, x, y, axes, ink_on(to_rgb(colors[node.backend])))
    axes.set_xlim(-0.8, max((x for x, _ in places), default=0) + 0.8)
    axes.set_ylim(max((y for _, y in places), default=0) + 0.7, -0.7)
    axes.set_frame_on(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, loc="left", parse_math=False)
    axes.legend(
        handles=[Patch(facecolor=color, label=backend) for backend, color in colors.items()],
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        borderaxespad=0,
        ncols=len(colors) or 1,
        frameon=False,
    )
    return axes


def _write(node: GraphNode, x: float, y: float, axes: Axes, ink: str) -> None:
    """Write an operator's name into its box, and below it, smaller, its layer and its result's shape."""
    lines = [(_short(node.operator), 7.0)]
    lines += [(text, 5.0) for text in (_tail(node.layer), "×".join(map(str, node.shape))) if text]
    for number, (text, size) in enumerate(lines):
        place = y + (number - (len(lines) - 1) / 2) * 0.19
        written = axes.text(x, place, text, ha="center", va="center", zorder=3, parse_math=False)
        written.set(fontsize=size, color=ink)


def _draw_frames(
    nodes: Sequence[GraphNode],
    places: Sequence[tuple[float, float]],
    lines: Sequence[int],
    axes: Axes,
) -> None:
    """Enclose the operators of each part that stand on one line, where no other operator is among them."""
    by_line: dict[int, list[int]] = defaultdict(list)
    by_part: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, (node, line) in enumerate(zip(nodes, lines, strict=True)):
        by_line[line].append(position)
        by_part[node.part, line].append(position)
    for (part, line), own in by_part.items():
        left, right = (pick(places[position][0] for position in own) for pick in (min, max))
        first, last = (pick(places[position][1] for position in own) for pick in (min, max))
        strangers = [
            position
            for position in by_line[line]
            if nodes[position].part != part
            and left <= places[position][0] <= right
            and first <= places[position][1] <= last
        ]
        if len(own) > 1 and not strangers:
            axes.add_patch(
                Rectangle(
                    (left - 0.4 - _FRAME, first - 0.3 - _FRAME),
                    right - left + 0.8 + 2 * _FRAME,
                    last - first + 0.6 + 2 * _FRAME,
                    fill=False,
                    edgecolor="#444444",
                    linewidth=1.0,
                    gid=f"part-{part}",
                    zorder=1.5,
                )
            )


def _tail(layer: str) -> str:
    """Return the end of a layer's path, as much of it as a box has room for."""
    names = layer.split(".")
    while len(names) > 1 and len(".".join(names)) > _MAX_LAYER_LETTERS:
        names.pop(0)
    return ".".join(names)[-_MAX_LAYER_LETTERS:]


def _draw_links(nodes: Sequence[GraphNode], places: Sequence[tuple[float, float]], axes: Axes) -> None:
    for target, node in enumerate(nodes):
        for source in node.inputs:
            inside = nodes[source].part == node.part
            for path in _link(places[source], places[target]):
                axes.add_patch(
                    PathPatch(
                        path,
                        fill=False,
                        edgecolor="black" if inside else "#999999",
                        linewidth=1.8 if inside else 0.7,
                        zorder=1,
                    )
                )


def _link(source: tuple[float, float], target: tuple[float, float]) -> list[Path]:
    """Return the lines of a link: one, or two ends where it leads to another line of the picture."""
    (x, y), (to_x, to_y) = (source[0] + 0.4, source[1]), (target[0] - 0.4, target[1])
    if to_x < x:  # on a later line
        return [
            Path(((x, y), (x + 0.15, y))),
            Path.circle((x + 0.18, y), 0.03),
            Path(((to_x - 0.15, to_y), (to_x, to_y))),
            Path.circle((to_x - 0.18, to_y), 0.03),
        ]
    if to_x - x < 1:
        return [Path(((x, y), (to_x, to_y)))]
    # Below the operators between them, which it would otherwise hide behind.
    low = max(y, to_y) + 0.42
    curve = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3]
    points = (
        (x, y),
        (x + 0.1, y),
        (x, low),
        (x + 0.3, low),
        (to_x - 0.3, low),
        (to_x, low),
        (to_x - 0.1, to_y),
    )
    return [Path((*points, (to_x, to_y)), curve)]


def _columns(nodes: Sequence[GraphNode]) -> list[int]:
    columns: list[int] = []
    for node in nodes:
        columns.append(1 + max((columns[source] for source in node.inputs), default=-1))
    return columns


def _places(columns: Sequence[int]) -> list[tuple[float, float]]:
    """Return where each node stands: rows of a column from its line's top, lines below each other."""
    counts = Counter(columns)
    tops = [0.0]
    for first in range(0, max(columns, default=0) + 1, _COLUMNS):
        tops.append(tops[-1] + max(counts[column] for column in range(first, first + _COLUMNS)) + 0.4)
    seen: Counter[int] = Counter()
    places = []
    for column in columns:
        places.append((float(column % _COLUMNS), tops[column // _COLUMNS] + seen[column]))
        seen[column] += 1
    return places


def _short(operator: str) -> str:
    name = operator.rpartition(".")[2]
    return name if len(name) <= 12 else f"{name[:11]}…"
