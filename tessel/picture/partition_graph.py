"""A data-flow graph coloured by backend: which operators run together, and on which backend.

Operators are laid out in columns by depth, each to the right of its inputs, and deep graphs wrap like lines
of text. A part is enclosed by a frame on each line, where no operator of another part stands between; links
inside a part are thick; one that leads to another line ends in a ring, and begins again with one. Names are
written where there is room for them. Nothing here reads or writes global figure state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text

from tessel.picture.captions import DescribedFigure
from tessel.picture.colors import color_by_backend, ink_on
from tessel.picture.draw import ArtistArgs
from tessel.picture.sizes import Size, text_of

_MAX_TEXTS = 2000
_MAX_LAYER_LETTERS = 22
_MOST_COLUMNS = 10  # as many as leave a box room for 22 letters of 5 points on a screen
_COLUMN_INCHES = 1.2
_ROW_INCHES = 0.5
_FRAME = 0.06  # from a part's boxes to its frame
_MAX_INCHES = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """One operator.

    Attributes:
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


def partition_figure(
    nodes: Sequence[GraphNode],
    *,
    title: str = "",
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
    line_args: ArtistArgs | None = None,
    width: float | None = None,
) -> DescribedFigure:
    """Return a figure with what `draw_partition` draws on axes of its own, as high as the graph needs.

    Args:
        width: of the figure, in inches: as many columns stand side by side as have room for the names in
            their boxes. As wide as the graph if None, up to a screen.
    """
    columns = _MOST_COLUMNS if width is None else max(2, int(width / _COLUMN_INCHES))
    places = _places(_columns(nodes), columns) or [(0.0, 0.0)]
    natural = max(8.0, (max(x for x, _ in places) + 2) * _COLUMN_INCHES)
    size = Size.of(width or natural)
    height = max(y for _, y in places) + 3
    with text_of(size):
        figure = DescribedFigure(
            figsize=(size.width, min(max(1.6 if width else 2.5, height * _ROW_INCHES), _MAX_INCHES)),
            layout="constrained",
        )
        axes = draw_partition(
            nodes,
            figure.add_subplot(),
            title=size.wrapped(title),
            columns=columns,
            annotation_args=annotation_args,
            rectangle_args=rectangle_args,
            line_args=line_args,
        )
    if width is not None:
        axes.set_xlim(-0.65, columns - 0.35)  # boxes of one size, whatever the graph
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


def draw_partition(
    nodes: Sequence[GraphNode],
    axes: Axes,
    *,
    title: str = "",
    columns: int = _MOST_COLUMNS,
    annotation_args: ArtistArgs | None = None,
    rectangle_args: Mapping[str, ArtistArgs] | None = None,
    line_args: ArtistArgs | None = None,
) -> Axes:
    """Draw the graph on the axes: inputs to the left, results to the right.

    Args:
        nodes: in an order in which inputs come first.
        axes: where; limits are set and ticks removed.
        title: above the picture.
        columns: boxes side by side, after which the graph goes on below.
        annotation_args: properties of the names (`matplotlib.text.Text`), over the ones used here.
        rectangle_args: properties of the boxes (`matplotlib.patches.Patch`) by backend, likewise.
        line_args: properties of the links (`matplotlib.patches.Patch`, by the names of a line's), likewise.

    Returns:
        The axes.
    """
    depths = _columns(nodes)
    places = _places(depths, columns)
    colors = color_by_backend(node.backend for node in nodes)
    _draw_frames(nodes, places, [depth // columns for depth in depths], axes)
    _draw_links(nodes, places, axes, line_args or {})
    for position, node in enumerate(nodes):
        x, y = places[position]
        box = FancyBboxPatch(
            (x - 0.4, y - 0.3),
            0.8,
            0.6,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=colors[node.backend],
            edgecolor="black",
            linewidth=0.5,
            zorder=2,
        )
        box.set(**(rectangle_args or {}).get(node.backend, {}))
        axes.add_patch(box)
        if len(nodes) <= _MAX_TEXTS:
            for text in _write(node, x, y, axes, ink_on(to_rgb(box.get_facecolor()))):
                text.set(**(annotation_args or {}))
    axes.set_xlim(-0.8, max((x for x, _ in places), default=0) + 0.8)
    axes.set_ylim(max((y for _, y in places), default=0) + 0.7, -0.7)
    axes.set_frame_on(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, loc="left", parse_math=False)
    swatches = [Patch(facecolor=color, edgecolor="black", label=name) for name, color in colors.items()]
    for swatch in swatches:
        swatch.set(**(rectangle_args or {}).get(str(swatch.get_label()), {}))
    axes.legend(
        handles=swatches,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        borderaxespad=0,
        ncols=min(len(colors), columns) or 1,
        frameon=False,
    )
    return axes


def _write(node: GraphNode, x: float, y: float, axes: Axes, ink: str) -> list[Text]:
    """Write an operator's name into its box, and below it, smaller, its layer and its result's shape."""
    lines = [(_short(node.operator), 7.0)]
    lines += [(text, 5.0) for text in (_tail(node.layer), "×".join(map(str, node.shape))) if text]
    texts = []
    for number, (text, size) in enumerate(lines):
        place = y + (number - (len(lines) - 1) / 2) * 0.19
        written = axes.text(x, place, text, ha="center", va="center", zorder=3, parse_math=False)
        written.set(fontsize=size, color=ink)
        texts.append(written)
    return texts


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


def _draw_links(
    nodes: Sequence[GraphNode],
    places: Sequence[tuple[float, float]],
    axes: Axes,
    line_args: ArtistArgs,
) -> None:
    for target, node in enumerate(nodes):
        for source in node.inputs:
            inside = nodes[source].part == node.part
            for path in _link(places[source], places[target]):
                link = PathPatch(
                    path,
                    fill=False,
                    edgecolor="black" if inside else "#999999",
                    linewidth=1.8 if inside else 0.7,
                    zorder=1,
                )
                link.set(**line_args)
                axes.add_patch(link)


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


def _places(depths: Sequence[int], columns: int = _MOST_COLUMNS) -> list[tuple[float, float]]:
    """Return where each node stands: rows of a column from its line's top, lines below each other."""
    counts = Counter(depths)
    tops = [0.0]
    for first in range(0, max(depths, default=0) + 1, columns):
        tops.append(tops[-1] + max(counts[depth] for depth in range(first, first + columns)) + 0.4)
    seen: Counter[int] = Counter()
    places = []
    for depth in depths:
        places.append((float(depth % columns), tops[depth // columns] + seen[depth]))
        seen[depth] += 1
    return places


def _short(operator: str) -> str:
    name = operator.rpartition(".")[2]
    return name if len(name) <= 12 else f"{name[:11]}…"
