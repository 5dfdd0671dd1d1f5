"""What the command prints of placements and of stages with shards: each figure says where it comes from."""

from __future__ import annotations

import msgspec
import pytest
from tuned_model import tuned_model

from scripts.reports.placements import print_placements
from scripts.reports.tables import print_stages
from tessel.placement_comparison import PlacementRow
from tuner.plan import ShardsPlan


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
    print_placements((taken, PlacementRow(placement="zbv", reason="there are too few layers")))
    text = capsys.readouterr().out
    assert "mshape *" in text
    assert "0.800" in text
    assert "gpipe 85.0" in text
    assert "zbv: there are too few layers" in text


@pytest.mark.parametrize("source", ["measured", "given"])
def test_a_divided_stage_says_what_its_collectives_take(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = ShardsPlan(
        num_shards=2, axes={}, collective_us={"forward": 7.0, "backward": 9.0}, collective_source=source
    )
    whole, stage = tuned_model([(10.0, 20.0, 12.0, 11.0)] * 2).stages
    print_stages((whole, msgspec.structs.replace(stage, shards=shards)))
    lines = capsys.readouterr().out.splitlines()
    assert f"  stage1: collectives, {source}: F 7.0 us, B+W joint 9.0 us" in lines
    assert any(line.startswith("* h.1") or line.startswith("* 1") for line in lines)
    assert max(map(len, lines)) <= 100
