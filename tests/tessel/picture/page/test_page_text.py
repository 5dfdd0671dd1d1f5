"""The page's text, without a browser: names from a file are text and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tessel.comparison import compare_schedules
from tessel.errors import ScheduleError
from tessel.picture.captions import save_figure
from tessel.picture.figures import comparison_figure, schedule_figure
from tessel.picture.page.document import PageTable, page_document
from tessel.placement import Block, Placement
from tessel.schedule import Schedule


@pytest.mark.parametrize("name", ["<!--<script>", "</script><script>1</script>", "<img src=x>", "'\"`&"])
def test_names_are_text_and_nothing_else_on_the_page(name: str) -> None:
    placement = Placement(devices=1, blocks=(Block(name=name, devices=(0,)),))
    schedule = Schedule.of(placement, {(0, 0): 0}, micro_batches=1)
    table = PageTable(title=name, columns=(name,), rows=((name,),))
    page = page_document(compare_schedules(schedule), title=name, tables=(table,)).decode()
    data = page.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["blocks"][0]["name"] == name
    assert page.count("<script") == 2


def test_schedule_of_more_steps_than_a_page_can_count_is_refused() -> None:
    placement = Placement(devices=1, blocks=(Block(name="f0", devices=(0,), span=10**9),))
    starts = {(0, micro_batch): micro_batch * 10**9 for micro_batch in range(3)}
    schedule = Schedule.of(placement, starts, micro_batches=3)
    with pytest.raises(ScheduleError, match="a page shows at most 2147483647"):
        page_document(compare_schedules(schedule), title="long")


def test_title_of_a_picture_is_text_and_no_formula(tmp_path: Path) -> None:
    placement = Placement(devices=1, blocks=(Block(name="f0", devices=(0,)),))
    schedule = Schedule.of(placement, {(0, 0): 0}, micro_batches=1)
    title = r"$\frac{$ <!--<script>"
    save_figure(schedule_figure(schedule, title=title), tmp_path / "picture.svg")
    save_figure(comparison_figure(compare_schedules(schedule), title=title), tmp_path / "comparison.svg")
    for path in tmp_path.iterdir():
        ElementTree.parse(path)
