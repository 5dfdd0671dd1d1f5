"""A picture says who found the schedule that it shows: a hand-written rule's is not the search's."""

from __future__ import annotations

from pathlib import Path

from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.jobs.shown.pictures import write_picture
from tessel.shapes import vshape


def test_who_found_a_schedule_stands_in_its_title(tmp_path: Path) -> None:
    schedule = ONE_F_ONE_B.build(vshape(2), micro_batches=2)
    assert schedule.found_by == "1f1b"
    write_picture(schedule, None, tmp_path / "v.svg", title="a v-shape")
    assert "a v-shape, found by 1f1b" in (tmp_path / "v.svg").read_text()
    write_picture(schedule, None, tmp_path / "v.md", title="a v-shape")
    assert r"ours (by 1f1b)" in (tmp_path / "v.md").read_text()
