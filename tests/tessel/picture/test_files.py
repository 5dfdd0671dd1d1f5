"""`tessel.draw`: the suffix says what is drawn, of a schedule and of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

import tessel
from tessel.handwritten import HANDWRITTEN
from tessel.picture.files import FORMATS


@pytest.fixture(scope="module")
def schedule() -> tessel.Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return rule.build(tessel.shapes.vshape(2), micro_batches=3, memory=None)


BEGINNINGS = {
    ".svg": b"<?xml",
    ".png": b"\x89PNG",
    ".pdf": b"%PDF",
    ".html": b"<!doctype html>",
    ".json": b"{",
    ".txt": b"device 0",
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_suffix_is_what_it_says(schedule: tessel.Schedule, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"drawn{suffix}"
    tessel.draw(schedule, path, title="one")
    assert path.read_bytes().lower().startswith(BEGINNINGS[suffix].lower())


def test_a_comparison_has_all_its_schedules_in_one_picture(schedule: tessel.Schedule, tmp_path: Path) -> None:
    comparison = tessel.compare_schedules(schedule, names=["1f1b", "gpipe"])
    tessel.draw(comparison, tmp_path / "all.svg")
    tessel.draw(comparison, tmp_path / "fastest.txt")
    drawn = (tmp_path / "all.svg").read_text()
    assert all(f">{row.title}" in drawn for row in comparison.rows)
    tessel.draw(schedule, tmp_path / "alone.txt")
    assert (tmp_path / "fastest.txt").read_text() == (tmp_path / "alone.txt").read_text()


def test_other_suffixes_are_refused_and_leave_no_file(schedule: tessel.Schedule, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.bmp.*end it with one of \.svg"):
        tessel.draw(schedule, tmp_path / "drawn.bmp")
    assert list(tmp_path.iterdir()) == []


def test_saved_values_load_as_they_were(schedule: tessel.Schedule, tmp_path: Path) -> None:
    tessel.save(schedule, tmp_path / "schedule.json")
    tessel.save(schedule.placement, tmp_path / "placement.json")
    assert tessel.load_schedule(tmp_path / "schedule.json") == schedule
    assert tessel.load_placement(tmp_path / "placement.json") == schedule.placement
