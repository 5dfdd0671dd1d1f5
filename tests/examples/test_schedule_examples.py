"""The examples of schedules and placements of one's own run and print what they promise."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tessel.documents import load_placement

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_a_custom_schedule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run("custom_schedule.py", monkeypatch=monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "makespan 33, bubbles 27.3%, peak (8, 6, 4, 2)"
    assert printed[2].startswith("critical path: f0[0] f1[0] f2[0] f3[0]")


def test_a_placement_of_ones_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("placement_of_ones_own.py", str(tmp_path / "own.json"), monkeypatch=monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("searched")
    assert printed[-1].startswith("at least ")
    assert load_placement(tmp_path / "own.json").devices == 3
