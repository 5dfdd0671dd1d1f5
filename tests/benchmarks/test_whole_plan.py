"""The benchmark of whole plans: its cases, its tables, and what it says of a plan that loses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("tvm")

from benchmarks.whole_plan import __main__ as whole_plan
from benchmarks.whole_plan.__main__ import Row, main, report
from tests.samples.measured_layers import heavy_head

pytestmark = pytest.mark.tvm


def test_cases_are_planned_and_none_is_slower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers, rows = tmp_path / "layers.json", tmp_path / "rows.jsonl"
    layers.write_bytes(msgspec.json.encode(heavy_head()))
    assert main(["plan", str(layers), "--devices", "4", "--work", "0.1", "--out", str(rows)]) == 0
    found = [msgspec.json.decode(line, type=Row) for line in rows.read_bytes().splitlines()]
    assert [(row.micro_batches, row.share) for row in found] == [
        (count, share) for count in (4, 8, 16) for share in whole_plan.SHARES
    ]
    assert all(row.ratios["1f1b"] >= 1 for row in found if "1f1b" in row.ratios)
    assert "| made | 4 |" in capsys.readouterr().out


def test_a_plan_that_loses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losing = Row(
        model="made", devices=2, share=0.6, micro_batches=4, plan="a", step_ms=2.0, ratios={"1f1b": 0.9}
    )
    monkeypatch.setattr(whole_plan, "plan_cases", lambda *_, **__: iter([losing]))
    layers = tmp_path / "layers.json"
    layers.write_bytes(msgspec.json.encode(heavy_head()))
    assert main(["plan", str(layers)]) == 1
    assert "| made | 2 | 0.900 (1) | 0.900 (1) | 0.0% |" in list(report([losing]))
