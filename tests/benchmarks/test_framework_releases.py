"""What became of plans in newer releases is held against a report, plan by plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.frameworks.__main__ import (
    NAMES,
    changes,
    compare_names,
    main,
    verdicts,
    without_pin,
)

REPORT = """\
| framework | plan | result |
|---|---|---|
| torchtitan 0.2.2 | interleaved | refused: its models stop |
| torchtitan 0.3.0 | interleaved | exact, 1e-07 (weights moved by 5e-03) |
| DeepSpeed 0.19.8 | 1F1B | exact, 5e-07 (weights moved by 1e-01) |
"""
NOW = """\
| torchtitan 0.9.0 | interleaved | **failed**: KeyError: 'x' |
| DeepSpeed 0.20.0 | 1F1B | exact, 4e-07 (weights moved by 1e-01) |
| DeepSpeed 0.20.0 | GPipe | refused: the plan, and so on |
"""


@pytest.mark.parametrize(
    ("requirement", "name"), [("torch==2.13.0", "torch"), ("datasets<4.8", "datasets"), ("tyro", "tyro")]
)
def test_requirements_lose_their_pin(requirement: str, name: str) -> None:
    assert without_pin(requirement) == name


def test_only_what_changed_is_told() -> None:
    before, after = verdicts(REPORT.splitlines()), verdicts(NOW.splitlines())
    assert before["torchtitan", "interleaved"] == "exact"
    assert changes(before, after) == [
        "torchtitan, interleaved: exact before, failed now",
        "DeepSpeed, GPipe: not tried before, refused now",
    ]
    assert changes(before, before) == []


def test_names_that_came_and_went_are_told() -> None:
    known = json.loads(NAMES.read_text())["main"]
    assert compare_names(known, "main") == "exact"
    renamed = known | {"training": ["new", *(name for name in known["training"] if name != "max_norm")]}
    assert compare_names(renamed, "main") == "**differs**: +training.new -training.max_norm"


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no checkout of torchtitan"):
        main(["--torchtitan", str(tmp_path), "--venv", str(tmp_path / "venv")])
    assert not (tmp_path / "venv").exists(), "it is refused before anything is installed"
