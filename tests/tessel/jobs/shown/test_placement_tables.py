"""What the command prints of placements and of stages with shards: each figure says where it comes from."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tuned_model import tuned_model

from scripts.terminal import console
from tessel.jobs.shown.placement_tables import add_placements, add_planned
from tessel.jobs.shown.sections import Sections
from tessel.jobs.shown.tables import add_stages
from tessel.placement_comparison import PlacementRow, PlannedRow
from tuner.plan import ShardsPlan


def shown(add: Callable[[Sections, Any], None], rows: Any) -> None:
    out = Sections()
    add(out, rows)
    console.print_sections(out)


def test_the_taken_placement_and_reasons_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    taken = PlacementRow(
        placement="mshape",
        chosen=True,
        searched_ms=80.0,
        one_f_one_b_ms=90.0,
        handwritten="gpipe",
        handwritten_ms=85.0,
        ratio_to_v_1f1b=0.8,
        peak_memory_bytes=1 << 20,
    )
    shown(add_placements, (taken, PlacementRow(placement="zbv", reason="there are too few layers")))
    text = capsys.readouterr().out
    assert "mshape *" in text
    assert "0.800" in text
    assert "gpipe 85.0" in text
    assert "zbv: there are too few layers" in text


def test_layouts_are_whole_on_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(console, "stdout", lambda **_: terminal)

    def printed() -> list[str]:
        assert isinstance(terminal.file, io.StringIO)
        lines = terminal.file.getvalue().splitlines()
        terminal.file = io.StringIO()
        return lines

    layout = "2 × data, 2 × tensor, 16 × pipeline, interleaved of 4 chunks, 128 micro-batches of 16, searched"
    row = PlannedRow(
        name="interleaved-zb",
        layout=layout,
        step_ms=123456.7,
        after_ms=1234.5,
        peak_memory_bytes=1 << 35,
        ratio=1.25,
    )
    shown(add_planned, (row,))
    lines = printed()
    assert max(map(len, lines)) <= 80
    headings = next(number for number, line in enumerate(lines) if "layout" in line)
    start = lines[headings].index("layout")
    table = itertools.takewhile(lambda line: not line.startswith("after it"), lines[headings + 1 :])
    assert " ".join(line[start:].strip() for line in table) == layout
    placement = PlacementRow(
        placement="interleaved:2 of 2 × 2",
        searched_ms=12345.6,
        one_f_one_b_ms=12345.6,
        handwritten="interleaved-zb",
        handwritten_ms=12345.6,
        ratio_to_v_1f1b=1.234,
        peak_memory_bytes=1 << 35,
    )
    shown(add_placements, (placement,))
    lines = list(itertools.takewhile(lambda line: not line.startswith("to chain"), printed()))
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("source", ["measured", "given"])
def test_a_divided_stage_says_what_its_collectives_take(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = ShardsPlan(
        num_shards=2, axes={}, collective_us={"forward": 7.0, "backward": 9.0}, collective_source=source
    )
    whole, stage = tuned_model([(10.0, 20.0, 12.0, 11.0)] * 2).stages
    shown(add_stages, (whole, msgspec.structs.replace(stage, shards=shards)))
    lines = capsys.readouterr().out.splitlines()
    assert f"  stage1: collectives, {source}: F 7.0 us, B+W joint 9.0 us" in lines
    assert any(line.startswith("* h.1") or line.startswith("* 1") for line in lines)
    assert max(map(len, lines)) <= 100
