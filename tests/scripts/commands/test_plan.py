"""`tessel plan`, from a table to a plan that is drawn, compared and planned from again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tessel
from scripts.commands.plan import options as plan_options
from scripts.commands.plan.command import framework_of
from scripts.main import main
from scripts.options import search_options
from tessel.planning.cluster import OPTIMIZERS
from tessel.planning.options import NAMED_PLACEMENTS
from tessel.planning.runtime import RUNTIMES
from tessel.planning.saved_plan import load_saved_plan
from tessel.profiles import FORMATS

HEADER = "layer,forward_ms,backward_ms,weights_mib,saved_mib,boundary_mib\n"
ROWS = [f"block{index},1,2,100,50,8\n" for index in range(6)]
LIGHT = ("--work", "0.05")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(HEADER + "".join(ROWS))
    return path


def planned(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), *LIGHT, "--json", "--quiet"]) == status
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out)
    return found


def test_document_agrees_with_itself(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, table, "--devices", 4, "--memory", "4GiB", "--global-batch", 16)
    best = found["best"]
    assert best["data_parallel"] * best["pipeline"] * best["tensor_parallel"] == found["devices"] == 4
    assert best["data_parallel"] * best["micro_batches"] * best["micro_batch"] == found["global_batch"] == 16
    assert [layer for first, last in best["cuts"] for layer in range(first, last + 1)] == list(range(6))
    assert len(best["cuts"]) == len(best["stage_devices"]) == best["chunks"] * best["pipeline"]
    assert len(best["memory_bytes"]) == 4
    assert max(best["memory_bytes"]) <= 4 * 2**30
    assert best["fits"]
    # 16 samples of 6 layers on 4 devices, were they spread evenly and nothing else
    assert best["step_ms"] >= best["lower_bound_ms"] >= 16 * 6 * 3 / 4
    names = {row["name"] for row in found["baselines"]}
    assert {"data-parallel", "gpipe", "1f1b", "zb-h1", "zb-v", "torch-auto"} <= names
    for row in found["baselines"]:
        assert (row["step_ms"] is None) == (row["plan"] is None)
        if row["fits"]:
            assert row["step_ms"] >= best["step_ms"] - 1e-9
        else:
            assert row["reason"]
    assert found["explanation"]


def test_a_tower_by_its_rows_names_runs_in_bubbles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "vision.0,1,1,9,9,9\n" + "".join(ROWS))
    options = ("--devices", 2, "--pipeline", 2, "--micro-batches", 4, "--placement", "vshape")
    best = planned(capsys, table, *options, "--tower", "bubbles")["best"]
    assert best["tower"] == {"where": "bubbles", "layers": 1, "recompute": False}
    assert [layer for first, last in best["cuts"] for layer in range(first, last + 1)] == list(range(1, 7))
    assert "tower" not in planned(capsys, table, *options)["best"]
    assert main(["plan", str(table), *map(str, options), "--tower", "up"]) == 2
    assert "--tower" in capsys.readouterr().err


def test_saved_plan_is_drawn_compared_and_planned_again(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    found = planned(
        capsys,
        table,
        *["--devices", "2", "--micro-batches", "4", "--pipeline", "2"],
        "--save",
        saved,
        "--out",
        picture,
    )
    assert found["plan"] == str(saved)
    assert picture.read_text().startswith("<?xml")
    plan = load_saved_plan(saved)
    assert [list(cut) for cut in plan.layout.cuts] == found["best"]["cuts"]
    assert plan.training_step_us / 1e3 == found["best"]["step_ms"]
    for name in ("again.svg", "again.html", "again.md", "again.txt", "again.json"):
        assert main(["draw", str(saved), "--out", str(tmp_path / name), "--quiet"]) == 0
    report = (tmp_path / "again.md").read_text()
    assert "| stage | devices | layers |" in report
    assert "1f1b" in report
    assert main(["compare", str(saved), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["schedules"]
    assert all("makespan_ms" in row for row in rows)
    again = planned(capsys, saved, "--devices", 2, "--micro-batches", 4, "--pipeline", 2)
    assert again["best"]["step_ms"] == found["best"]["step_ms"]


def test_plan_that_does_not_fit_is_printed_and_fails(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, table, "--devices", 2, "--memory", "512MiB", status=1)
    assert not found["best"]["fits"]
    assert max(found["best"]["memory_bytes"]) > 512 * 2**20
    assert not any(row["fits"] for row in found["baselines"])
    assert main(["plan", str(table), "--devices", "2", "--memory", "512MiB", *LIGHT]) == 1
    captured = capsys.readouterr()
    assert "DOES NOT FIT" in captured.out
    assert "nothing fits" in captured.err


def test_report_names_stages_baselines_and_reasons(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(table), "--devices", "2", "--micro-batches", "4", *LIGHT]) == 0
    out = capsys.readouterr().out
    for text in ("best plan", "peak memory", "stage  devices  layers", "1f1b", "torch-auto", "looked at "):
        assert text in out
    assert "ms" in out


def test_equal_calls_give_equal_plans(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (planned(capsys, table, "--devices", 2, "--micro-batches", 4) for _ in range(2))
    for found in (first, second):
        del found["search_seconds"]
    assert first == second


def test_options_reach_the_planner(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (HEADER + "".join(ROWS)).replace("saved_mib", "saved_mib,micro_batch").replace(",8\n", ",8\n")
    text = text.replace(",50,", ",50,2,")
    table.write_text(text)
    base = ("--devices", 2, "--global-batch", 8)
    assert planned(capsys, table, *base)["best"]["micro_batch"] == 2
    assert planned(capsys, table, *base, "--data-parallel", 2)["best"]["pipeline"] == 1
    for placement in ("vshape", "interleaved", "zbv"):
        found = planned(capsys, table, *base, "--pipeline", 2, "--placement", placement)["best"]
        assert found["placement"] == placement
    slow = planned(capsys, table, *base, "--pipeline", 2, "--link", "0.1GB/s")["best"]["step_ms"]
    fast = planned(capsys, table, *base, "--pipeline", 2, "--link", "400Gbit/s")["best"]["step_ms"]
    assert slow > fast
    uneven = planned(
        capsys, table, *base, *["--pipeline", "2", "--device-speed", "1,0.5", "--placement", "vshape"]
    )
    first, second = (last - first + 1 for first, last in uneven["best"]["cuts"])
    assert first != second
    few = planned(capsys, table, *base, "--num-layers", 4)
    assert len(few["layers"]) == 4


def test_a_layout_by_hand_is_compared_with(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--devices", 2, "--pipeline", 2, "--micro-batches", 4)
    layers = len(ROWS)
    texts = (f"0,1-{layers - 1}", f"E|{'t' * (layers - 2)}L")
    steps = set()
    for text in texts:
        found = planned(capsys, table, *base, "--by-hand", text)
        (row,) = [each for each in found["baselines"] if each["name"] == "by-hand"]
        assert row["step_ms"] >= found["best"]["step_ms"] * (1 - 1e-9)
        steps.add(row["step_ms"])
    assert len(steps) == 1  # the same cut, written in two ways
    saved = table.parent / "plan.json"
    best = planned(capsys, table, *base, "--save", saved)["best"]["step_ms"]
    found = planned(capsys, table, *base, "--by-hand", saved)
    (row,) = [each for each in found["baselines"] if each["name"] == "by-hand"]
    assert row["step_ms"] >= best * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--devices 0", "--devices is 0; give at least 1"),
        ("--devices 4 --pipeline 3", "--pipeline 3 does not divide the 4 devices"),
        ("--devices 4 --device-memory 1GiB,2GiB", "--device-memory has 2 values for 4 devices"),
        ("--devices 2 --device-speed 1,fast", "--device-speed has 'fast'"),
        ("--devices 2 --link 100", "'100' is not a bandwidth such as 100GB/s"),
        ("--devices 2 --link 0GB/s", "carries nothing"),
        ("--devices 2 --optimizer lion", "--optimizer 'lion' is not known"),
        ("--devices 2 --placement wshape", "--placement 'wshape' is not known; did you mean 'xshape'"),
        ("--devices 2 --runtime jax", "--runtime 'jax' is not known"),
        ("--devices 2 --format excel", "--format 'excel' is not known"),
        ("--devices 2 --hop-us -1", "--hop-us is -1"),
        ("--devices 2 --save plan.json --out plan.json", "--save and --out are both plan.json"),
        ("--devices 2 --out plan.bmp", "--out plan.bmp has the suffix .bmp"),
        ("--devices 2 --work 0", "--work is 0"),
        ("--devices 2 --by-hand 0-1,x", "--by-hand '0-1,x' are no layers of stages"),
        ("--devices 2 --by-hand 0,1", "--by-hand holds layers 0 to 1, and the profile has"),
        ("--devices 2 --by-hand Et|L", "which does not say --pipeline"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_planned(
    table: Path, arguments: str, problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(table.parent)
    assert main(["plan", "table.csv", *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert problem in message
    assert len(message.splitlines()) == 1
    assert [path.name for path in table.parent.iterdir()] == ["table.csv"]


def test_bad_row_exits_with_2_and_names_it(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(HEADER + ROWS[0] + "block1,-1,2,100,50,8\n")
    assert main(["plan", str(table), "--devices", "2"]) == 2
    message = capsys.readouterr().err
    assert message == (
        f"tessel: {table}, row 3, forward_ms: -1.0 is no time or size; give a number from 0 to 1e+18\n"
    )
    assert main(["plan", str(table.parent / "missing.csv"), "--devices", "2"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_batch_that_no_degrees_divide_is_refused(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--devices", "2", "--global-batch", "5", "--data-parallel", "2"]
    assert main(["plan", str(table), *options, *LIGHT]) == 1
    assert len(capsys.readouterr().err.splitlines()[-1]) > 0


def test_names_on_the_command_line_are_the_planner_s() -> None:
    assert set(plan_options.FORMATS) == set(FORMATS)
    assert set(search_options.OPTIMIZERS) == set(OPTIMIZERS)
    assert set(plan_options.RUNTIMES) == set(RUNTIMES)
    assert set(plan_options.PLACEMENTS) == {"auto", *NAMED_PLACEMENTS}


@pytest.mark.parametrize(
    ("first", "placement", "expected"),
    [("embed", "vshape", "torchtitan"), ("embed", "xshape", "torch"), ("vision.0", "vshape", "torch")],
)
def test_a_plan_is_told_an_export_that_takes_it(first: str, placement: str, expected: str) -> None:
    times = {"forward_ms": 1, "backward_ms": 2, "weights_mib": 9, "saved_mib": 1, "boundary_mib": 1}
    rows = [{"layer": name, **times} for name in (first, "a", "b", "c")]
    found = tessel.plan(rows, devices=2, pipeline=2, placement=placement, work=0.01, progress=False)
    assert found.planned is not None
    assert framework_of(found.planned) == expected
