"""Spreads of a table's layers: against the same law stated by hand, and means by time of plain arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tessel
from scripts.main import main
from tessel.errors import UsageError
from tessel.jobs.plan import load_plan

FORWARDS, BACKWARDS = (1, 2, 3, 4, 5, 6), (2, 1, 7, 3, 3, 5)
SPREADS = (0.1, 0.5, None, 0.2, 0.05, 1.0)
OPTIONS = {"devices": 2, "work": 0.05, "progress": False, "data_parallel": 1, "placement": "vshape"}


def rows(spreads: tuple[float | None, ...], factor: int = 1, **more: object) -> list[dict[str, object]]:
    sizes = {"weights_mib": 9, "saved_mib": 3, "boundary_mib": 1}
    figures = zip(FORWARDS, BACKWARDS, spreads, strict=True)
    return [
        {"layer": f"h{place}", "forward_ms": f * factor, "backward_ms": b * factor, "spread": own}
        | sizes
        | more
        for place, (f, b, own) in enumerate(figures)
    ]


def by_hand(cut: tuple[int, int], spreads: tuple[float | None, ...]) -> float:
    inner = range(cut[0], cut[1] + 1)
    work = [FORWARDS[each] + BACKWARDS[each] for each in inner]
    return float(np.average([spreads[each] or 0.0 for each in inner], weights=work))


def test_rows_that_all_vary_alike_are_the_law_stated_for_all() -> None:
    own, stated, replaced = (
        tessel.plan(rows((spread,) * 6), micro_batches=6, spread=law, **OPTIONS).found
        for spread, law in ((0.3, None), (None, "lognormal:0.3"), (1.5, "lognormal:0.3"))
    )
    assert own is not None
    assert stated is not None
    assert replaced is not None
    assert replaced.spreads == stated.spreads
    for found, wanted in zip(own.spreads, stated.spreads, strict=True):
        assert found.quantiles_us == pytest.approx(wanted.quantiles_us, rel=1e-9)
        assert found.greedy_us == pytest.approx(wanted.greedy_us, rel=1e-9)


def test_a_stage_varies_as_its_layers_by_their_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, saved = tmp_path / "table.json", tmp_path / "plan.json"
    table.write_text(json.dumps(rows(SPREADS)))
    options = "--devices 2 --data-parallel 1 --placement vshape --micro-batches 6 --work 0.05 --robust p95"
    assert main(["plan", str(table), *options.split(), "--save", str(saved), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = [by_hand(cut, SPREADS) for cut in found["best"]["cuts"]]
    assert found["stage_spreads"] == pytest.approx(wanted)
    assert any(each["chosen"] for each in found["spreads"])
    again = load_plan(saved)
    assert again.planned is not None
    assert again.planned.stage_spreads == pytest.approx(wanted)
    assert f"{wanted[1]:.1%}" in str(again.explain())


def test_classes_and_lengths_between_them_have_spreads_of_their_own() -> None:
    loud = (0.4, 0.1, 0.2, 0.4, 0.3, 0.2)
    table = [*rows((None,) * 6, length=1000), *rows(loud, 2, length=2000)]
    found = tessel.plan(table, batch="1000x3,2000x1,1500x2", **OPTIONS)
    assert found.planned is not None
    assert found.found is not None
    wanted = [(1 + 2 * 0.5) / 6 * by_hand(cut, loud) for cut in found.planned.layout.cuts]
    assert found.planned.stage_spreads == pytest.approx(wanted)
    assert all(each.quantiles_us[2] > each.quantiles_us[0] for each in found.found.spreads)


def test_a_percentile_needs_durations_that_vary() -> None:
    with pytest.raises(UsageError, match=r"without --spread, and .* has no column spread"):
        tessel.plan(rows((None,) * 6), micro_batches=6, robust="p95", **OPTIONS)
