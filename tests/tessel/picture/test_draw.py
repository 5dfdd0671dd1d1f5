"""Drawn schedules by their artists: bars, numbers, phases, critical paths, and what large ones leave out."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from random_schedules import draw_schedule as random_schedule

from tessel.comparison import compare_schedules
from tessel.dag import Dag
from tessel.handwritten import HANDWRITTEN
from tessel.picture import draw
from tessel.picture.bars import bars_of, critical_bars
from tessel.picture.captions import save_figure
from tessel.picture.charts.memory import draw_memory
from tessel.picture.colors import block_styles
from tessel.picture.draw import MAX_VECTOR_BARS, draw_schedule
from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
from tessel.placement import Block, BlockKind, Placement
from tessel.schedule import Repetend, Schedule
from tessel.shapes import make_shape, vshape


def one_f_one_b(devices: int, micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return rule.build(vshape(devices), micro_batches=micro_batches, memory=None)


def new_axes(width: float = 13.0, height: float = 4.0) -> Axes:
    return Figure(figsize=(width, height)).add_subplot()


def collection(axes: Axes, label: str) -> PolyCollection:
    (found,) = (child for child in axes.collections if child.get_label() == label)
    assert isinstance(found, PolyCollection)
    return found


def numbers(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text().isdigit()]


@settings(max_examples=20, deadline=None)
@given(devices=st.integers(1, 4), micro_batches=st.integers(1, 4), seed=st.integers(0, 99))
def test_critical_bars_of_an_eager_schedule_fill_its_makespan(
    devices: int, micro_batches: int, seed: int
) -> None:
    placement = vshape(devices)
    drawn = random_schedule(placement, micro_batches, np.random.default_rng(seed))
    schedule = Dag.of_schedule(drawn).to_schedule("eager")

    path = critical_bars(schedule)

    assert (path[0].start, path[-1].end) == (0, schedule.makespan)
    assert all(before.end == after.start for before, after in itertools.pairwise(path))
    assert set(path) <= set(bars_of(schedule))


def test_the_critical_path_is_a_line_through_its_bars() -> None:
    schedule = one_f_one_b(3, 4)
    axes = draw_schedule(schedule, new_axes(), step_ms=0.5, critical_path=True, line_args={"lw": 7})

    (line,) = (line for line in axes.lines if line.get_label() == "critical path")
    path = critical_bars(schedule)
    assert list(line.get_xdata()) == [0.5 * time for bar in path for time in (bar.start, bar.end)]
    assert [round(row) for row in line.get_ydata()] == [bar.device for bar in path for _ in range(2)]
    assert line.get_linewidth() == 7


def test_each_bar_is_a_rectangle_of_its_kind() -> None:
    schedule = one_f_one_b(2, 3)
    axes = draw_schedule(schedule, new_axes())

    for kind in (BlockKind.FORWARD, BlockKind.BACKWARD):
        paths = collection(axes, kind.value).get_paths()
        drawn = sorted((path.get_extents().x0, path.get_extents().x1) for path in paths)
        assert drawn == sorted((bar.start, bar.end) for bar in bars_of(schedule) if bar.kind is kind)
    assert sorted(numbers(axes)) == sorted(str(bar.micro_batch) for bar in bars_of(schedule))


def test_odd_micro_batches_are_lighter() -> None:
    axes = draw_schedule(one_f_one_b(1, 2), new_axes())

    even, odd = collection(axes, "forward").get_facecolor()
    assert sum(odd[:3]) > sum(even[:3])


def test_arguments_for_artists_win_over_those_used_here() -> None:
    axes = draw_schedule(
        one_f_one_b(2, 2),
        new_axes(),
        annotation_args={"color": "red", "size": 3},
        rectangle_args={BlockKind.BACKWARD: {"fc": "white", "hatch": "//"}},
    )

    assert {(text.get_color(), text.get_fontsize()) for text in axes.texts} == {("red", 3)}
    backward = collection(axes, "backward")
    assert backward.get_hatch() == "//"
    assert tuple(backward.get_facecolor()[0][:3]) == to_rgb("white")
    assert collection(axes, "forward").get_hatch() is None


def test_kinds_of_ones_own_have_their_names_colours_and_arguments() -> None:
    placement = Placement(
        devices=1,
        blocks=(
            Block(name="f0", kind=BlockKind.FORWARD, devices=(0,), span=1, memory=0),
            Block(name="allreduce0", kind=BlockKind.OTHER, devices=(0,), span=1, memory=0),
            Block(name="step_0", kind=BlockKind.OTHER, devices=(0,), span=1, memory=0),
        ),
        edges=(),
    )
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1, (2, 0): 2}, micro_batches=1)
    axes = draw_schedule(schedule, new_axes(), rectangle_args={"allreduce": {"hatch": "xx"}})

    labels = [child.get_label() for child in axes.collections]
    assert labels == ["idle", "forward", "allreduce", "step"]
    assert collection(axes, "allreduce").get_hatch() == "xx"
    first, second = (collection(axes, label).get_facecolor()[0] for label in ("allreduce", "step"))
    assert tuple(first) != tuple(second)


def test_numbers_are_left_out_of_bars_too_narrow_or_too_low() -> None:
    schedule = one_f_one_b(4, 8)

    assert numbers(draw_schedule(schedule, new_axes()))
    assert not numbers(draw_schedule(schedule, new_axes(width=0.8)))
    assert not numbers(draw_schedule(schedule, new_axes(height=0.3)))


def test_phases_are_named_where_there_is_room() -> None:
    drawn = one_f_one_b(2, 8)
    repetend = Repetend(period=3, micro_batches=1, lower_bound=3, optimal=True, start=6, end=18)
    schedule = Schedule.of(drawn.placement, drawn.start_by_block(), micro_batches=8, repetend=repetend)

    wide, narrow = (draw_schedule(schedule, new_axes(width)) for width in (13.0, 1.0))
    assert {"warm-up", "repetend", "cool-down"} <= {text.get_text() for text in wide.texts}
    assert not {"warm-up", "cool-down"} & {text.get_text() for text in narrow.texts}


@pytest.mark.parametrize(
    ("memory", "expected"), [((4, 4), [4]), ((4, 6), [4, 6]), ((4000, 4000), [])], ids=str
)
def test_limits_are_lines_one_where_all_share_it(memory: tuple[int, ...], expected: list[int]) -> None:
    drawn = one_f_one_b(2, 3)
    schedule = Schedule.of(drawn.placement, drawn.start_by_block(), micro_batches=3, memory=memory)
    axes = draw_memory(schedule, new_axes())

    flat = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 2]
    assert [data[0] for data in flat] == expected
    assert bool(axes.texts) is not bool(expected)


def test_many_devices_have_a_row_each_with_the_most_held_in_each_column() -> None:
    drawn = one_f_one_b(12, 200)
    schedule = Schedule.of(drawn.placement, drawn.start_by_block(), micro_batches=200, memory=(24,) * 12)
    axes = draw_memory(schedule, new_axes())

    (mesh,) = axes.collections
    shares = np.asarray(mesh.get_array()).reshape(12, -1)
    assert shares.shape[1] < schedule.makespan * 4
    assert shares.max(axis=1).tolist() == [peak / 24 for peak in schedule.peak_memory]


def test_a_comparison_has_one_time_axis_and_a_row_a_schedule() -> None:
    comparison = compare_schedules(one_f_one_b(3, 4))
    figure = comparison_figure(comparison, title="three devices", critical_path=True)

    assert len(figure.axes) == len(comparison.rows) > 2
    longest = max(row.makespan for row in comparison.rows)
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, float(longest))}
    for axes, row in zip(figure.axes, comparison.rows, strict=True):
        assert row.title in axes.get_title("left")
        assert f"{row.bubble_ratio:.1%} bubbles" in axes.get_title("left")
        assert "idle" in axes.get_yticklabels()[0].get_text()


def test_a_comparison_draws_the_schedules_named() -> None:
    assert len(comparison_figure(compare_schedules(one_f_one_b(3, 4), names=("gpipe",))).axes) == 2


def test_a_large_schedule_has_its_bars_as_pixels_and_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "MAX_VECTOR_BARS", MAX_VECTOR_BARS // 10)
    schedule = one_f_one_b(16, 64)
    assert len(bars_of(schedule)) > draw.MAX_VECTOR_BARS
    figure = schedule_figure(schedule)
    axes = figure.axes[0]

    assert all(collection(axes, label).get_rasterized() for label in ("forward", "backward"))
    assert not numbers(axes)
    save_figure(figure, tmp_path / "large.svg")
    text = (tmp_path / "large.svg").read_text()
    assert "<image" in text
    assert len(text) < 2_000_000


def test_chunks_of_a_device_differ_in_lightness_and_are_explained() -> None:
    placement = make_shape("zbv", 2, split_backward=True)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "zb-v")
    schedule = rule.build(placement, micro_batches=2, memory=None)
    styles = block_styles(placement)
    assert {name: style.chunk for name, style in styles.items() if style.group == "forward"} == {
        "f0": 0,
        "f1": 0,
        "f2": 1,
        "f3": 1,
    }
    assert [styles[f"b{stage}_input"].chunk for stage in range(4)] == [0, 0, 1, 1]

    axes = draw_schedule(schedule, new_axes())

    shades = {tuple(face) for face in collection(axes, "forward").get_facecolor()}
    assert len(shades) == 2
    assert tuple(collection(axes, "forward").get_facecolor()[0][:3]) == to_rgb(styles["f0"].color)
    labels = axes.get_legend_handles_labels()[1]
    assert labels[-2:] == ["chunk 0", "chunk 1"]
    assert "chunk 0" not in draw_schedule(one_f_one_b(2, 2), new_axes()).get_legend_handles_labels()[1]


def shared(devices: tuple[int, ...], span: int = 1) -> Schedule:
    placement = Placement(
        devices=4,
        blocks=(
            Block(name="f0", kind=BlockKind.FORWARD, devices=devices, span=span, memory=0),
            Block(name="f1", kind=BlockKind.FORWARD, devices=(1,), span=60, memory=0),
        ),
        edges=(),
    )
    return Schedule.of(placement, {(0, 0): 0, (1, 0): span}, micro_batches=1)


def test_a_block_on_adjacent_devices_is_one_box_with_one_number() -> None:
    axes = draw_schedule(shared((0, 1, 2, 3), span=4), new_axes())

    boxes = [path.get_extents() for path in collection(axes, "forward").get_paths()]
    assert [(round(box.y0), round(box.y1)) for box in boxes] == [(0, 3), (1, 1)]
    assert numbers(axes) == ["0", "0"]


def test_boxes_of_a_block_on_devices_apart_are_joined() -> None:
    axes = draw_schedule(shared((0, 3), span=4), new_axes())

    assert len(collection(axes, "forward").get_paths()) == 3
    assert numbers(axes) == ["0", "0"]
    (joints,) = (child for child in axes.collections if child.get_label() == "_joints")
    (line,) = joints.get_segments()
    assert line.tolist() == [[2.0, 0.0], [2.0, 3.0]]


def test_a_number_too_wide_for_a_shared_box_stands_upright() -> None:
    wide, narrow = (draw_schedule(shared((0, 1, 2, 3), span), new_axes()) for span in (4, 1))

    assert {text.get_rotation() for text in wide.texts} == {0.0}
    assert sorted(text.get_rotation() for text in narrow.texts if text.get_text() == "0") == [0.0, 0.0]
    schedule = one_f_one_b_of_mshape()
    slim = draw_schedule(schedule, new_axes(width=0.11 * schedule.makespan))
    assert 90.0 in {text.get_rotation() for text in slim.texts}


def one_f_one_b_of_mshape() -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return rule.build(make_shape("mshape", 4), micro_batches=12, memory=None)


def test_numbers_in_equal_bars_are_there_together_and_of_one_size() -> None:
    for width in (3.0, 5.0, 7.0, 9.0, 13.0):
        axes = draw_schedule(one_f_one_b(2, 12), new_axes(width))
        sizes = {text.get_fontsize() for text in axes.texts if text.get_text().isdigit()}
        assert len(sizes) <= 2, width  # forward and backward differ in length
        assert len(numbers(axes)) in (0, 24, 48), width


def test_outlines_become_thinner_with_the_bars() -> None:
    few, many = (collection(draw_schedule(one_f_one_b(2, n), new_axes()), "forward") for n in (4, 80))
    assert few.get_linewidth()[0] > many.get_linewidth()[0]
    room = 13 * 72 / many.axes.get_xlim()[1]  # points of a step at most
    assert many.get_linewidth()[0] < 0.1 * room


def test_later_chunks_have_a_strip_at_the_foot_of_their_bars() -> None:
    placement = make_shape("zbv", 2, split_backward=True)
    rule = next(rule for rule in HANDWRITTEN if rule.name == "zb-v")
    schedule = rule.build(placement, micro_batches=2, memory=None)
    axes = draw_schedule(schedule, new_axes())

    (strips,) = (child for child in axes.collections if child.get_label() == "_strips")
    drawn = sorted((path.get_extents().x0, path.get_extents().x1) for path in strips.get_paths())
    styles = block_styles(placement)
    assert drawn == sorted((bar.start, bar.end) for bar in bars_of(schedule) if styles[bar.block].chunk)


@pytest.mark.parametrize("width", [3.33, 7.0, 13.0])
def test_a_figure_has_the_width_asked_for_and_nothing_outside_it(width: float) -> None:
    comparison = compare_schedules(one_f_one_b(4, 16), names=("1f1b", "gpipe"))
    title = "a title of more words than a column of print has room for on one line of its width"
    for figure in (
        schedule_figure(one_f_one_b(4, 16), title=title, width=width),
        comparison_figure(comparison, title=title, width=width),
        gains_figure(comparison, title=title, width=width),
    ):
        assert figure.get_size_inches()[0] == width
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert box.x0 >= -0.05
        assert box.x1 <= width + 0.05, figure.title


def test_a_short_block_leaves_long_ones_their_outlines() -> None:
    placement = Placement(
        devices=1, blocks=(Block(name="f0", devices=(0,), span=1), Block(name="f1", devices=(0,), span=999))
    )
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 1}, micro_batches=1)
    (axes,) = schedule_figure(schedule).axes
    (outlines,) = (each.get_linewidth() for each in axes.collections if each.get_label() == "f")
    short, long = sorted(np.asarray(outlines))
    assert short < 0.05
    assert long == pytest.approx(0.5)


def test_the_line_of_a_phase_runs_through_no_number() -> None:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    schedule = rule.build(vshape(4, backward_span=2), micro_batches=16, memory=None)
    middle = 1 + next(bar.start for bar in bars_of(schedule) if bar.end - bar.start == 2)
    repetend = Repetend(
        period=3, micro_batches=1, lower_bound=3, optimal=True, start=middle, end=schedule.makespan
    )
    (axes, _) = schedule_figure(msgspec.structs.replace(schedule, repetend=repetend)).axes
    figure = axes.get_figure(root=True)
    assert figure is not None
    FigureCanvasAgg(figure).draw()
    line = axes.transData.transform((middle, 0))[0]
    numbers = [text.get_window_extent() for text in axes.texts if text.get_text().isdigit()]
    assert len(numbers) == 2 * 4 * 16
    assert not [box for box in numbers if box.x0 < line < box.x1]
