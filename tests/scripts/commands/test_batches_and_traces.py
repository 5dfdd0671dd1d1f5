"""`tessel schedule --batch` and `tessel check --trace`: what is printed, saved and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tessel
from scripts.main import main
from tessel.checking.trace_assessment import TraceAssessment
from tessel.documents import load_schedule
from tessel.errors import UsageError
from tests.samples.batches.trace_samples import Job, rows_of

LIGHT = ("--work", "0.02", "--quiet")


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), *LIGHT, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(rows_of(Job(slow=(1, 1), factor=1.8, spread=0.2, replicas=3))))
    return path


def test_a_batch_is_scheduled_saved_drawn_and_refused_where_equal_ones_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "batch.json"
    found = printed(capsys, "schedule", "vshape", "--devices", 3, "--batch", "1x3,3x2", "--save", saved)
    assert found["micro_batches"] == 5
    assert found["schema_version"] == 2
    assert found["batch"]["sequence"] == [0, 0, 0, 1, 1]
    assert found["lower_bound"] <= found["makespan"]
    assert load_schedule(saved).makespan == found["makespan"]
    assert main(["draw", str(saved), "--out", str(tmp_path / "batch.trace.json"), "--quiet"]) == 0
    longest = max(
        event["dur"]
        for event in json.loads((tmp_path / "batch.trace.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    )
    assert longest == 3 * max(block["span"] for block in found["placement"]["blocks"])
    capsys.readouterr()
    for command in ("check", "compare"):
        assert main([command, str(saved), "--quiet"]) == 1
        said = capsys.readouterr()
        assert "takes equal micro-batches" in said.err
        assert len(said.err.splitlines()) == 1


def test_a_batch_is_shared_out_to_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("schedule", "vshape", "--devices", 2, "--batch", "1x6,4x2", "--replicas", 2)
    found = printed(capsys, *base)
    assert sorted(each for own in found["replicas"] for each in own) == list(range(8))
    assert found["lower_bound"] <= found["makespan"] <= found["given"]
    assert [sum(each >= 6 for each in own) for own in found["replicas"]] == [1, 1]
    ordered = printed(capsys, *base, "--keep-order", "--spread", "uniform:0.5")
    quantiles = list(ordered["spread"]["quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert quantiles[0] > 0.9 * ordered["makespan"]
    assert "spread" not in found
    assert [each for own in ordered["replicas"] for each in own] == list(range(8))
    assert main([*map(str, base), *LIGHT]) == 0
    out = capsys.readouterr().out
    assert f"makespan      {found['makespan']} steps on the slowest of 2 replicas" in out
    assert main([*map(str, base[:-1]), "3", *LIGHT]) == 1
    assert "cannot be shared out to 3 replicas equally" in capsys.readouterr().err


def test_a_trace_says_who_straggles(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "check", "--trace", steps)
    assert (found["num_steps"], found["replicas"], found["stages"], found["micro_batches"]) == (3, 3, 2, 4)
    assert found["error_worst"] < 0.001
    assert (found["by_worker"][0]["replica"], found["by_worker"][0]["stage"]) == (1, 1)
    assert found["by_worker"][0]["ratio"] == pytest.approx(1.8, rel=1e-3)
    assert found["slowdown"] == pytest.approx(found["pipeline_s"] / found["ideal_s"])
    assert sum(each["share"] for each in found["path_shares"]) == pytest.approx(1)
    assert found["changes"][0]["kind"] == "repair"
    assert main(["check", "--trace", str(steps), *LIGHT]) == 0
    out = capsys.readouterr().out
    assert "workers alone: replica 1 stage 1" in out
    assert "repair replica 1, stage 1: 1.80 times its peers' time" in out


def test_a_trace_is_checked_from_python(steps: Path) -> None:
    found = tessel.check(trace=steps, work=0.05, progress=False)
    assert isinstance(found, TraceAssessment)
    assert found.workers[0].replica == 1
    with pytest.raises(UsageError, match="a source and a trace"):
        tessel.check("orders.csv", trace=steps)  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(UsageError, match="nothing was given to check"):
        tessel.check()  # type: ignore[call-overload]  # wrong on purpose


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check",), "no file was given"),
        (("check", "orders.csv", "--trace", "steps.csv"), "--trace has no effect with a file"),
        (("check", "--trace", "missing.csv"), "missing.csv cannot be read"),
        (("check", "--trace", "steps.csv", "--devices", "2"), "--devices has no effect with --trace"),
        (("schedule", "vshape", "--devices", "2", "--batch", "two"), "is no batch"),
        (("schedule", "vshape", "--devices", "2", "--batch", "no.json"), "no.json cannot be read"),
        (("schedule", "vshape", "--devices", "2", "--replicas", "2"), "without --batch"),
    ],
)
def test_wrong_usage_is_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) != 0
    said = capsys.readouterr()
    assert not said.out
    assert says in said.err
    assert len(said.err.splitlines()) == 1
