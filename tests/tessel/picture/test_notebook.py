"""What a notebook shows: pictures of schedules and placements, tables, and a repr of one line."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from pathlib import Path

import pytest
from tuned_model import tuned_model

from tessel.comparison import compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.picture import notebook
from tessel.pipeline import build_plan
from tessel.schedule import Schedule
from tessel.search.repetend.repetend_result import RepetendResult
from tessel.shapes import kshape, mshape, vshape


def gpipe(devices: int, micro_batches: int) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "gpipe")
    return rule.build(vshape(devices), micro_batches=micro_batches, memory=None)


def words(svg: str | None) -> set[str]:
    assert svg is not None
    return {
        element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    }


def test_a_schedule_is_a_picture_with_its_figures_above() -> None:
    schedule = gpipe(2, 3)
    svg, again = (notebook.schedule_svg(schedule) for _ in range(2))
    assert {repr(schedule), "0", "1", "2", "backward"} <= words(svg)
    assert svg == again  # or a notebook under version control would change each time


@pytest.mark.parametrize(
    "placement", [vshape(3, choose_backward=True), mshape(2), kshape(3, split_backward=True)], ids=repr
)
def test_a_placement_is_a_picture_of_one_micro_batch(placement) -> None:
    assert {repr(placement), f"device {placement.devices - 1}"} <= {
        word.split("  (")[0] for word in words(notebook.placement_svg(placement))
    }


def test_what_nobody_could_read_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_BLOCKS", 11)
    assert notebook.schedule_svg(gpipe(2, 3)) is None  # 12 runs of blocks
    assert notebook.schedule_svg(gpipe(2, 2)) is not None


IN_NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell

{before}
shell = InteractiveShell.instance()
shell.run_cell("{first}")
shell.run_cell("import tessel; placement = tessel.shapes.vshape(1)")
shell.run_cell("schedule = tessel.Schedule.of(placement, {{(0, 0): 0, (1, 0): 1}}, micro_batches=1)")
assert "matplotlib" not in sys.modules
for value in shell.user_ns["placement"], shell.user_ns["schedule"]:
    shown, _ = shell.display_formatter.format(value)
    print(shown["text/plain"] == repr(value), "</svg>" in shown["image/svg+xml"])
"""


@pytest.mark.parametrize(
    "cells",
    [{"before": "", "first": ""}, {"before": "import tessel", "first": "%load_ext tessel"}],
    ids=["imported in a notebook", "imported before there was one"],
)
def test_ipython_shows_pictures_and_draws_none_before(cells: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="IPython comes with the extra `test`")
    done = subprocess.run(
        [sys.executable, "-c", IN_NOTEBOOK.format(**cells)],
        env=os.environ | {"IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-2:] == ["True True", "True True"]


def test_a_comparison_is_a_table_with_a_row_for_each_schedule() -> None:
    comparison = compare_schedules(gpipe(2, 3), names=["1f1b"])
    table = ElementTree.fromstring(comparison._repr_html_())
    rows = [[cell.text for cell in row] for row in table.iter("tr")]
    assert [row[0] for row in rows] == ["schedule", "ours", "1f1b"]
    assert rows[1][1] == rows[2][1] == "16"
    assert rows[1][5] == "1.000"


def test_names_in_a_table_are_escaped() -> None:
    comparison = compare_schedules(gpipe(2, 3), names=["1f1b"])
    (row, *_) = comparison.rows
    hostile = type(row)(
        schedule="<script>alert(1)</script>", makespan=1, bubble_ratio=0, peak_memory=(1,), fits=True
    )
    shown = type(comparison)(rows=(hostile,), schedules=(), not_applicable=())._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_reprs_are_one_short_line() -> None:
    schedule = gpipe(4, 16)
    comparison = compare_schedules(schedule)
    found = RepetendResult(
        placement=vshape(4),
        memory=None,
        period=4,
        copies=1,
        block_indices=tuple(range(8)),
        starts=((0, 1, 2, 3, 4, 7, 10, 13),),
        lower_bound=4,
        least_rate=Fraction(4),
        optimal=True,
        rate_lower_bound=Fraction(4),
        rate_optimal=True,
        search_seconds=0.1,
        found_by="branching on device orders",
    )
    for value in (schedule, schedule.placement, comparison, found):
        assert len(repr(value)) < 300, value
        assert "\n" not in repr(value)
    assert repr(schedule) == (
        "Schedule(4 devices, 16 micro-batches, makespan 76 (lower bound not known), bubble ratio 15.8%, "
        "peak memory 16)"
    )
    assert (
        repr(schedule.placement) == "Placement(4 devices, 8 blocks, 10 edges, work 4 on the busiest device)"
    )


def test_a_plan_is_the_table_of_its_comparison() -> None:
    plan = build_plan(
        tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)]),
        micro_batches=2,
        memory_limit_bytes=None,
        time_limit_s=0.5,
    )
    table = ElementTree.fromstring(plan._repr_html_())
    assert [cell.text for cell in table.iter("caption")] == [repr(plan)]
    assert {"makespan (ms)", "peak memory (MiB)"} <= {cell.text for cell in table.iter("th")}
    assert len(list(table.iter("tr"))) == len(plan.comparison) + 1
    assert len(repr(plan)) < 200


def test_a_comparison_says_what_breaks_the_limit() -> None:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b-limited")
    limited = rule.build(vshape(3), micro_batches=4, memory=(2, 2, 2))
    shown = repr(compare_schedules(limited, names=["gpipe"]))
    assert "gpipe 24 steps (does not fit)" in shown
    assert shown.count("does not fit") == 1
