"""The pictures that papers show, whole, against stored ones; and that the comparison sees what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from example_pages import comparison
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from reference_pictures import TOLERANCE, assert_like_stored, largest_difference, shrunk

from tessel.comparison import compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.picture.charts.frontier import frontier_figure
from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
from tessel.picture.partition_graph import GraphNode, partition_figure
from tessel.picture.sizes import COLUMN_INCHES, PAGE_INCHES
from tessel.placement import BlockKind, Placement
from tessel.schedule import Schedule
from tessel.search.frontier.open_ranges import Frontier, OpenRange
from tessel.search.frontier.period import FrontierPoint
from tessel.shapes import mshape, nnshape, vshape, zbv


def built(name: str, placement: Placement, micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == name)
    return rule.build(placement, micro_batches=micro_batches, memory=None)


def frontier() -> Figure:
    """A proven point, an open one, and a bound below."""
    points = [
        FrontierPoint(
            memory=(limit,) * 2, period=period, copies=1, lower_bound=bound, optimal=period == bound
        )
        for limit, period, bound in ((1, 16, 16), (2, 8, 6), (4, 4, 4))
    ]
    open_ranges = (OpenRange(first=2, last=3, at_least=4, at_most=8),)
    found = Frontier(points, open_ranges=open_ranges, bounds=((1, 16), (2, 6), (4, 4)), stopped_by="work")
    return frontier_figure(found, title="A frontier", width=COLUMN_INCHES)


def graph() -> Figure:
    nodes = [
        GraphNode(
            operator=("matmul", "add", "gelu")[index % 3],
            inputs=() if not index else (index - 1,) if index % 4 else (index - 1, index - 4),
            part=index // 3,
            backend=("blas", "tvm")[index // 3 % 2],
            layer=f"h.{index // 3}.mlp",
            shape=(1, 128, 768),
        )
        for index in range(12)
    ]
    return partition_figure(nodes, title="A graph", width=PAGE_INCHES)


def timeline(name: str, placement: Placement, micro_batches: int) -> Callable[[], Figure]:
    return lambda: schedule_figure(
        built(name, placement, micro_batches), title=name, width=PAGE_INCHES, critical_path=True
    )


PICTURES: dict[str, Callable[[], Figure]] = {
    "comparison": lambda: comparison_figure(comparison(4, 16), title="Four schedules", width=PAGE_INCHES),
    "zb-v": timeline("zb-v", zbv(16, split_backward=True), 64),
    "m": timeline("gpipe", mshape(4), 8),
    "nn": timeline("gpipe", nnshape(4), 8),
    "column": lambda: schedule_figure(built("1f1b", vshape(4), 8), title="1F1B", width=COLUMN_INCHES),
    "gains": lambda: gains_figure(
        compare_schedules(built("zb-h1", vshape(4, split_backward=True), 8)), width=COLUMN_INCHES
    ),
    "frontier": frontier,
    "graph": graph,
}


def png_of(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


@pytest.mark.parametrize("name", PICTURES)
def test_it_looks_as_the_stored_picture_does(name: str, tmp_path: Path) -> None:
    assert_like_stored(name, png_of(PICTURES[name]()), tmp_path)


def test_a_block_that_moved_or_changed_its_colour_is_seen() -> None:
    schedule = built("1f1b", vshape(4), 16)
    whole = shrunk(png_of(schedule_figure(schedule, width=PAGE_INCHES)))
    assert largest_difference(whole, shrunk(png_of(schedule_figure(schedule, width=PAGE_INCHES)))) == 0

    moved = schedule_figure(schedule, width=PAGE_INCHES)
    (backward,) = (each for each in moved.axes[0].collections if each.get_label() == "backward")
    assert isinstance(backward, PolyCollection)
    corners = [np.array(path.vertices) for path in backward.get_paths()]
    for shift, is_seen in ((0.1, False), (0.4, True)):  # in steps: a third of a pixel, and 2 more
        corners[0][:, 0] += shift
        backward.set_verts(corners)
        assert (largest_difference(whole, shrunk(png_of(moved))) > TOLERANCE) is is_seen

    recolored = schedule_figure(
        schedule, width=PAGE_INCHES, rectangle_args={BlockKind.FORWARD: {"facecolor": "#35B183"}}
    )
    assert largest_difference(whole, shrunk(png_of(recolored))) > TOLERANCE
