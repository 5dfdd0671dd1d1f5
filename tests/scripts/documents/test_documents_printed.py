"""What the commands print with --json, and the files they write: the contract that other programs rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessel.documents import load_schedule
from tessel.validation import check_schedule

Run = Callable[..., Any]

TUNING = ("--threads", "1", "--backends", "tvm,blas")


def document(outcome: Any) -> dict[str, Any]:
    assert outcome.status == 0, outcome
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_schedule_prints_the_document_that_it_saves(tessel: Run, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    outcome = tessel(
        "schedule", "vshape", "--devices", 4, "--micro-batches", 8, "--memory", 4, "--save", path, "--json"
    )
    found = document(outcome)
    assert found == json.loads(path.read_text())
    assert found["makespan"] == 44
    assert found["optimal"] is True
    assert found["memory"] == [4] * 4
    check_schedule(load_schedule(path))


def test_memory_and_a_span_of_nothing_are_taken_from_the_command_line(tessel: Run) -> None:
    costs = ("--forward-memory", "2,3", "--tensor-parallel-span", 0, "--split-backward", "--work", "0.2")
    found = document(tessel("schedule", "mshape", "--devices", 2, "--micro-batches", 2, *costs, "--json"))
    blocks = {block["name"]: block for block in found["placement"]["blocks"]}
    by_kind = {
        kind: [block["memory"] for block in blocks.values() if block["kind"] == kind and block["memory"]]
        for kind in ("forward", "backward_input", "backward_weight")
    }
    assert by_kind["forward"] == [2, 3]
    assert sum(by_kind["backward_input"]) + sum(by_kind["backward_weight"]) == -5
    assert 0 in [block["span"] for block in blocks.values() if len(block["devices"]) == 2]


def test_period_only_prints_the_repetend(tessel: Run) -> None:
    found = document(tessel("schedule", "mshape", "--devices", 4, "--memory", 6, "--period-only", "--json"))
    assert found["period"] / found["micro_batches"] == 6
    assert found["optimal"] is True
    assert len(found["starts"]) == found["micro_batches"]


def test_frontier_falls_with_memory(tessel: Run, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    outcome = tessel(
        "schedule", "vshape", "--devices", 3, "--frontier", "--work", "0.5", "--save", picture, "--json"
    )
    points = document(outcome)["frontier"]
    rates = [point["period"] / point["copies"] for point in points]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 4
    assert picture.read_text().startswith("<?xml")


def test_frontier_of_a_number_of_micro_batches_is_of_makespans(tessel: Run, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    options = ("--micro-batches", 5, "--frontier", "--work", "0.2", "--save", picture)
    found = document(tessel("schedule", "vshape", "--devices", 3, *options, "--json"))
    assert found["micro_batches"] == 5
    points = found["frontier"]
    makespans = [point["makespan"] for point in points]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] == 5 * 4 + 2 * 4
    assert all(point["lower_bound"] <= point["makespan"] for point in points)
    assert points[-1]["optimal"] is True
    assert picture.read_text().startswith("<?xml")
    table = tessel("schedule", "vshape", "--devices", 3, *options)
    assert "makespan" in table.stdout
    assert "proven optimal" in table.stdout


def test_frontier_with_a_limit_is_refused(tessel: Run) -> None:
    outcome = tessel("schedule", "vshape", "--devices", 3, "--frontier", "--memory", 3)
    assert outcome.status == 2
    assert "leave one out" in outcome.stderr


def test_compare_has_a_row_for_each_schedule_that_applies(tessel: Run, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    tessel("schedule", "vshape", "--devices", 3, "--micro-batches", 4, "--save", path)
    rows = {row["schedule"]: row for row in document(tessel("compare", path, "--json"))["schedules"]}
    assert {"searched", "1f1b", "gpipe"} <= rows.keys()
    for row in rows.values():
        assert {"makespan", "bubble_ratio", "peak_memory", "fits"} <= row.keys()
        assert rows["searched"]["makespan"] <= row["makespan"]


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [
        (".svg", b"<?xml"),
        (".png", b"\x89PNG"),
        (".pdf", b"%PDF"),
        (".html", b"<!doctype html>"),
        (".json", b"{"),
    ],
)
def test_draw_writes_every_format(tessel: Run, tmp_path: Path, suffix: str, begin: bytes) -> None:
    path = tmp_path / "schedule.json"
    tessel("schedule", "zbv", "--devices", 2, "--micro-batches", 4, "--split-backward", "--save", path)
    out = tmp_path / f"picture{suffix}"
    assert tessel("draw", path, "--out", out).status == 0
    assert out.read_bytes().lower().startswith(begin.lower())


def test_text_picture_fits_the_terminal(tessel: Run, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    tessel("schedule", "vshape", "--devices", 4, "--micro-batches", 32, "--save", path)
    lines = tessel("draw", path).stdout.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["0", "1", "2", "3"]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("command", [("--help",), ("schedule", "--help"), ("records", "stats", "--help")])
def test_help_imports_neither_tvm_nor_torch(command: tuple[str, ...]) -> None:
    assert imported_by(*command, of=("tvm", "torch", "xgboost", "matplotlib", "numba")) == []


def test_schedules_need_neither_tvm_nor_torch() -> None:
    command = ("schedule", "vshape", "--devices", "2", "--micro-batches", "2")
    assert imported_by(*command, of=("tvm", "torch")) == []


def imported_by(*command: str, of: tuple[str, ...]) -> list[str]:
    """Run a command in a process of its own; return which of the modules it imported."""
    code = (
        "import sys; from scripts.main import main; status = main(sys.argv[2:]); "
        "print(*(name for name in sys.argv[1].split(',') if name in sys.modules), file=sys.stderr); "
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, ",".join(of), *command], capture_output=True, text=True, check=True
    )
    return done.stderr.split()


@pytest.mark.tvm
def test_the_main_job_writes_and_prints_what_it_promises(tessel: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/records.db"
    out = tmp_path / "out"
    tune = ("tune", "mlp", "--devices", 2, "--micro-batches", 4, *TUNING, "--records", url, "--out", out)

    text, _, _ = tessel(*tune, "--work", "0.2").stdout.partition("written:")
    second = document(tessel(*tune, "--work", "0.2", "--json"))

    measured = re.search(r"(\d+) new measurements", text)
    assert measured is not None
    assert int(measured[1]) > 0
    assert "ratio to 1F1B" in text
    assert second["new_measurements"] == 0
    rows = {row["schedule"]: row for row in second["comparison"]}
    for row in rows.values():
        assert {"makespan_ms", "bubble_ratio", "peak_memory_bytes", "ratio_to_1f1b"} <= row.keys()
    assert rows["searched"]["ratio_to_1f1b"] <= rows["1f1b"]["ratio_to_1f1b"] == 1
    assert Path(second["plan"]) == out / "plan.json"
    assert (out / "schedule.svg").read_text().startswith("<?xml")

    assert tessel("draw", out / "plan.json", "--out", out / "report.md").status == 0
    report = (out / "report.md").read_text()
    assert "## mlp" in report
    assert "| 1f1b |" in report

    assert tessel("draw", out / "plan.json", "--out", out / "page.html").status == 0
    page = re.search(r'application/json">(.*?)</script>', (out / "page.html").read_text(), re.DOTALL)
    assert page is not None
    data = json.loads(page[1])
    assert data["backend_colors"].keys() == {part["backend"] for part in data["parts"]} <= {"tvm", "blas"}
    run = {data["blocks"][block]["name"] for part in data["parts"] for block in part["blocks"]}
    assert run == {block["name"] for block in data["blocks"]}  # every block says what it runs

    compared = document(tessel("compare", out / "plan.json", "--json"))
    assert compared["schedules"][0]["makespan"] == second["comparison"][0]["makespan"]

    partition = document(tessel("partition", "mlp", "--train", *TUNING, "--records", url, "--json"))
    assert partition["new_measurements"] == 0
    assert {"mix", "tvm", "blas"} <= partition["end_to_end_us"].keys()
    race = partition["race"]
    assert race["best_single"] in race["ratio_to_mix"]
    for ratio in race["ratio_to_mix"].values():
        assert ratio["low"] <= ratio["ratio"]
        assert ratio["high"] is None or max(ratio["ratio"], 1) <= ratio["high"]
    assert isinstance(race["tie"], bool)
    assert all(part["measured"] for part in partition["partitions"])
    assert {"sum_of_parts_us", "max_relative_error", "candidates", "states"} <= partition.keys()

    stages = document(tessel("stages", "mlp", "--devices", 2, *TUNING, "--records", url, "--json"))
    assert len(stages["stages"]) == 2
    for stage in stages["stages"]:
        assert {"inputs", "outputs", "relayed", "parameters", "saved_bytes", "weight_bytes"} <= stage.keys()
        assert stage["bound_bytes"] == 0, "weights that train are not bound"
        assert stage["forward_us"] > 0
        assert stage["backward_us"] > 0

    stats = document(tessel("records", "stats", "--records", url, "--json"))
    assert stats["measurements"] == sum(stats["by_status"].values())
    assert stats["by_status"]["ok"] > 0
    assert tessel("records", "verify", "--records", url).status == 0


def test_interrupted_search_leaves_with_130_and_no_file(
    tessel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tessel.documents.save_document", interrupt)
    outcome = tessel("schedule", "vshape", "--devices", 2, "--save", tmp_path / "out.json")
    assert outcome.status == 130
    assert "interrupted" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_was_cut_says_by_what_and_is_read_again(tessel: Run, tmp_path: Path) -> None:
    shape = ("schedule", "nnshape", "--devices", 8, "--micro-batches", 16, "--memory", 8)
    outcome = tessel(*shape, "--work", "0.05", "--json")
    assert document(outcome)["stopped_by"] == "work"
    (tmp_path / "printed.json").write_text(outcome.stdout)
    assert tessel("draw", tmp_path / "printed.json").status == 0
    assert document(tessel(*shape, "--time-limit", "50ms", "--json"))["stopped_by"] == "time"
    assert "stopped by    work: the work budget was spent" in tessel(*shape, "--work", "0.05").stdout
    refused = tessel(*shape, "--work", "0")
    assert refused.status == 2
    assert "--work is 0" in refused.stderr
